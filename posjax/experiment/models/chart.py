"""Charts over trees: the best tree (CKY), the log-partition, and the losses of a parser.

The score of a tree is the sum of the scores of its spans, each with one label. Trees are binary; a
node whose label is 0 is no constituent, and its score is 0, so that a tree with more than two parts
at a node is one of its binary forms with label 0 in between. The span of the whole sentence may not
have label 0.

Scores are [B, n, n, C], by the first word of a span, its last word, and its label. What stands at
label 0, below the diagonal, or behind the end of a sentence is not read, NaN included. The labels
of a tree are integers [B, n, n] at the same places, 0 where no constituent is. All functions are
pure, and work under jit and in any float type.

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
import itertools
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

  Of equally good labels of a span it takes the smallest, and of equally good splits the first.

  Args:
    scores: [B, n, n, C]; at least one label besides 0.
    lengths: integers [B], from 0 to n.

  Returns:
    Labels int32 [B, n, n], and scores [B]. A sentence without words has no spans and score 0.
  """
  _check(scores, lengths)
  values = _largest(scores, lengths)
  cells = _tree(values, lengths)
  return _labels(scores, cells, lengths), _total(values, lengths, MAX)


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
  never = (gold == 0) & (crossed | _root(scores, lengths))
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
    return (jnp.zeros((rows, 0), jnp.int32),) * 3
  where, there = _listed(labels > 0)
  found = jnp.take_along_axis(labels.reshape(rows, -1), where, 1)
  return tuple(jnp.where(there, it, 0) for it in (where // words, where % words, found))


def _largest(scores: Array, lengths: Array, gold: jax.Array | None = None) -> jax.Array:
  """The largest score of each span, [B, n, n]; with 1 added to labels that are not gold's."""
  scores = jnp.where(_inside(scores, lengths)[..., None], scores, 0)
  if gold is not None:
    scores += (jnp.arange(scores.shape[-1])[None, None, None] != gold[..., None]).astype(
      scores.dtype
    )
  nothing = jnp.zeros((), scores.dtype) if gold is None else (gold != 0).astype(scores.dtype)
  some = scores[..., 1:].max(-1)
  return jnp.where(_root(scores, lengths), some, jnp.maximum(some, nothing))


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


def _crossing(numbers: jax.Array) -> jax.Array:
  """The largest number at a span that crosses each span, [B, n, n]; very low where none does.

  Two spans cross if they have words in common, and each has words that the other has not.
  """
  words = numbers.shape[1]
  upper = jnp.triu(jnp.ones((words, words), bool))[None]
  begins_before = _so_far(jnp.where(upper, _so_far(numbers, 1), _NEVER), 2)
  ends_behind = _so_far(jnp.where(upper, _so_far(numbers, 2, back=True), _NEVER), 1, back=True)
  return jnp.maximum(begins_before, ends_behind)


def _so_far(numbers: jax.Array, axis: int, back: bool = False) -> jax.Array:
  """The largest number before each place along an axis, or behind it; very low where none is."""
  pad, last = [(0, 0)] * numbers.ndim, numbers.shape[axis]
  pad[axis] = (0, 1) if back else (1, 0)
  wide = jnp.pad(numbers, pad, constant_values=_NEVER)
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
  """A chart by width, for the outside pass.

  Attributes:
    by_first: inside sums of spans by width - 1, sentence, first word.
    by_last: the same by n - width, sentence, last word, and more rows and columns that are never.
    lengths: of the sentences.
  """

  by_first: jax.Array
  by_last: jax.Array
  lengths: jax.Array


class _Block(NamedTuple):
  """Widths that one loop goes through: arrays have one size, so it is chosen for the largest.

  Attributes:
    widths: the narrowest and one more than the widest.
    splits: how many ways there are to split the widest.
    firsts: how many spans of the narrowest there are.
  """

  widths: tuple[int, int]
  splits: int
  firsts: int


_BLOCKS = 6  # With one, a loop would do six times the work that there is; with six, twice.


def _blocks(words: int) -> list[_Block]:
  """All widths from 2 in at most six blocks."""
  size = max(-(-(words - 1) // _BLOCKS), 4)
  edges = [*range(2, words + 1, size), words + 1]
  return [_Block((low, high), high - 2, words + 1 - low) for low, high in itertools.pairwise(edges)]


def _forward(values: jax.Array, lengths: Array, semiring: Semiring) -> tuple[jax.Array, _Saved]:
  """The inside pass: sums of all spans, narrow ones first."""
  rows, words, _ = values.shape
  lengths = jnp.asarray(lengths)
  values = _by_width(values)
  more = max((b.widths[1] - b.widths[0] for b in _blocks(words)), default=1) - 1
  by_first = jnp.full((words, rows, words), _NEVER, values.dtype)
  by_last = jnp.full((words + more, rows, words + more), _NEVER, values.dtype)
  if words:
    by_first = by_first.at[0].set(values[0])
    by_last = by_last.at[words - 1, :, :words].set(values[0])
  for block in _blocks(words):
    firsts = jnp.arange(block.firsts)[None]

    def step(chart, width, block=block, firsts=firsts):
      by_first, by_last = chart
      sums = semiring.add(_ways(by_first, by_last, width, block))
      sums += jax.lax.dynamic_index_in_dim(values, width - 1, keepdims=False)[:, : block.firsts]
      sums = jnp.where(firsts + width <= words, sums, _NEVER)[None]
      by_first = jax.lax.dynamic_update_slice(by_first, sums, (width - 1, _ZERO, _ZERO))
      by_last = jax.lax.dynamic_update_slice(by_last, sums, (words - width, _ZERO, width - 1))
      return (by_first, by_last), None

    widths = jnp.arange(*block.widths, dtype=jnp.int32)
    (by_first, by_last), _ = jax.lax.scan(step, (by_first, by_last), widths)
  if not words:
    return jnp.zeros(rows, values.dtype), _Saved(by_first, by_last, lengths)
  whole = by_first[jnp.maximum(lengths - 1, 0), jnp.arange(rows), 0]
  return jnp.where(lengths > 0, whole, 0), _Saved(by_first, by_last, lengths)


def _ways(by_first: jax.Array, by_last: jax.Array, width: jax.Array, block: _Block) -> jax.Array:
  """The sums of both parts of each span of a width, by split, sentence, first word."""
  rows, words = by_first.shape[1:]
  one = by_first[: block.splits, :, : block.firsts]
  start = (words - width + 1, _ZERO, width - 1)
  return one + jax.lax.dynamic_slice(by_last, start, (block.splits, rows, block.firsts))


def _backward(semiring: Semiring, saved: _Saved, cotangent: jax.Array) -> tuple[jax.Array, None]:
  """The outside pass: derivatives of the sum by the values of all spans, wide ones first."""
  by_first, by_last, lengths = saved
  words, rows, _ = by_first.shape
  grads_first, grads_last = jnp.zeros_like(by_first), jnp.zeros_like(by_last)
  if words:
    whole = jnp.maximum(lengths - 1, 0), jnp.arange(rows), 0
    grads_first = grads_first.at[whole].set(jnp.where(lengths > 0, cotangent, 0))
  for block in reversed(_blocks(words)):
    size = block.splits, rows, block.firsts

    def step(grads, width, block=block, size=size):
      grads_first, grads_last = grads
      own = (words - width, _ZERO, width - 1), (1, *size[1:])
      span = jax.lax.dynamic_slice(grads_last, *own)
      span += jax.lax.dynamic_slice(grads_first, (width - 1, _ZERO, _ZERO), own[1])
      grads_first = jax.lax.dynamic_update_slice(grads_first, span, (width - 1, _ZERO, _ZERO))
      shares = span * semiring.shares(_ways(by_first, by_last, width, block))
      grads_first = grads_first.at[: size[0], :, : size[2]].add(shares)
      start = (words - width + 1, _ZERO, width - 1)
      shares += jax.lax.dynamic_slice(grads_last, start, size)
      return (grads_first, jax.lax.dynamic_update_slice(grads_last, shares, start)), None

    widths = jnp.arange(*block.widths, dtype=jnp.int32)
    (grads_first, grads_last), _ = jax.lax.scan(
      step, (grads_first, grads_last), widths, reverse=True
    )
  if words:
    grads_first = grads_first.at[0].add(grads_last[words - 1, :, :words])
  return _by_place(grads_first), None


_total.defvjp(_forward, _backward)


def _by_width(values: jax.Array) -> jax.Array:
  """Of numbers by sentence, first and last word those by width - 1, sentence, first word.

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
