"""Batches of pairs, padded to few widths, with about equally many tokens in each.

A source row is the tokens of the sentence and an end mark; a target row goes in as a start mark
and the tokens, and is to come out as the tokens and an end mark. Both have the same width. The
widest rows are `batch_size` in a batch; rows of which two fit into one of those are twice as many.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from posjax.experiment.data import buckets
from posjax.experiment.data.buckets import Batch, check_widths
from posjax.experiment.data.parallel.vocabulary import END, START, Coded

if TYPE_CHECKING:
  import grain


def batches(
  pairs: Sequence[Coded],
  *,
  widths: Sequence[int],
  batch_size: int,
  seed: int,
  shard_index: int = 0,
  shard_count: int = 1,
) -> 'grain.IterDataset':
  """Batches for training, for ever: each is a function of the seed and its number alone.

  Pairs longer than the last width are left out (`longer` counts them), and else fewer than
  `batch_size` in an epoch, others each time; `buckets.batches` says how pairs are put together.

  Args:
    pairs: to learn from.
    widths: of rows, rising.
    batch_size: rows of the last width per batch, all shards together; shard_count divides it.
    seed: 0 or more.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of disjoint shards.

  Returns:
    Batches as of `batch`, with as many rows as `rows_of` says; `row` is the index in `pairs`.

  Raises:
    ValueError: if fewer pairs fit than a batch has rows, or a number is out of range.
  """
  return buckets.batches(
    [pair.length() for pair in pairs],
    lambda rows, width: batch([pairs[row] for row in rows], width, indices=rows),
    widths=widths,
    rows=[rows_of(width, widths, batch_size) for width in check_widths(widths)],
    seed=seed,
    shard_index=shard_index,
    shard_count=shard_count,
    leave_out_longer=True,
    names=('pairs', 'tokens'),
  )


def in_order(pairs: Sequence[Coded], *, widths: Sequence[int], batch_size: int) -> list[Batch]:
  """Batches for evaluation: every pair once and whole, the shortest first.

  A pair that is longer than the last width has a row as wide as `width_of` says. Rows of zeros fill
  the last batch of each width.

  Args:
    pairs: none is left out.
    widths: of rows, rising.
    batch_size: rows of the last width per batch.
  """
  rows = lambda width: rows_of(width, widths, batch_size)

  def make(here: Sequence[int], width: int) -> Batch:
    return batch([pairs[index] for index in here], width, rows=rows(width), indices=here)

  return buckets.in_order([pair.length() for pair in pairs], make, widths=widths, rows=rows)


def longer(pairs: Sequence[Coded], width: int) -> int:
  """How many pairs are longer than a row."""
  return sum(pair.length() > width for pair in pairs)


def rows_of(width: int, widths: Sequence[int], batch_size: int) -> int:
  """Rows in a batch of a width: `batch_size` times as many as fit into one of the last width.

  For rows wider than those it is as many fewer, at least 1.

  Example:
    >>> [rows_of(width, (8, 24), 6) for width in (8, 24, 48, 192)]
    [18, 6, 3, 1]
  """
  widest = widths[-1]
  return batch_size * (widest // width) if width <= widest else max(1, batch_size * widest // width)


def batch(
  pairs: Sequence[Coded],
  width: int,
  *,
  rows: int | None = None,
  indices: Sequence[int] | np.ndarray | None = None,
) -> Batch:
  """One batch of pairs, each at the left of its row.

  Args:
    pairs: no longer than the width (`Coded.length`).
    width: W.
    rows: B; the number of pairs if None. Rows beyond it are 0 throughout, but for `row`.
    indices: those of the pairs, for `row`; by default 0, 1, ...

  Returns:
    int32 arrays. [B, W], 0 in the padding: `source`, `inputs` and `targets`, ids; and
    `source_segments` and `segments`, 1 at each token of the source and of the target. [B]: `row`,
    the index of the pair, -1 in a row that is filled up; and `tokens`, those of both sides.

  Raises:
    ValueError: if a pair does not fit.
  """
  rows = len(pairs) if rows is None else rows
  indices = range(len(pairs)) if indices is None else indices
  longest = max((pair.length() for pair in pairs), default=0)
  if longest > width or len(pairs) > rows:
    raise ValueError(
      f'{rows} rows of {width} cannot hold {len(pairs)} pairs, of up to {longest} tokens.'
    )
  names = ('source', 'source_segments', 'inputs', 'targets', 'segments')
  made: dict[str, np.ndarray] = {name: np.zeros((rows, width), np.int32) for name in names}
  made['row'], made['tokens'] = np.full(rows, -1, np.int32), np.zeros(rows, np.int32)
  for row, (pair, index) in enumerate(zip(pairs, indices, strict=True)):
    read, said = len(pair.source), len(pair.target)
    made['source'][row, :read], made['source'][row, read] = pair.source, END
    made['inputs'][row, 0], made['inputs'][row, 1 : said + 1] = START, pair.target
    made['targets'][row, :said], made['targets'][row, said] = pair.target, END
    made['source_segments'][row, : read + 1] = made['segments'][row, : said + 1] = 1
    made['row'][row], made['tokens'][row] = index, read + said + 2
  return made
