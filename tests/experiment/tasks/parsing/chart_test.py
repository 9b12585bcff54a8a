"""The chart against all trees one by one, against the authors' decoders, and at its borders."""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.experiment.tasks.parsing import chart
from tests.support.draws import DRAW
from tests.support.paths import load_golden

GOLDEN = load_golden('chart')
WIDTH, COUNT, LENGTHS = 7, 5, np.array([7, 0, 1, 4, 2, 3, 5, 6])
NEVER = -1e9  # labels that a row does not have


class Found(NamedTuple):
  labels: Any
  values: Any
  margins: Any
  scores: Any
  partitions: Any
  losses: Any
  hinges: Any
  grads: Any  # of the values, partitions, finite losses and hinges


@jax.jit
def _run(scores, gold, lengths):
  def summed(scores):
    labels, values = chart.best(scores, lengths)
    return values.sum(), (labels, values)

  def finite(scores):
    losses = chart.nll(scores, gold, lengths)
    return jnp.nan_to_num(losses, posinf=0).sum(), losses

  def both(f):
    def with_each(scores):
      each = f(scores)
      return each.sum(), each

    return with_each

  by = lambda f: jax.grad(f, has_aux=True)(scores)
  grads, found = zip(
    by(summed),
    by(both(lambda scores: chart.log_partition(scores, lengths))),
    by(finite),
    by(both(lambda scores: chart.hinge(scores, gold, lengths))),
    strict=True,
  )
  margins, given = chart.margins(scores, lengths), chart.score(scores, gold, lengths)
  return Found(*found[0], margins, given, *found[1:], grads)


def run(scores, gold, lengths=LENGTHS):
  """All that the chart says of a batch in float64, by one program for all tests."""
  with jax.enable_x64(True):
    return jax.device_get(_run(scores, gold, np.asarray(lengths)))


@pytest.fixture
def drawn():
  """Scores, NaN where nothing is read, and trees with nodes of several parts.

  No label of the whole sentence of 4 words is as good as none would be.
  """
  scores = DRAW.normal(size=(len(LENGTHS), WIDTH, WIDTH, COUNT))
  gold = np.full((len(LENGTHS), WIDTH, WIDTH), -7)
  for row, length in enumerate(LENGTHS):
    scores[row, :, :, labels_of(length) :] = NEVER
    gold[row, :length, :length] = 0
    if length:
      nodes = trees(0, length)[DRAW.integers(len(trees(0, length)))]
      for node in nodes:
        gold[row][node] = DRAW.integers(labels_of(length))
      gold[row][nodes[0]] = 1
  scores[3, 0, 3, 1:3] -= 3
  scores[unread(LENGTHS)] = np.nan
  return scores, gold


def unread(lengths):
  """Places below the diagonal, or behind the end of a sentence."""
  places = np.arange(WIDTH)
  below = np.broadcast_to(places[:, None] > places, (len(lengths), WIDTH, WIDTH))
  return below | (places >= np.asarray(lengths)[:, None])[:, None]


def labels_of(length):
  """How many labels are drawn, with 0: few in long sentences, as there are C^(2n - 1) ways."""
  return 2 if length > 5 else 3


def trees(begin, end):
  """All binary trees over words begin .. end - 1, as tuples of (first, last) in preorder."""
  if end - begin == 1:
    return [((begin, begin),)]
  return [
    ((begin, end - 1), *one, *other)
    for middle in range(begin + 1, end)
    for one in trees(begin, middle)
    for other in trees(middle, end)
  ]


class Ways(NamedTuple):
  """All trees of a sentence with all their labels.

  Attributes:
    nodes: places [N, 2n - 1, 2] of the nodes of each.
    labels: [N, 2n - 1].
    scores: [N].
    distance: nodes that have not gold's label, [N].
    is_gold: whether its constituents are gold's, [N].
  """

  nodes: np.ndarray
  labels: np.ndarray
  scores: np.ndarray
  distance: np.ndarray
  is_gold: np.ndarray


def ways(scores, gold, length):
  """Each tree with each label at each node, by itself."""
  labels = np.array([*itertools.product(range(labels_of(length)), repeat=2 * length - 1)])
  labels = labels[labels[:, 0] > 0]
  zero = np.where(np.arange(COUNT) == 0, 0, scores)
  every = []
  for nodes in map(np.array, trees(0, length)):
    first, last = nodes.T
    same = labels == gold[first, last]
    has_all = (labels > 0).sum(1) == (gold[:length, :length] > 0).sum()
    every.append(
      (
        np.broadcast_to(nodes, (*labels.shape, 2)),
        labels,
        zero[first, last, labels].sum(1),
        (~same).sum(1),
        same.all(1) & has_all,
      )
    )
  return Ways(*map(np.concatenate, zip(*every, strict=True)))


def log_sum(numbers):
  return numbers.max() + np.log(np.exp(numbers - numbers.max()).sum())


def counted(all_ways, weights):
  """How often a constituent is in trees of the given weights, [W, W, C]; labels of 0 are none."""
  counts = np.zeros((WIDTH, WIDTH, COUNT))
  where = weights > 0
  first, last = all_ways.nodes[where].reshape(-1, 2).T
  shares = np.repeat(weights[where], all_ways.labels.shape[1])
  np.add.at(counts, (first, last, all_ways.labels[where].ravel()), shares)
  return np.where(np.arange(COUNT) == 0, 0, counts)


def test_values_and_gradients_are_those_of_all_trees_up_to_seven_words(drawn):
  scores, gold = drawn
  found = run(*drawn)
  near = lambda one, other: np.testing.assert_allclose(one, other, atol=1e-11)
  for row, length in enumerate(LENGTHS):
    if not length:
      continue
    every = ways(scores[row], gold[row], length)
    best, partition = every.scores.argmax(), log_sum(every.scores)
    the_best = counted(every, np.arange(len(every.scores)) == best)
    np.testing.assert_array_equal(found.labels[row], the_best.argmax(-1))
    near(found.values[row], every.scores[best])
    near(found.grads[0][row], the_best)
    chances = np.exp(every.scores - partition)
    near(found.partitions[row], partition)
    near(found.grads[1][row], counted(every, chances))
    near(found.scores[row], every.scores[every.is_gold][0])
    forms = log_sum(every.scores[every.is_gold])
    near(found.losses[row], partition - forms)
    within = np.where(every.is_gold, np.exp(every.scores - forms), 0)
    near(found.grads[2][row], counted(every, chances) - counted(every, within))
    augmented = every.scores + every.distance
    near(found.hinges[row], augmented.max() - found.scores[row])
    violating = counted(every, np.arange(len(augmented)) == augmented.argmax())
    given = counted(every, np.arange(len(augmented)) == every.is_gold.argmax())
    near(found.grads[3][row], violating - given)


def test_a_margin_is_what_the_best_tree_without_the_constituent_loses(drawn):
  scores, gold = drawn
  found = run(*drawn)
  for row, length in enumerate(LENGTHS):
    np.testing.assert_array_equal(found.margins[row] > 0, found.labels[row] > 0)
    if not length:
      continue
    every = ways(scores[row], gold[row], length)
    for place in zip(*np.nonzero(found.labels[row]), strict=True):
      has_it = ((every.nodes == place).all(-1) & (every.labels == found.labels[row][place])).any(1)
      without = every.scores[~has_it].max(initial=-np.inf)
      if without < NEVER / 2 or not (~has_it).any():
        assert found.margins[row][place] > -NEVER / 2
      else:
        np.testing.assert_allclose(
          found.margins[row][place], every.scores.max() - without, atol=1e-11
        )


def test_the_gradient_of_the_loss_is_its_finite_difference(drawn):
  scores, gold = np.nan_to_num(drawn[0]), drawn[1]
  way = DRAW.normal(size=scores.shape)
  found, above, below = (run(scores + by * way, gold) for by in (0, 1e-5, -1e-5))
  for grads, name in zip(found.grads, ('values', 'partitions', 'losses', 'hinges'), strict=True):
    slope = (getattr(above, name).sum() - getattr(below, name).sum()) / 2e-5
    np.testing.assert_allclose((grads * way).sum(), slope, rtol=1e-7, err_msg=name)


def spans_of(given, shape=(WIDTH, WIDTH)):
  """Spans between fenceposts with labels, as a chart."""
  made = np.zeros(shape, int)
  for begin, end, label in given:
    made[begin, end - 1] = label
  return made


def test_the_authors_trees_scores_and_margin_losses_are_found():
  scores = np.full((8, WIDTH, WIDTH, COUNT), NEVER)
  gold, best, values, lengths = np.zeros((8, WIDTH, WIDTH), int), [], [], []
  for row, length in enumerate((1, 2, 3, 5, 6)):
    read = lambda name, length=length: GOLDEN[f'cky_n{length}_{name}']
    scores[row, :length, :length] = read('scores') - read('scores')[:, :, :1]
    lengths.append(length)
    best.append(spans_of(read('spans_a_b_label_INDEP')))
    np.testing.assert_array_equal(best[-1][:length, :length], read('chart_torchstruct'))
    values.append(read('best_score'))
  for row, length in enumerate((1, 5), 5):
    read = lambda name, length=length: GOLDEN[f'y2018_n{length}_{name}']
    scores[row, :length, :length, :4] = read('scores')[:-1, 1:]
    lengths.append(length)
    gold[row] = spans_of(read('gold_a_b_label'))
    best.append(spans_of(read('test_spans_a_b_label')))
    values.append(read('test_score'))
  found = run(scores, gold, [*lengths, 0])
  np.testing.assert_array_equal(found.labels[:7], best)
  np.testing.assert_allclose(found.values[:7], values, rtol=1e-6)
  np.testing.assert_allclose(found.values[:5], values[:5], rtol=1e-12)
  for row, length in enumerate((1, 5), 5):
    read = lambda name, length=length: GOLDEN[f'y2018_n{length}_{name}']
    np.testing.assert_allclose(found.hinges[row], read('hinge_loss'), rtol=1e-6)
    np.testing.assert_allclose(found.scores[row], read('gold_score'), rtol=1e-6)
    augmented = spans_of(read('augmented_spans_a_b_label'))
    np.testing.assert_array_equal(
      found.grads[3][row].sum(-1), (augmented > 0).astype(int) - (gold[row] > 0)
    )


def test_of_equally_good_labels_and_splits_the_first_is_taken():
  found = run(np.zeros((8, WIDTH, WIDTH, COUNT)), np.zeros((8, WIDTH, WIDTH), int))
  expected = np.zeros((8, WIDTH, WIDTH), int)
  for row, length in enumerate(LENGTHS):
    expected[row, 0, max(length - 1, 0)] = min(length, 1)
  np.testing.assert_array_equal(found.labels, expected)
  scores = np.where(np.arange(COUNT) == 2, 1.0, 0) * np.ones((8, WIDTH, WIDTH, 1))
  found = run(scores, expected)
  right_branching = [spans_of([*((b, 7, 2) for b in range(7)), *((b, b + 1, 2) for b in range(7))])]
  np.testing.assert_array_equal(found.labels[:1], right_branching)


def test_the_hinge_is_zero_exactly_where_the_given_tree_wins_by_the_margin(drawn):
  scores, gold = drawn
  chosen = (np.arange(COUNT) == gold[..., None]) & (gold > 0)[..., None]
  others = (gold == 0)[..., None] & (np.arange(COUNT) > 0)
  wins = np.where(chosen, scores + 20, np.where(others, scores - 20, scores))
  found = run(wins, gold)
  np.testing.assert_array_equal(found.hinges, 0)
  np.testing.assert_array_equal(found.grads[3], 0)
  np.testing.assert_array_equal(found.labels, np.where(unread(LENGTHS), 0, gold))
  # One wrong label at a word, whose score comes within the margin by 1/4.
  word = gold[0, 2, 2]
  other = np.arange(1, COUNT)[np.arange(1, COUNT) != word][-1]
  wins[0, 2, 2, other] = (wins[0, 2, 2, word] if word else 0) - 0.75
  found = run(wins, gold)
  np.testing.assert_allclose(found.hinges, np.where(LENGTHS == 7, 0.25, 0), atol=1e-12)
  wins[0, 2, 2, other] -= 0.25
  np.testing.assert_allclose(run(wins, gold).hinges, 0, atol=1e-12)


def test_a_constituent_that_is_left_out_counts_in_the_choice_of_the_violating_tree(drawn):
  scores, gold = drawn
  gold[5, :3, :3] = spans_of([(0, 3, 1), (0, 2, 1)])[:3, :3]
  scores[5, :3, :3] = NEVER
  scores[5, 0, 2, 1], scores[5, 0, 1, 1], scores[5, 1, 2, 1] = 0, 0, -0.5
  # Without a label at the first two words there is 1, with one at the last two 1 - 0.5.
  np.testing.assert_allclose(run(scores, gold).hinges[5], 1)


def test_neither_other_sentences_nor_what_pads_a_sentence_changes_what_is_found(drawn):
  scores, gold = drawn
  found = run(*drawn)
  turned = [3, 2, 1, 0, 7, 6, 5, 4]
  padded = np.where(unread(LENGTHS)[..., None], 1e3, scores)
  padded[..., 0] = 5  # label 0 counts as 0
  near = lambda one, other: np.testing.assert_allclose(one, other, atol=1e-11)
  jax.tree.map(
    lambda one, other: near(one[turned], other),
    found,
    run(padded[turned], gold[turned], LENGTHS[turned]),
  )
  alone = run(padded, gold, np.where(LENGTHS == 4, 4, 0))
  jax.tree.map(lambda one, other: near(one[3], other[3]), found, alone)
  for grad in found.grads:
    np.testing.assert_array_equal(grad[unread(LENGTHS)], 0)


def test_a_sentence_without_words_has_no_spans_and_score_0(drawn):
  empty = run(drawn[0] * np.nan, drawn[1], np.zeros(8, int))
  for part in jax.tree.leaves(empty):
    np.testing.assert_array_equal(part, np.zeros_like(part))
  no_width = run(np.zeros((2, 0, 0, 3)), np.zeros((2, 0, 0), int), np.zeros(2, int))
  assert no_width.labels.shape == no_width.margins.shape == (2, 0, 0)
  for part in (no_width.values, no_width.partitions, no_width.losses, no_width.hinges):
    assert part.tolist() == [0, 0]


def test_trees_that_no_chart_has_have_an_infinite_loss_without_nan(drawn):
  scores, gold = drawn
  gold[3, :4, :4] = spans_of([(0, 4, 1), (0, 2, 1), (1, 3, 1)])[:4, :4]
  gold[6, 0, 4] = 0  # the whole sentence
  found = run(scores, gold)
  np.testing.assert_array_equal(np.isinf(found.losses), np.isin(np.arange(8), [3, 6]))
  assert all(np.isfinite(grad).all() for grad in found.grads)


def test_constituents_are_listed_by_their_places():
  labels = np.stack([spans_of([(0, 7, 3), (2, 4, 1), (0, 1, 2)]), np.zeros((7, 7), int)])
  first, last, which = chart.spans(labels)
  assert first.shape == last.shape == which.shape == (2, 13)
  listed = np.stack([first, last, which], -1)
  assert listed[0, :3].tolist() == [[0, 0, 2], [0, 6, 3], [2, 3, 1]]
  assert not listed[0, 3:].any()
  assert not listed[1].any()
  assert [part.shape for part in chart.spans(np.zeros((2, 0, 0), int))] == [(2, 0)] * 3
  with pytest.raises(ValueError, match=r'labels must be \[B, n, n\], but got \[7, 6\]'):
    chart.spans(labels[0, :, :6])


def test_250_words_neither_overflow_nor_store_what_each_step_reads():
  words, label = 250, 40.0
  scores = jnp.full((1, words, words, 3), label)
  total = lambda scores: chart.log_partition(scores, jnp.array([words]))[0]
  compiled = jax.jit(jax.value_and_grad(total)).lower(scores).compile()
  partition, marginals = compiled(scores)
  # All binary trees are alike; there are as many as Catalan's number.
  shapes = math.lgamma(2 * words - 1) - math.lgamma(words) - math.lgamma(words + 1)
  both = label + math.log(2)
  np.testing.assert_allclose(partition, shapes + (2 * words - 1) * both, rtol=1e-6)
  np.testing.assert_allclose(marginals.sum(), 2 * words - 1, rtol=1e-4)
  assert compiled.memory_analysis().temp_size_in_bytes < 2 * words**3  # a float32 takes 4


def test_shapes_that_do_not_fit_are_refused():
  scores, lengths = jnp.zeros((2, 4, 4, 3)), jnp.ones(2, jnp.int32)
  refused = r'scores must be \[B, n, n, C\] with C of at least 2, but got '
  with pytest.raises(ValueError, match=refused + r'\[4, 4, 3\]'):
    chart.best(scores[0], lengths)
  with pytest.raises(ValueError, match=refused + r'\[2, 4, 3, 3\]'):
    chart.margins(scores[:, :, :3], lengths)
  with pytest.raises(ValueError, match=refused + r'\[2, 4, 4, 1\]'):
    chart.log_partition(scores[..., :1], lengths)
  with pytest.raises(ValueError, match=r'lengths must be \[2\] for scores \[2, 4, 4, 3\], but got'):
    chart.best(scores, jnp.ones(3, jnp.int32))
  for loss in (chart.nll, chart.hinge, chart.score):
    with pytest.raises(ValueError, match=r'gold must be \[2, 4, 4\] .* but got \[2, 4, 5\]'):
      loss(scores, jnp.zeros((2, 4, 5), jnp.int32), lengths)
