"""Batches of sentence pairs, padded to few widths, so that few programs are compiled.

Both sentences of a pair have rows of the same width, that of the longer one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from posjax.experiment.data import buckets
from posjax.experiment.data.buckets import Batch

if TYPE_CHECKING:
  import grain

NAMES = ('premise', 'hypothesis')


class Coded(NamedTuple):
  """Two sentences as numbers.

  Attributes:
    words: of the premise [T], and of the hypothesis [S].
    spelled: for each of these words, its row in a table of character n-grams.
    label: a number.
  """

  words: tuple[np.ndarray, np.ndarray]
  spelled: tuple[np.ndarray, np.ndarray]
  label: int

  def length(self) -> int:
    """Words of the longer sentence: the width of the rows that hold both."""
    return max(map(len, self.words))


def batches(
  pairs: Sequence[Coded],
  ngrams: np.ndarray,
  *,
  widths: Sequence[int],
  batch_size: int,
  seed: int,
  shard_index: int = 0,
  shard_count: int = 1,
) -> 'grain.IterDataset':
  """Batches for training, for ever: each is a function of the seed and its number alone.

  `buckets.batches` says how pairs of about equal length are put together; fewer than `batch_size`
  of the narrowest are left out of an epoch, others each time.

  Args:
    pairs: none longer than the last width.
    ngrams: the n-grams of each spelled word, as for `batch`.
    widths: of rows, rising.
    batch_size: rows per batch, all shards together; shard_count divides it.
    seed: 0 or more.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of disjoint shards.

  Returns:
    Batches as of `batch`, `batch_size / shard_count` rows each.

  Raises:
    ValueError: if there are fewer pairs than rows in a batch, or a number is out of range.
  """
  return buckets.batches(
    [pair.length() for pair in pairs],
    lambda indices, width: batch([pairs[index] for index in indices], ngrams, width),
    widths=widths,
    rows=[batch_size] * len(widths),
    seed=seed,
    shard_index=shard_index,
    shard_count=shard_count,
  )


def in_order(
  pairs: Sequence[Coded], ngrams: np.ndarray, *, widths: Sequence[int], batch_size: int
) -> list[Batch]:
  """Batches for evaluation: every pair once, the shortest first; rows of zeros fill the last ones.

  Args:
    pairs: as of `batches`.
    ngrams: as of `batches`.
    widths: of rows, rising.
    batch_size: rows per batch.
  """

  def make(here: Sequence[int], width: int) -> Batch:
    return batch([pairs[index] for index in here], ngrams, width, batch_size)

  lengths = [pair.length() for pair in pairs]
  return buckets.in_order(lengths, make, widths=widths, rows=lambda width: batch_size)


def batch(pairs: Sequence[Coded], ngrams: np.ndarray, width: int, rows: int | None = None) -> Batch:
  """One batch of pairs, each sentence at the left of its row.

  Args:
    pairs: no longer than the width.
    ngrams: the n-grams of each spelled word, int32 [U, G]; row 0 is 0, for the padding.
    width: W.
    rows: B; the number of pairs if None. Rows beyond it are 0 throughout.

  Returns:
    int32 arrays: `premise` and `hypothesis` [B, W], 0 in the padding; where G is not 0, their
    n-grams `premise_ngrams` and `hypothesis_ngrams` [B, W, G]; `labels` [B, 1]; `tokens` [B], the
    words of both sentences; and `weights`, float32 [B, 1], 1 for a pair.
  """
  rows = len(pairs) if rows is None else rows
  made: dict[str, Any] = {name: np.zeros((rows, width), np.int32) for name in NAMES}
  spelled = {name: np.zeros((rows, width), np.int32) for name in NAMES}
  made['labels'], made['weights'] = np.zeros((rows, 1), np.int32), np.zeros((rows, 1), np.float32)
  made['tokens'] = np.zeros(rows, np.int32)
  for row, pair in enumerate(pairs):
    for name, words, own in zip(NAMES, pair.words, pair.spelled, strict=True):
      made[name][row, : len(words)] = words
      spelled[name][row, : len(words)] = own
    made['labels'][row], made['weights'][row] = pair.label, 1
    made['tokens'][row] = sum(map(len, pair.words))
  if ngrams.shape[1]:
    made |= {f'{name}_ngrams': ngrams[spelled[name]] for name in NAMES}
  return made
