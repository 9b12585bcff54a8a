"""Batches of texts of unequal length, padded to few widths, so that few programs are compiled."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from posjax.experiment.data import buckets
from posjax.experiment.data.buckets import Batch

if TYPE_CHECKING:
  import grain


class Text(NamedTuple):
  """Numbers of its words [T], and of its label."""

  tokens: np.ndarray
  label: int


def batches(
  texts: Sequence[Text],
  *,
  widths: Sequence[int],
  batch_size: int,
  seed: int,
  shard_index: int = 0,
  shard_count: int = 1,
) -> 'grain.IterDataset':
  """Batches for training, for ever: each is a function of the seed and its number alone.

  `buckets.batches` says how texts of about equal length are put together; fewer than `batch_size`
  of the narrowest are left out of an epoch, others each time.

  Args:
    texts: each with a word at least, and no longer than the last width.
    widths: of rows, rising.
    batch_size: rows per batch, all shards together; shard_count divides it.
    seed: 0 or more.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of disjoint shards.

  Returns:
    Batches as of `batch`, `batch_size / shard_count` rows each.

  Raises:
    ValueError: if there are fewer texts than rows in a batch, or a number is out of range.
  """
  return buckets.batches(
    [len(text.tokens) for text in texts],
    lambda indices, width: batch([texts[index] for index in indices], width),
    widths=widths,
    rows=[batch_size] * len(widths),
    seed=seed,
    shard_index=shard_index,
    shard_count=shard_count,
  )


def in_order(texts: Sequence[Text], *, widths: Sequence[int], batch_size: int) -> list[Batch]:
  """Batches for evaluation: every text once, the shortest first; rows of zeros fill the last ones.

  Args:
    texts: as of `batches`.
    widths: of rows, rising.
    batch_size: rows per batch.
  """

  def make(here: Sequence[int], width: int) -> Batch:
    return batch([texts[index] for index in here], width, batch_size)

  lengths = [len(text.tokens) for text in texts]
  return buckets.in_order(lengths, make, widths=widths, rows=lambda width: batch_size)


def batch(texts: Sequence[Text], width: int, rows: int | None = None) -> Batch:
  """One batch of texts, each at the left of its row.

  Args:
    texts: no longer than the width.
    width: T.
    rows: B; the number of texts if None. Rows beyond it are 0 throughout.

  Returns:
    int32 arrays: `inputs`, `positions` (0, 1, ... in the text) and `segments` (1 in the text),
    [B, T], 0 in the padding; `labels` [B, 1]; and `weights`, float32 [B, 1], 1 for a text.
  """
  rows = len(texts) if rows is None else rows
  made: dict[str, Any] = {
    name: np.zeros((rows, width), np.int32) for name in ('inputs', 'positions', 'segments')
  }
  made['labels'], made['weights'] = np.zeros((rows, 1), np.int32), np.zeros((rows, 1), np.float32)
  for row, text in enumerate(texts):
    count = len(text.tokens)
    made['inputs'][row, :count] = text.tokens
    made['positions'][row, :count] = np.arange(count)
    made['segments'][row, :count] = 1
    made['labels'][row], made['weights'][row] = text.label, 1
  return made
