"""Greedy and beam search, over models whose logits are any function of what has been said."""

import functools
import itertools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posjax.experiment.tasks.translation import search
from posjax.models.sides import Side

START, END = 1, 2
P = 997  # rows of the table
FAILS = 9  # this source token makes the logits NaN after as many target tokens as the next one says


class State(NamedTuple):
  """A hash of source and target, how many target tokens it holds, and how many it may hold."""

  hash: jax.Array
  count: jax.Array
  most: jax.Array


class Table(nnx.Module):
  """The logits are those of the table in the row that a hash of all tokens says.

  After padding, which is never said, they are NaN.
  """

  def __init__(self, vocab, sharpness=2.0, end=0.0):
    table = sharpness * np.random.default_rng(vocab).normal(size=(P, vocab))
    table[:, END] += end
    self.table = nnx.Param(jnp.asarray(table, jnp.float32))

  def __call__(self, source, target, *, ids_key=None, train_key=None):
    raise NotImplementedError  # a search needs no teacher

  attention = __call__

  def begin(self, source, capacity, key=None):
    tokens = jnp.where(source.segments != 0, source.tokens, 0)
    weights = 7 * jnp.arange(1, tokens.shape[1] + 1)[None]
    most = jnp.where(tokens[:, 0] == FAILS, tokens[:, 1], capacity)
    return State((tokens * weights).sum(1) % P, jnp.zeros(len(tokens), jnp.int32), most)

  def step(self, tokens, state):
    state = State((state.hash * 31 + tokens + 1) % P, state.count + 1, state.most)
    fine = ((state.count <= state.most) & (tokens != 0))[:, None]
    return jnp.where(fine, self.table[...][state.hash], jnp.nan), state

  def select(self, state, rows):
    return jax.tree.map(lambda x: x[rows], state)


def sources(*rows, width=4):
  """The rows, padded by tokens that must make no difference."""
  tokens, segments = np.full((len(rows), width), 5), np.zeros((len(rows), width), int)
  for i, row in enumerate(rows):
    tokens[i, : len(row)], segments[i, : len(row)] = row, 1
  return Side(jnp.asarray(tokens, jnp.int32), jnp.asarray(segments, jnp.int32))


ROWS = [[3, 4], [4], [6, 3, 5], [5, 5, 5, 3]]
LIMITS = [4, 9, 2, 7]


def find(method, model, rows=ROWS, limits=LIMITS, width=4, **options):
  options = {'start': START, 'end': END, 'capacity': 9, **options}
  limits = jnp.asarray(limits, jnp.int32)
  found = method(model, sources(*rows, width=width), max_lengths=limits, **options)
  traced = isinstance(found.tokens, jax.core.Tracer)
  return found if traced else jax.tree.map(np.asarray, found)


def log_probs_of(model, row):
  """(said) -> the log-probabilities of the next token, float64, for one source."""
  table = np.asarray(model.table[...], np.float64)
  first = sum(7 * (i + 1) * token for i, token in enumerate(row)) % P

  def after(said):
    hashed = functools.reduce(lambda h, token: (h * 31 + token + 1) % P, (START, *said), first)
    logits = table[hashed]
    return logits - np.log(np.exp(logits).sum())

  return after


def words(model):
  """The tokens that may be said, but for the end mark."""
  return range(3, model.table.shape[1])


def score(log_prob, length, alpha):
  return log_prob / ((5 + length) / 6) ** alpha


def check(found, i, expected):
  """Compares one answer with (tokens, log-probability, score, whether it is finished)."""
  tokens, log_prob, value, finished = expected
  padded = [*tokens] + [0] * (found.tokens.shape[-1] - len(tokens))
  assert found.tokens[i].tolist() == padded
  assert found.lengths[i] == len(tokens)
  assert found.finished[i] == finished
  np.testing.assert_allclose(found.log_probs[i], log_prob, rtol=1e-5)
  np.testing.assert_allclose(found.scores[i], value, rtol=1e-5)


def all_sentences(model, row, limit, alpha):
  """Every sentence that ends within the limit, best first."""
  after, found = log_probs_of(model, row), []
  for length in range(limit):
    for said in itertools.product(words(model), repeat=length):
      total = sum(after(said[:i])[token] for i, token in enumerate((*said, END)))
      found.append(((*said, END), total, score(total, length + 1, alpha), True))
  return sorted(found, key=lambda each: -each[2])


def plain_beam_search(model, row, limit, beams, alpha):
  """The rules of the module in lists of float64, without any early stop."""
  after, live, ended = log_probs_of(model, row), [((), 0.0)], []
  for _ in range(limit):
    extended = [
      ((*said, token), total + after(said)[token])
      for said, total in live
      for token in (END, *words(model))
    ]
    extended.sort(key=lambda each: -each[1])
    ended += [each for each in extended[:beams] if each[0][-1] == END]
    live = [each for each in extended if each[0][-1] != END][:beams]
  answers = [(*each, score(each[1], len(each[0]), alpha), True) for each in ended]
  answers = sorted(answers, key=lambda each: -each[2])[:beams]
  rest = [(*each, score(each[1], len(each[0]), alpha), False) for each in live]
  return (answers + rest)[:beams]


def test_a_beam_as_wide_as_there_are_sequences_finds_the_best_of_all():
  model, limit = Table(7), 4  # four words
  beams = sum(4**length for length in range(limit)) + 4**limit  # those that do not end, too
  wide = {'rows': ROWS[:2], 'limits': [limit, limit], 'capacity': limit, 'beams': beams}
  for alpha in (0.0, 0.6, 2.0):
    found = find(search.n_best, model, alpha=alpha, **wide)
    for i, row in enumerate(ROWS[:2]):
      expected = all_sentences(model, row, limit, alpha)
      best = jax.tree.map(lambda x, i=i: x[i], found)
      assert best.finished.sum() == len(expected)
      for place, each in enumerate(expected):
        check(best, place, each)
  found = find(search.beam_search, model, alpha=0.6, **wide)
  for i, row in enumerate(ROWS[:2]):
    check(found, i, all_sentences(model, row, limit, 0.6)[0])


@pytest.mark.parametrize(('beams', 'vocab'), [(2, 13), (4, 5)])
def test_beam_search_equals_a_plain_one_that_never_stops_early(beams, vocab):
  model = Table(vocab)  # 5 is fewer than 2 x 4
  for alpha in (0.0, 0.6, 3.0):
    found = find(search.beam_search, model, beams=beams, alpha=alpha)
    lists = find(search.n_best, model, beams=beams, alpha=alpha)
    for i, (row, limit) in enumerate(zip(ROWS, LIMITS, strict=True)):
      expected = plain_beam_search(model, row, limit, beams, alpha)
      check(found, i, expected[0])
      for place, each in enumerate(expected):
        check(jax.tree.map(lambda x, i=i: x[i], lists), place, each)


def test_greedy_equals_a_plain_loop_and_one_beam_without_length_penalty():
  model = Table(13)
  found = find(search.greedy, model)
  for i, (row, limit) in enumerate(zip(ROWS, LIMITS, strict=True)):
    after, said, total = log_probs_of(model, row), (), 0.0
    while len(said) < limit and END not in said:
      best = max((END, *words(model)), key=lambda token: after(said)[token])
      said, total = (*said, best), total + after(said)[best]
    check(found, i, (said, total, total, END in said))
  assert 0 < found.finished.sum() < len(ROWS)  # both kinds are seen
  one = find(search.beam_search, model, beams=1, alpha=0.0)
  chex.assert_trees_all_equal(found, one)


@pytest.mark.parametrize('method', ['greedy', 'beam_search'])
def test_an_answer_depends_on_neither_neighbours_nor_padding_nor_capacity(method):
  model = Table(13, end=1.0)
  options = {} if method == 'greedy' else {'beams': 3, 'alpha': 0.6}
  method = getattr(search, method)
  together = find(method, model, **options)
  for i, (row, limit) in enumerate(zip(ROWS, LIMITS, strict=True)):
    alone = find(method, model, [row], [limit], width=6, capacity=12, **options)
    assert alone.tokens[0, :9].tolist() == together.tokens[i].tolist()
    np.testing.assert_allclose(alone.scores[0], together.scores[i], rtol=1e-6)
    for field in ('lengths', 'finished'):
      assert getattr(alone, field)[0] == getattr(together, field)[i]


@pytest.mark.parametrize('method', ['greedy', 'beam_search'])
def test_a_row_whose_logits_become_nan_has_no_answer_and_its_neighbours_have(method):
  model = Table(13, end=-99.0)  # nothing ends
  options = {} if method == 'greedy' else {'beams': 3, 'alpha': 0.6}
  method = getattr(search, method)
  rows = [ROWS[0], [FAILS, 3], *ROWS[2:]]
  good = find(method, model, limits=[9] * 4, **options)
  found = find(method, model, rows, [9] * 4, **options)
  assert not found.tokens[1].any()
  assert not found.lengths[1]
  assert not found.finished[1]
  assert np.isnan(found.scores[1])
  assert np.isnan(found.log_probs[1])
  for i in (0, 2, 3):
    jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b[i]), found, good)


def test_a_row_is_searched_until_nothing_can_beat_its_answer_and_no_further():
  model = Table(13, sharpness=0.1, end=9.0)  # the first token is the end mark, almost surely
  fails = [[FAILS, 1]] * 4  # so that a second step would lose the row
  limits = [9] * 4
  found = find(search.beam_search, model, fails, limits, beams=3, alpha=0.6)
  assert found.tokens.tolist() == [[END] + [0] * 8] * 4
  several = find(search.n_best, model, fails, limits, beams=3, alpha=0.6)
  assert np.isnan(several.scores).all()
  # A large penalty lets sentences win whose log-probability is far below: they are waited for.
  lost = find(search.beam_search, model, fails, limits, beams=3, alpha=30.0)
  assert np.isnan(lost.scores).all()


def test_where_there_are_fewer_hypotheses_than_beams_the_rest_are_empty():
  found = find(search.n_best, Table(5), limits=[1] * 4, beams=4, alpha=0.6)  # two words, or the end
  assert found.lengths.tolist() == [[1, 1, 1, 0]] * 4
  assert found.finished.tolist() == [[True, False, False, False]] * 4
  assert found.scores[:, 3].tolist() == [-np.inf] * 4
  assert not found.tokens[:, 3].any()


def test_a_traced_limit_beyond_the_capacity_has_no_answer():
  model = Table(13)

  @jax.jit
  def both(limits):
    options = {'limits': limits, 'capacity': 4}
    return (
      find(search.greedy, model, **options),
      find(search.beam_search, model, beams=2, alpha=0.0, **options),
    )

  for found in both(jnp.array([4, 9, 0, 3])):
    assert jnp.isnan(found.scores).tolist() == [False, True, True, False]


def test_wrong_arguments_are_refused(unchecked):
  model = Table(13)
  good = {'beams': 2, 'alpha': 0.6}
  for wrong, told in [
    ({'start': 2}, 'The start and the end mark must be two tokens above 0'),
    ({'end': 0}, 'The start and the end mark must be two tokens above 0'),
    ({'capacity': 0}, 'The capacity must be at least 1 token, but got 0'),
    ({'capacity': 8}, r'max_lengths must be in 1 .. 8, the capacity, but got \[9\]'),
    ({'limits': [0, 1, 1, 1]}, r'max_lengths must be in 1 .. 9, the capacity, but got \[0\]'),
    ({'limits': [1, 1]}, r'max_lengths must be one per row, \(4,\), but got \(2,\)'),
    ({'beams': 0}, 'beams must be a whole number of at least 1, but got 0'),
    ({'beams': 2.0}, 'beams must be a whole number of at least 1, but got 2.0'),
    ({'alpha': -0.1}, 'alpha must be a finite number of at least 0, but got -0.1'),
    ({'alpha': float('nan')}, 'alpha must be a finite number of at least 0, but got nan'),
  ]:
    with pytest.raises(ValueError, match=told):
      find(search.beam_search, model, **{**good, **wrong})
