"""Rows of one sentence each, with whatever is known of its words, padded to few widths.

`buckets` chooses which sentences come together; `batches` and `in_order` ask it for training and
for evaluation, and `batch` makes the arrays. Each kind of data says in a `batch` of its own which
arrays there are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import numpy as np

from posjax.experiment.data import buckets
from posjax.experiment.data.buckets import Batch

if TYPE_CHECKING:
  import grain


@runtime_checkable
class Coded(Protocol):
  """A sentence in numbers."""

  @property
  def words(self) -> np.ndarray:
    """The numbers of its words."""
    ...


One = TypeVar('One', bound=Coded)


def batches(
  coded: Sequence[One],
  batch: Callable[..., Batch],
  *,
  widths: Sequence[int],
  batch_size: int,
  seed: int,
  shard_index: int = 0,
  shard_count: int = 1,
) -> 'grain.IterDataset':
  """Batches for training, for ever: each is a function of the seed and its number alone.

  Sentences longer than the last width are left out (`longer` counts them), and else fewer than
  `batch_size` in an epoch, others each time; `buckets.batches` says how they are put together.

  Args:
    coded: to learn from.
    batch: `batch(sentences, width, *, rows=None, indices=None)` makes the arrays of one batch.
    widths: of rows, rising.
    batch_size: rows per batch, all shards together; shard_count divides it.
    seed: 0 or more.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of disjoint shards.

  Returns:
    Batches as `batch` makes them; their entry `row` is the index in `coded`.

  Raises:
    ValueError: if fewer sentences fit than a batch has rows, or a number is out of range.
  """
  return buckets.batches(
    lengths(coded),
    lambda indices, width: batch([coded[row] for row in indices], width, indices=indices),
    widths=widths,
    rows=[batch_size] * len(widths),
    seed=seed,
    shard_index=shard_index,
    shard_count=shard_count,
    leave_out_longer=True,
    names=('sentences', 'words'),
  )


def in_order(
  coded: Sequence[One], batch: Callable[..., Batch], *, widths: Sequence[int], batch_size: int
) -> list[Batch]:
  """Batches for evaluation: every sentence once and whole, the shortest first.

  A sentence that is longer than the last width has a row as wide as `buckets.width_of` says. Rows
  of zeros fill the last batch of each width.

  Args:
    coded: none is left out.
    batch: makes the arrays of one batch, as in `batches`.
    widths: of rows, rising.
    batch_size: rows per batch.
  """

  def make(here: Sequence[int], width: int) -> Batch:
    return batch([coded[index] for index in here], width, rows=batch_size, indices=here)

  return buckets.in_order(lengths(coded), make, widths=widths, rows=lambda width: batch_size)


def lengths(coded: Sequence[Coded]) -> list[int]:
  """The lengths of sentences, in words."""
  return [len(one.words) for one in coded]


def longer(lengths: Sequence[int], width: int) -> int:
  """How many sentences are longer than a row."""
  return sum(length > width for length in lengths)


def batch(
  fields: Mapping[str, tuple[Sequence[np.ndarray], tuple[int, ...]]],
  lengths: Sequence[int],
  width: int,
  *,
  rows: int | None = None,
  indices: Sequence[int] | np.ndarray | None = None,
) -> dict[str, np.ndarray]:
  """One batch of sentences, each at the left of its row.

  Args:
    fields: by name, an array for each sentence, and the shape of a row that holds any of them.
    lengths: of the sentences, in words; one or more.
    width: W.
    rows: B; the number of sentences if None. Rows beyond it are 0 throughout, but for `row`.
    indices: those of the sentences, for `row`; by default 0, 1, ...

  Returns:
    int32 arrays, 0 in the padding: the fields; `segments`, 1 at each word, [B, W]; `row`, the index
    of the sentence, -1 in a row that is filled up; and `tokens`, its words, [B].

  Raises:
    ValueError: if a sentence does not fit.
  """
  count = len(lengths)
  rows = count if rows is None else rows
  if max(lengths) > width or count > rows:
    raise ValueError(
      f'{rows} rows of {width} cannot hold {count} sentences, of up to {max(lengths)} words.'
    )
  made: dict[str, np.ndarray] = {}
  for name, (arrays, shape) in fields.items():
    made[name] = np.zeros((rows, *shape), np.int32)
    for row, array in zip(made[name], arrays, strict=False):
      row[tuple(map(slice, array.shape))] = array
  tokens = np.zeros(rows, np.int32)
  tokens[:count] = lengths
  made['segments'] = (np.arange(width) < tokens[:, None]).astype(np.int32)
  made['row'], made['tokens'] = np.full(rows, -1, np.int32), tokens
  made['row'][:count] = range(count) if indices is None else indices
  return made
