"""Charts over trees: the best tree (CKY), the log-partition, and the losses of a parser.

The score of a tree is the sum of the scores of its spans, each with one label. Trees are binary; a
node whose label is 0 is no constituent, and its score is 0, so that a tree with more than two parts
at a node is one of its binary forms with label 0 in between. The span of the whole sentence may not
have label 0.

Scores are [B, n, n, C], by the first word of a span, its last word, and its label. What stands
below the diagonal or behind the end of a sentence is not read, NaN included, and any finite number
at label 0 counts as 0. The labels of a tree are integers [B, n, n] at the same places, 0 where no
constituent is. All functions are pure, and work under jit and in any float type.

Labels come first: each span has its largest score, or the logarithm of the sum of exponentials.
Then one recursion works on [B, n, n]. It goes by width: of its n - 1 steps, one after the other,
each looks at all spans of a width with all their splits at once. It is written once, for two
semirings: `MAX`, in which a sum is the largest of its terms, and `LOG`. Its derivatives are an
outside pass: in `LOG` the probabilities of spans, in `MAX` the spans of the best tree. They need
no more memory than two charts, where derivatives of a loop store what each step has read.

A model can save most of its own time by two observations. Scores below the diagonal are never read;
and the hinge loss depends on the scores of the spans of two trees only, so derivatives with regard
to all others are 0: `spans` lists those of a tree.

Reference: Kitaev and Klein 2018, https://arxiv.org/abs/1805.01052; Stern, Andreas and Klein 2017,
https://arxiv.org/abs/1705.03919 (the loss).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray

# Stands for -inf inside: of infinities the gradient would be NaN where no tree is allowed. Sums of
# it over all spans of a long sentence are finite in float32.
_NEVER = -1e30

_ZERO = np.int32(0)  # where a slice begins, of the type of widths


class Semiring(NamedTuple):
  """How the ways to split a span are added up; a product is always a sum.

  Attributes:
    add: of the ways, along the first axis.
    shares: the derivatives of that sum by each way.
  """

  add: Callable[[jax.Array], jax.Array]
  shares: Callable[[jax.Array], jax.Array]


def _first_largest(ways: jax.Array) -> jax.Array:
  """1 at the first of the largest numbers along the first axis, 0 elsewhere."""
  order = jnp.arange(len(ways)).reshape(-1, *[1] * (ways.ndim - 1))
  first = jnp.where(ways == ways.max(0)[None], order, len(ways)).min(0)
  return (order == first[None]).astype(ways.dtype)


MAX = Semiring(lambda ways: ways.max(0), _first_largest)
LOG = Semiring(
  lambda ways: jax.nn.logsumexp(ways, axis=0), lambda ways: jax.nn.softmax(ways, axis=0)
)


def best(scores: Array, lengths: Array) -> tuple[jax.Array, jax.Array]:
  """The best tree of each sentence, and its score (CKY).

  Of equally good labels of a span it takes the smallest, and of equally good splits the first. The
  gradient of the score is 1 at the labels of the tree.

  Args:
    scores: [B, n, n, C]; at least one label besides 0.
    lengths: integers [B], from 0 to n.

  Returns:
    Labels int32 [B, n, n], and scores [B]. A sentence without words has no spans and score 0.
  """
  _check(scores, lengths)
  fixed = jax.lax.stop_gradient(scores)
  labels = _labels(fixed, _tree(_largest(fixed, lengths), lengths), lengths)
  return labels, _of_labels(scores, labels).sum((1, 2))


def log_partition(scores: Array, lengths: Array) -> jax.Array:
  """The logarithm of the sum of exp(score) over all binary trees with all their labels, [B].

  Its gradient by the scores is the probability that a tree has a span with a label.

  Args:
    scores: as of `best`.
    lengths: as of `best`.
  """
  _check(scores, lengths)
  scores = jnp.where(_inside(scores, lengths)[..., None], scores, 0)
  some = jax.nn.logsumexp(scores[..., 1:], axis=-1)
  values = jnp.where(_root(scores, lengths), some, jnp.logaddexp(some, 0))
  return _total(values, lengths, LOG)


def score(scores: Array, gold: Array, lengths: Array) -> jax.Array:
  """The score of a given tree of each sentence, [B].

  Args:
    scores: as of `best`.
    gold: integers [B, n, n], the labels of the tree; binary or not.
    lengths: as of `best`.
  """
  _check(scores, lengths, gold)
  return _of_labels(scores, _within(gold, lengths)).sum((1, 2))


def nll(scores: Array, gold: Array, lengths: Array) -> jax.Array:
  """Negative log-likelihood of given trees in nats, [B].

  The log-partition counts binary trees, and a tree with more than two parts at a node has several
  binary forms. The probability of a tree is the sum of those of its forms, by the same recursion
  over the trees that have all spans of the given one, and label 0 elsewhere. It is inf where there
  are none: where given spans cross one another, or the whole sentence has no label.

  Args:
    scores: as of `best`.
    gold: as of `score`.
    lengths: as of `best`.
  """
  _check(scores, lengths, gold)
  gold = _within(gold, lengths)
  crossed = _crossing((gold > 0).astype(scores.dtype)) > 0
  never = crossed | (_root(scores, lengths) & (gold == 0))
  values = jnp.where(never, _NEVER, _of_labels(scores, gold))
  forms = _total(values, lengths, LOG)
  return jnp.where(forms > _NEVER / 2, log_partition(scores, lengths) - forms, jnp.inf)


def hinge(scores: Array, gold: Array, lengths: Array) -> jax.Array:
  """The margin loss of given trees, [B]: 0 where no tree comes closer than the margin.

  A tree's distance from the given one is the number of its nodes, those without a label included,
  whose label is not the given one's at that span. The loss is the largest sum of score and distance
  of a tree, less the score of the given tree; never negative.

  Args:
    scores: as of `best`.
    gold: as of `score`.
    lengths: as of `best`.
  """
  _check(scores, lengths, gold)
  gold = _within(gold, lengths)
  fixed = jax.lax.stop_gradient(scores)
  cells = _tree(_largest(fixed, lengths, gold), lengths)
  labels = _labels(fixed, cells, lengths, gold)
  # The difference is taken span by span: where both trees are the same, it is 0 without rounding.
  apart = _of_labels(scores, labels) - _of_labels(scores, gold)
  return jax.nn.relu((apart + (cells & (labels != gold))).sum((1, 2)))


def margins(scores: Array, lengths: Array) -> jax.Array:
  """By how much each constituent of the best tree wins, [B, n, n]; 0 where there is none.

  It is the score of the best tree less that of the best tree which has not this span with this
  label; inf where every tree has it.

  Args:
    scores: as of `best`.
    lengths: as of `best`.
  """
  _check(scores, lengths)
  values = _largest(scores, lengths)
  labels, _ = best(scores, lengths)
  total, saved = _forward(values, lengths, MAX)
  if saved is None:
    return values

  def send(outer, value, one, other):
    return (outer + value)[None] + other, (outer + value)[None] + one

  outer = _outward(saved, jnp.zeros_like(total), send, jnp.maximum, _NEVER)
  # A tree that has not a span has another that crosses it: where none does, each split of a wider
  # span leaves it whole.
  crossed = total[:, None, None] - _crossing(_by_place(outer + saved.by_first))
  others = jnp.arange(1, scores.shape[-1])[None, None, None] != labels[..., None]
  relabelled = jnp.where(others, scores[..., 1:], -jnp.inf).max(-1)
  relabelled = jnp.where(_root(scores, lengths), relabelled, jnp.maximum(relabelled, 0))
  found = jnp.minimum(crossed, values - relabelled)
  found = jnp.where(found < -_NEVER / 2, jnp.maximum(found, 0), jnp.inf)  # rounding is below 0
  return jnp.where(labels > 0, found, 0)


def spans(labels: Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The constituents of each tree in a list: first words, last words and labels, each [B, 2n - 1].

  They come by their first word, then by their last. Behind them all three are 0.

  Args:
    labels: of trees, [B, n, n], as `best` gives them.
  """
  labels = jnp.asarray(labels)
  if labels.ndim != 3 or labels.shape[1] != labels.shape[2]:
    raise ValueError(f'labels must be [B, n, n], but got {list(labels.shape)}.')
  rows, words, _ = labels.shape
  if not words:
    none = jnp.zeros((rows, 0), jnp.int32)
    return none, none, none
  where, there = _listed(labels > 0)
  found = jnp.take_along_axis(labels.reshape(rows, -1), where, 1)
  listed = lambda found: jnp.where(there, found, 0)
  return listed(where // words), listed(where % words), listed(found)


def _largest(scores: Array, lengths: Array, gold: jax.Array | None = None) -> jax.Array:
  """The largest score of each span, [B, n, n]; with 1 added to labels that are not gold's."""
  # Sums, unlike choices (`where`) and slices, are fused with the maximum: nothing of the scores'
  # size is stored, which would take five times as long.
  first = jnp.where(jnp.arange(scores.shape[-1]) == 0, _NEVER, 0).astype(scores.dtype)
  scores += first[None, None, None]
  nothing = jnp.zeros((), scores.dtype)
  if gold is not None:
    labels = jnp.arange(scores.shape[-1])[None, None, None]
    scores += (labels != gold[..., None]).astype(scores.dtype)
    nothing = (gold != 0).astype(scores.dtype)
  some = scores.max(-1)
  some = jnp.where(_root(scores, lengths), some, jnp.maximum(some, nothing))
  return jnp.where(_inside(scores, lengths), some, 0)


def _labels(
  scores: Array, cells: jax.Array, lengths: Array, gold: jax.Array | None = None
) -> jax.Array:
  """The best label at each cell of a tree, int32 [B, n, n]; what `_largest` compares.

  Only the cells of the tree are looked at: `argmax` over all would take longer than the recursion.
  """
  rows, words, _, count = scores.shape
  if not words:
    return jnp.zeros((rows, 0, 0), jnp.int32)
  where, there = _listed(cells)
  at = lambda array: jnp.take_along_axis(array.reshape(rows, words**2, -1), where[..., None], 1)
  numbers = jnp.arange(count)[None, None]
  compared = jnp.where(numbers == 0, 0, at(jnp.asarray(scores)))
  if gold is not None:
    compared += (numbers != at(gold)).astype(compared.dtype)
  compared = jnp.where((numbers == 0) & at(_root(scores, lengths)), -jnp.inf, compared)
  found = jnp.where(there, compared.argmax(-1), 0).astype(jnp.int32)
  empty = jnp.zeros((rows, words**2), jnp.int32)
  # A cell is listed once, and behind the list stands the last one, to which 0 is added.
  return empty.at[jnp.arange(rows)[:, None], where].add(found).reshape(cells.shape)


def _listed(cells: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Places in n x n of the first 2n - 1 cells that are true, [B, 2n - 1], and which are there."""
  rows, words, _ = cells.shape
  count = jnp.cumsum(cells.reshape(rows, -1).astype(jnp.int32), axis=1)
  wanted = jnp.arange(1, 2 * words, dtype=jnp.int32)[None]
  where = jax.vmap(lambda count: jnp.searchsorted(count, wanted[0]))(count)
  return jnp.minimum(where, words**2 - 1), wanted <= count[:, -1:]


def _of_labels(scores: Array, labels: jax.Array) -> jax.Array:
  """The score of a label at each span, [B, n, n]; 0 where it is 0."""
  found = jnp.take_along_axis(jnp.asarray(scores), labels[..., None], -1)[..., 0]
  return jnp.where(labels > 0, found, 0)


def _crossing(values: jax.Array) -> jax.Array:
  """The largest number at a span that crosses each span, [B, n, n]; very low where none does.

  Two spans cross if they have words in common, and each has words that the other has not.
  """
  words = values.shape[1]
  upper = jnp.triu(jnp.ones((words, words), bool))[None]
  begins_before = _so_far(jnp.where(upper, _so_far(values, 1), _NEVER), 2)
  ends_behind = _so_far(jnp.where(upper, _so_far(values, 2, back=True), _NEVER), 1, back=True)
  return jnp.maximum(begins_before, ends_behind)


def _so_far(values: jax.Array, axis: int, back: bool = False) -> jax.Array:
  """The largest number before each place along an axis, or behind it; very low where none is."""
  pad, last = [(0, 0)] * values.ndim, values.shape[axis]
  pad[axis] = (0, 1) if back else (1, 0)
  wide = jnp.pad(values, pad, constant_values=_NEVER)
  wide = jax.lax.slice_in_dim(wide, int(back), last + int(back), axis=axis)
  return jax.lax.cummax(wide, axis, reverse=back)


def _tree(values: jax.Array, lengths: Array) -> jax.Array:
  """Which cells are nodes of the best tree, [B, n, n]."""
  rows = len(values)
  saved = _forward(values, lengths, MAX)[1]
  return _backward(MAX, saved, jnp.ones(rows, values.dtype))[0] > 0


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _total(values: jax.Array, lengths: Array, semiring: Semiring) -> jax.Array:
  """The sum over all binary trees of the sums of the values of their nodes, [B].

  Args:
    values: of spans, [B, n, n].
    lengths: integers [B].
    semiring: what a sum over trees is.
  """
  return _forward(values, lengths, semiring)[0]


class _Saved(NamedTuple):
  """A chart by width, for an outside pass.

  Attributes:
    values: of spans by width - 1, sentence, first word.
    by_first: their inside sums at the same places.
    by_last: the same by n - width, sentence, last word; there are twice as many rows and columns,
      so that a slice for any width stays within.
    lengths: of the sentences.
  """

  values: jax.Array
  by_first: jax.Array
  by_last: jax.Array
  lengths: jax.Array


def _forward(
  values: jax.Array, lengths: Array, semiring: Semiring
) -> tuple[jax.Array, _Saved | None]:
  """The inside pass: sums of all spans, narrow ones first."""
  rows, words, _ = values.shape
  if not words:
    return jnp.zeros(rows, values.dtype), None
  lengths, values = jnp.asarray(lengths), _by_width(values)
  by_first = jnp.full((words, rows, words), _NEVER, values.dtype).at[0].set(values[0])
  by_last = jnp.full((2 * words, rows, 2 * words), _NEVER, values.dtype)
  by_last = by_last.at[words - 1, :, :words].set(values[0])

  def step(chart, given):
    width, value = given
    by_first, by_last = chart
    sums = value + semiring.add(by_first[:-1] + _slice(by_last, _others(by_last, width)))
    sums = jnp.where(jnp.arange(words)[None] <= words - width, sums, _NEVER)[None]
    own = (words - width, _ZERO, width - 1)
    by_first = jax.lax.dynamic_update_slice(by_first, sums, (width - 1, _ZERO, _ZERO))
    return (by_first, jax.lax.dynamic_update_slice(by_last, sums, own)), None

  if words > 1:
    widths = jnp.arange(2, words + 1, dtype=jnp.int32)
    (by_first, by_last), _ = jax.lax.scan(step, (by_first, by_last), (widths, values[1:]))
  whole = by_first[jnp.maximum(lengths - 1, 0), jnp.arange(rows), 0]
  return jnp.where(lengths > 0, whole, 0), _Saved(values, by_first, by_last, lengths)


def _backward(
  semiring: Semiring, saved: _Saved | None, cotangent: jax.Array
) -> tuple[jax.Array, None]:
  """Derivatives of the sum by the values of all spans, [B, n, n]."""
  if saved is None:
    return jnp.zeros((len(cotangent), 0, 0), cotangent.dtype), None

  def send(grad, value, one, other):
    del value
    shares = grad[None] * semiring.shares(one + other)
    return shares, shares

  start = jnp.where(saved.lengths > 0, cotangent, 0)
  return _by_place(_outward(saved, start, send, jnp.add, 0.0)), None


_total.defvjp(_forward, _backward)


def _outward(
  saved: _Saved,
  start: jax.Array,
  send: Callable[..., tuple[jax.Array, jax.Array]],
  add: Callable[[jax.Array, jax.Array], jax.Array],
  nothing: float,
) -> jax.Array:
  """An outside pass: what each span has got from all wider ones, by width - 1, row, first word.

  Args:
    saved: the chart.
    start: what the whole sentence gets, [B].
    send: of what a span has got, its value, and the inside sums of both parts of each way to split
      it, by split, what either part gets.
    add: adds up what a span gets.
    nothing: what it does not change.
  """
  values, by_first, by_last, lengths = saved
  words, rows, _ = by_first.shape
  whole = jnp.maximum(lengths - 1, 0), jnp.arange(rows), 0
  got_first = jnp.full_like(by_first, nothing).at[whole].set(start)
  got_last = jnp.full_like(by_last, nothing)

  def step(got, given):
    width, value = given
    got_first, got_last = got
    own = (width - 1, _ZERO, _ZERO)
    span = jax.lax.dynamic_slice(got_last, (words - width, _ZERO, width - 1), (1, rows, words))
    span = add(span, jax.lax.dynamic_slice(got_first, own, (1, rows, words)))
    got_first = jax.lax.dynamic_update_slice(got_first, span, own)
    at = _others(by_last, width)
    to_one, to_other = send(span[0], value, by_first[:-1], _slice(by_last, at))
    got_first = got_first.at[:-1].set(add(got_first[:-1], to_one))
    to_other = add(_slice(got_last, at), to_other)
    return (got_first, jax.lax.dynamic_update_slice(got_last, to_other, at)), None

  if words > 1:
    widths = jnp.arange(2, words + 1, dtype=jnp.int32)
    (got_first, got_last), _ = jax.lax.scan(
      step, (got_first, got_last), (widths, values[1:]), reverse=True
    )
  return got_first.at[0].set(add(got_first[0], got_last[words - 1, :, :words]))


def _others(by_last: jax.Array, width: jax.Array) -> tuple[jax.Array, np.int32, jax.Array]:
  """Where a slice begins, in which the second parts of all spans of a width lie.

  Its rows are by the width of the first part, its columns by the first word of the span. Rows of
  first parts that leave nothing of the span, and columns behind the last span, hold `_NEVER`.
  """
  return len(by_last) // 2 - width + 1, _ZERO, width - 1


def _slice(by_last: jax.Array, at: tuple[jax.Array, np.int32, jax.Array]) -> jax.Array:
  """That slice, [n - 1, B, n]."""
  words = len(by_last) // 2
  return jax.lax.dynamic_slice(by_last, at, (words - 1, by_last.shape[1], words))


def _by_width(values: jax.Array) -> jax.Array:
  """Turns values by sentence, first and last word into those by width - 1, sentence, first word.

  Where a span would end behind the last word, there is 0.
  """
  rows, words, _ = values.shape
  # In rows twice as long, a place more in each row turns columns into diagonals.
  flat = jnp.pad(values, ((0, 0), (0, 0), (0, words))).reshape(rows, -1)
  flat = jnp.pad(flat, ((0, 0), (0, words)))
  return flat.reshape(rows, words, 2 * words + 1)[:, :, :words].transpose(2, 0, 1)


def _by_place(values: jax.Array) -> jax.Array:
  """The inverse of `_by_width`; 0 below the diagonal."""
  words, rows, _ = values.shape
  wide = jnp.pad(values.transpose(1, 2, 0), ((0, 0), (0, 0), (0, words + 1)))
  flat = wide.reshape(rows, -1)[:, : 2 * words**2]
  return flat.reshape(rows, words, 2 * words)[:, :, :words]


def _inside(scores: Array, lengths: Array) -> jax.Array:
  """Which cells are spans of their sentence, [B, n, n]."""
  places = jnp.arange(scores.shape[1])
  first, last = places[None, :, None], places[None, None]
  return (first <= last) & (last < jnp.asarray(lengths)[:, None, None])


def _root(scores: Array, lengths: Array) -> jax.Array:
  """Which cell is the whole sentence, [B, n, n]."""
  places = jnp.arange(scores.shape[1])
  first, last = places[None, :, None], places[None, None]
  return (first == 0) & (last == jnp.asarray(lengths)[:, None, None] - 1)


def _within(gold: Array, lengths: Array) -> jax.Array:
  """Labels at the spans of a sentence, 0 elsewhere."""
  return jnp.where(_inside(gold, lengths), gold, 0)


def _check(scores: Array, lengths: Array, gold: Array | None = None) -> None:
  """Refuses shapes that do not fit one another."""
  shape = list(scores.shape)
  if scores.ndim != 4 or shape[1] != shape[2] or shape[3] < 2:
    raise ValueError(f'scores must be [B, n, n, C] with C of at least 2, but got {shape}.')
  if lengths.shape != (shape[0],):
    raise ValueError(
      f'lengths must be {shape[:1]} for scores {shape}, but got {list(lengths.shape)}.'
    )
  if gold is not None and gold.shape != (*shape[:3],):
    raise ValueError(f'gold must be {shape[:3]} for scores {shape}, but got {list(gold.shape)}.')
