"""Batches of pairs, padded to few widths, with about equally many tokens in each.

A source row is the tokens of the sentence and an end mark; a target row goes in as a start mark
and the tokens, and is to come out as the tokens and an end mark. Both have the same width. The
widest rows are `batch_size` in a batch; rows of which two fit into one of those are twice as many.
"""

from collections.abc import Sequence

import numpy as np

from posjax.experiment.data.buckets import Batch, Examples
from posjax.experiment.tasks.translation.vocabulary import END, START, Coded


def examples(pairs: Sequence[Coded]) -> Examples:
  """How pairs become the batches that `batch` makes, with as many rows as `rows_of` says.

  In training, pairs that are longer than the widest row are left out.
  """
  return Examples(
    lengths(pairs),
    lambda indices, width, rows: batch(
      [pairs[index] for index in indices], width, rows=rows, indices=indices
    ),
    rows=rows_of,
    leave_out_longer=True,
    names=('pairs', 'tokens'),
  )


def lengths(pairs: Sequence[Coded]) -> list[int]:
  """The number of tokens of each pair's longer side, its end mark included."""
  return [pair.length() for pair in pairs]


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
    read, generated = len(pair.source), len(pair.target)
    made['source'][row, :read], made['source'][row, read] = pair.source, END
    made['inputs'][row, 0], made['inputs'][row, 1 : generated + 1] = START, pair.target
    made['targets'][row, :generated], made['targets'][row, generated] = pair.target, END
    made['source_segments'][row, : read + 1] = made['segments'][row, : generated + 1] = 1
    made['row'][row], made['tokens'][row] = index, read + generated + 2
  return made
