"""The CRF against sums over all sequences of tags, against fastNLP's, and at its borders."""

import itertools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.experiment.tasks.tagging import crf
from tests.support.draws import DRAW
from tests.support.paths import load_golden

GOLDEN = load_golden('crf')
NAMES = ['O', 'B-X', 'I-X', 'E-X', 'S-X']
WIDTH, LENGTHS = 5, np.array([5, 0, 1, 4, 2])


ANY = crf.Transitions(*(np.ones(shape, bool) for shape in ((5, 5), 5, 5)))


class Found(NamedTuple):
  losses: Any
  partitions: Any
  scores: Any
  best: Any
  best_scores: Any
  marginals: Any  # of the emissions, and of the transitions
  paired: Any  # partitions and marginals by matrices in pairs
  grads: Any  # of the losses that are finite


@jax.jit
def _run(emissions, transitions, allowed, tags, lengths):
  def partition(emissions, transitions, parallel):
    used = crf.constrain(transitions, allowed)
    found = crf.log_partition(emissions, used, lengths, parallel=parallel)
    return found.sum(), found

  def loss(emissions, transitions):
    found = crf.nll(emissions, crf.constrain(transitions, allowed), tags, lengths)
    return jnp.where(jnp.isfinite(found), found, 0).sum(), found

  used = crf.constrain(transitions, allowed)
  by = lambda f: jax.grad(f, (0, 1), has_aux=True)(emissions, transitions)
  grads, losses = by(loss)
  marginals, partitions = by(lambda *given: partition(*given, False))
  paired = by(lambda *given: partition(*given, True))
  best, best_scores = crf.viterbi(emissions, used, lengths)
  scores = crf.score(emissions, used, tags, lengths)
  return Found(losses, partitions, scores, best, best_scores, marginals, paired, grads)


def run(emissions, transitions, tags, lengths, allowed=ANY):
  """All that the CRF says of a batch in float64, by one program for all tests."""
  with jax.enable_x64(True):
    return jax.device_get(_run(emissions, transitions, allowed, tags, np.asarray(lengths)))


@pytest.fixture
def drawn():
  """Emissions, NaN behind the ends of sentences, transitions, and tags, -1 behind the ends."""
  emissions = DRAW.normal(size=(len(LENGTHS), WIDTH, len(NAMES)))
  tags = DRAW.integers(0, 5, (len(LENGTHS), WIDTH))
  behind = np.arange(WIDTH) >= LENGTHS[:, None]
  emissions[behind], tags[behind] = np.nan, -1
  return emissions, crf.Transitions(*(DRAW.normal(size=size) for size in ((5, 5), 5, 5))), tags


def golden(name):
  """Emissions, transitions and tags of a file, with rows, tokens and tags of no use as in `drawn`.

  The tags that were added may not be used.
  """
  found = GOLDEN[f'{name}_emissions']
  rows, width, count = found.shape
  emissions, tags = np.full((5, 5, 5), np.nan), np.zeros((5, 5), int)
  emissions[:, :, count:] = 0
  emissions[:rows, :width, :count], tags[:rows, :width] = found, GOLDEN[f'{name}_tags']
  transitions, allowed = [], []
  for part in ('trans_from_to', 'start', 'end'):
    pad = [(0, 5 - count)] * GOLDEN[f'{name}_{part}'].ndim
    transitions.append(np.pad(GOLDEN[f'{name}_{part}'], pad))
    allowed.append(
      np.pad(np.ones_like(transitions[-1], bool)[tuple(slice(count) for _ in pad)], pad)
    )
  return emissions, crf.Transitions(*transitions), tags, crf.Transitions(*allowed)


def paths(emissions, transitions, length):
  """All sequences of tags of one sentence with their scores, by the formula."""
  between, start, end = transitions
  found = {}
  for tags in itertools.product(range(emissions.shape[-1]), repeat=length):
    number = start[tags[0]] + end[tags[-1]] if tags else 0.0
    number += sum(emissions[place, tag] for place, tag in enumerate(tags))
    number += sum(between[pair] for pair in itertools.pairwise(tags))
    found[tags] = number
  return found


def is_legal(tags):
  """By hand: an entity is B, any number of I, E, or else S."""
  word = ''.join(NAMES[tag][0] for tag in tags)
  while word:
    inside = word[1:].lstrip('I')
    if word[0] in 'OS':
      word = word[1:]
    elif word[0] == 'B' and inside[:1] == 'E':
      word = inside[1:]
    else:
      return False
  return True


def log_sum(numbers):
  numbers = np.array([*numbers])
  return numbers.max() + np.log(np.exp(numbers - numbers.max()).sum())


def test_fastnlps_losses_gradients_and_best_tags_are_found():
  emissions, transitions, tags, _ = golden('fastnlp')
  lengths = [*GOLDEN['fastnlp_mask'].sum(1), 0, 0]
  found = run(emissions, transitions, tags, lengths)
  np.testing.assert_allclose(found.losses[:3], GOLDEN['fastnlp_nll'], rtol=1e-12)
  np.testing.assert_allclose(found.grads[0][:3], GOLDEN['fastnlp_grad_emissions'], atol=1e-12)
  np.testing.assert_allclose(found.grads[1].between, GOLDEN['fastnlp_grad_trans'], atol=1e-12)
  np.testing.assert_array_equal(found.best[:3], GOLDEN['fastnlp_viterbi_path'])
  np.testing.assert_allclose(found.best_scores[:3], GOLDEN['fastnlp_viterbi_score'], rtol=1e-12)


def test_independent_sums_over_all_paths_are_found():
  emissions, transitions, tags, allowed = golden('paths')
  found = run(emissions, transitions, tags, [*GOLDEN['paths_lengths'], 0, 0, 0], allowed)
  np.testing.assert_allclose(found.losses[:2], GOLDEN['paths_nll'], rtol=1e-12)
  np.testing.assert_array_equal(found.best[:2, :4], GOLDEN['paths_best_path'])
  np.testing.assert_allclose(found.best_scores[:2], GOLDEN['paths_best_score'], rtol=1e-12)


@pytest.mark.parametrize('constrained', [False, True])
def test_partition_best_tags_and_gradients_are_those_of_all_paths(drawn, constrained):
  emissions, transitions, tags = drawn
  found = run(*drawn, LENGTHS, crf.legal(NAMES) if constrained else ANY)
  expected = [np.zeros((5, 5)), np.zeros(5), np.zeros(5)]
  for row, length in enumerate(LENGTHS):
    each = paths(emissions[row], transitions, length)
    given = each[tuple(tags[row, :length])]
    each = {tags: it for tags, it in each.items() if is_legal(tags) or not constrained}
    partition = log_sum(each.values())
    np.testing.assert_allclose(found.partitions[row], partition, atol=1e-12)
    likeliest = max(each, key=each.get)
    assert found.best[row].tolist() == [*likeliest] + [-1] * (WIDTH - length)
    np.testing.assert_allclose(found.best_scores[row], each[likeliest], atol=1e-12)
    if tuple(tags[row, :length]) in each:
      np.testing.assert_allclose(found.scores[row], given, atol=1e-12)
      np.testing.assert_allclose(found.losses[row], partition - given, atol=1e-12)
    else:
      assert found.losses[row] == np.inf
    counts = np.zeros((WIDTH, 5))
    for tags_, it in each.items():
      chance = np.exp(it - partition)
      counts[np.arange(length), tags_] += chance
      for pair in itertools.pairwise(tags_):
        expected[0][pair] += chance
      if tags_:
        expected[1][tags_[0]] += chance
        expected[2][tags_[-1]] += chance
    np.testing.assert_allclose(found.marginals[0][row], counts, atol=1e-12)
    np.testing.assert_allclose(
      found.marginals[0][row].sum(-1), np.arange(WIDTH) < length, atol=1e-12
    )
  for part, counts in zip(found.marginals[1], expected, strict=True):
    np.testing.assert_allclose(part, counts, atol=1e-12)
  same = lambda one, other: np.testing.assert_allclose(one, other, atol=1e-12)
  jax.tree.map(same, found.paired, (found.marginals, found.partitions))


def test_gradients_of_the_loss_are_its_finite_differences(drawn):
  emissions, transitions, tags = drawn
  given = np.nan_to_num(emissions), transitions
  way = jax.tree.map(lambda array: DRAW.normal(size=array.shape), given)
  moved = lambda by: jax.tree.map(lambda at, to: at + by * to, given, way)
  loss = lambda by: run(*moved(by), tags, LENGTHS).losses.sum()
  slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
  grads = run(*given, tags, LENGTHS).grads
  inner = sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), grads, way)))
  np.testing.assert_allclose(inner, slope, rtol=1e-7)


def test_bioes_transitions_are_fastnlps_and_stay_within_a_type():
  allowed = crf.legal(GOLDEN['bioes_idx2tag'].tolist())
  pairs = {tuple(pair) for pair in np.argwhere(allowed.between).tolist()}
  pairs |= {(5, tag) for tag in np.flatnonzero(allowed.start).tolist()}
  pairs |= {(tag, 6) for tag in np.flatnonzero(allowed.end).tolist()}
  assert pairs == {tuple(pair) for pair in GOLDEN['bioes_allowed_transitions'].tolist()}
  two = crf.legal(['B-X', 'E-X', 'E-Y', 'B-X-Z', 'O'])
  assert two.between[0].tolist() == [False, True, False, False, False]
  with pytest.raises(ValueError, match=r"must be O or begin with B-, I-, E- or S-, but got 'M-X'"):
    crf.legal(['O', 'M-X'])


def test_where_no_sequence_is_legal_the_loss_is_infinite_and_its_gradient_zero():
  never = crf.Transitions(jnp.full((2, 2), -jnp.inf), jnp.zeros(2), jnp.zeros(2))
  loss = lambda emissions: crf.nll(emissions, never, jnp.zeros((1, 3), int), jnp.array([3]))[0]
  found, grad = jax.value_and_grad(loss)(jnp.ones((1, 3, 2)))
  assert found == jnp.inf
  np.testing.assert_array_equal(grad, 0)


def test_constrained_losses_have_no_nan_and_illegal_tags_an_infinite_one(drawn):
  emissions, transitions, _ = drawn
  tags = np.array([[1, 2, 2, 3, 4], [0] * 5, [4] * 5, [0, 1, 3, 0, 2], [2, 3, 0, 0, 0]])
  found = run(emissions, transitions, tags, LENGTHS, crf.legal(NAMES))
  assert np.isfinite(found.losses[:4]).all()
  assert (found.losses[:4] >= 0).all()
  assert found.losses[4] == np.inf
  chex.assert_tree_all_finite(found.grads)
  assert np.abs(found.grads[0]).max() > 0.1
  # Where nothing is allowed, the sum is empty.
  nothing = jax.tree.map(np.zeros_like, ANY)
  found = run(emissions, transitions, tags, LENGTHS, nothing)
  np.testing.assert_array_equal(found.partitions, np.where(LENGTHS, -np.inf, 0))
  np.testing.assert_array_equal(found.paired[1], found.partitions)
  for grad in jax.tree.leaves((found.marginals, found.paired[0])):
    np.testing.assert_array_equal(grad, 0)


def test_a_sentence_in_a_batch_is_the_sentence_alone_whatever_pads_it(drawn):
  emissions, transitions, tags = drawn
  found = run(*drawn, LENGTHS)
  alone = run(emissions[3:4, :4], transitions, tags[3:4, :4], LENGTHS[3:4])
  for name in ('losses', 'partitions', 'scores', 'best_scores'):
    np.testing.assert_allclose(getattr(found, name)[3], getattr(alone, name)[0], rtol=1e-12)
  np.testing.assert_array_equal(found.best[3, :4], alone.best[0])
  np.testing.assert_allclose(found.marginals[0][3, :4], alone.marginals[0][0], rtol=1e-12)


def test_sentences_without_tokens_have_one_sequence_of_score_0(drawn):
  for width in (0, WIDTH):
    found = run(np.full((5, width, 5), np.nan), drawn[1], np.full((5, width), -1), np.zeros(5, int))
    for numbers in (found.losses, found.partitions, found.scores, found.best_scores):
      np.testing.assert_array_equal(numbers, np.zeros(5))
    np.testing.assert_array_equal(found.paired[1], np.zeros(5))
    np.testing.assert_array_equal(found.best, np.full((5, width), -1))
    for grad in jax.tree.leaves((found.grads, found.marginals)):
      np.testing.assert_array_equal(grad, np.zeros_like(grad))


def test_a_row_of_one_token_is_its_sum(drawn):
  emissions, transitions, tags = drawn
  found = run(emissions[:1, :1], transitions, tags[:1, :1], [1])
  numbers = emissions[0, 0] + transitions.start + transitions.end
  np.testing.assert_allclose(found.partitions[0], log_sum(numbers), rtol=1e-12)
  np.testing.assert_allclose(found.paired[1][0], log_sum(numbers), rtol=1e-12)
  assert found.best.tolist() == [[numbers.argmax()]]


def test_ten_thousand_tokens_neither_overflow_nor_store_a_matrix_each():
  width, tags = 10_000, 17
  emissions = jnp.asarray(DRAW.normal(size=(1, width, tags)) + 50, jnp.float32)
  transitions = crf.Transitions(jnp.full((tags, tags), 50.0), jnp.zeros(tags), jnp.zeros(tags))
  lengths = jnp.array([width])
  total = lambda emissions: crf.log_partition(emissions, transitions, lengths)[0]
  compiled = jax.jit(jax.value_and_grad(total)).lower(emissions).compile()
  stored = compiled.memory_analysis().temp_size_in_bytes
  assert stored < 8 * emissions.nbytes  # a matrix for each token would be 17 times as much
  partition, marginals = compiled(emissions)
  # All transitions are alike, so every token is by itself.
  steps = 50 * (width - 1)
  expected = steps + sum(log_sum(token) for token in np.asarray(emissions[0], np.float64))
  np.testing.assert_allclose(partition, expected, rtol=1e-6)
  np.testing.assert_allclose(marginals, jax.nn.softmax(emissions, axis=-1), atol=1e-5)
  best, score = jax.jit(crf.viterbi)(emissions, transitions, lengths)
  np.testing.assert_array_equal(best, emissions.argmax(-1))
  largest = np.asarray(emissions, np.float64).max(-1).sum()
  np.testing.assert_allclose(score[0], steps + largest, rtol=1e-6)
  # The loss keeps its digits where emissions are large and alike.
  flat = crf.Transitions(*map(jnp.zeros, ((tags, tags), tags, tags)))
  loss = jax.jit(crf.nll)(emissions + 1000, flat, best, lengths)[0]
  emissions = np.asarray(emissions + 1000, np.float64)
  exact = sum(log_sum(token) - token.max() for token in emissions[0])
  np.testing.assert_allclose(loss, exact, rtol=1e-5)


def test_shapes_that_do_not_fit_are_refused():
  fine = crf.Transitions(*map(np.zeros, ((3, 3), 3, 3)))
  emissions, lengths = jnp.zeros((2, 4, 3)), jnp.ones(2, jnp.int32)
  with pytest.raises(ValueError, match=r'emissions must be \[B, T, C\], but got \[4, 3\]'):
    crf.log_partition(emissions[0], fine, lengths)
  with pytest.raises(ValueError, match=r'lengths must be \[2\] for emissions \[2, 4, 3\], but got'):
    crf.viterbi(emissions, fine, jnp.ones(3, jnp.int32))
  with pytest.raises(ValueError, match=r'tags must be \[2, 4\] .* but got \[2, 5\]'):
    crf.nll(emissions, fine, jnp.zeros((2, 5), jnp.int32), lengths)
  with pytest.raises(ValueError, match=r'transitions.end must be \[3\] .* but got \[4\]'):
    crf.log_partition(emissions, fine._replace(end=np.zeros(4)), lengths)
