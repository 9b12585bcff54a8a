"""Batches of sentences with a tag for each word, padded to few widths."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posjax.experiment.data import buckets
from posjax.experiment.data import sentences as rows_of
from posjax.experiment.data.buckets import Batch

if TYPE_CHECKING:
  import grain


class Coded(NamedTuple):
  """A sentence in numbers.

  Attributes:
    words: of its T words, int32.
    tags: of their tags, int32; zeros where nobody knows them.
    characters: of the letters of each word, [T, L], 0 behind them; None where nobody reads them.
    bigrams: of each word with the next one; None where nobody reads them.
  """

  words: np.ndarray
  tags: np.ndarray
  characters: np.ndarray | None = None
  bigrams: np.ndarray | None = None


def batches(
  sentences: Sequence[Coded],
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
    sentences: to learn from.
    widths: of rows, rising.
    batch_size: rows per batch, all shards together; shard_count divides it.
    seed: 0 or more.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of disjoint shards.

  Returns:
    Batches as of `batch`; `row` is the index in `sentences`.

  Raises:
    ValueError: if fewer sentences fit than a batch has rows, or a number is out of range.
  """
  return buckets.batches(
    [len(one.words) for one in sentences],
    lambda indices, width: batch([sentences[row] for row in indices], width, indices=indices),
    widths=widths,
    rows=[batch_size] * len(widths),
    seed=seed,
    shard_index=shard_index,
    shard_count=shard_count,
    leave_out_longer=True,
    names=('sentences', 'words'),
  )


def in_order(sentences: Sequence[Coded], *, widths: Sequence[int], batch_size: int) -> list[Batch]:
  """Batches for evaluation: every sentence once and whole, the shortest first.

  A sentence that is longer than the last width has a row as wide as `buckets.width_of` says. Rows
  of zeros fill the last batch of each width.

  Args:
    sentences: none is left out.
    widths: of rows, rising.
    batch_size: rows per batch.
  """

  def make(here: Sequence[int], width: int) -> Batch:
    return batch([sentences[index] for index in here], width, rows=batch_size, indices=here)

  lengths = [len(one.words) for one in sentences]
  return buckets.in_order(lengths, make, widths=widths, rows=lambda width: batch_size)


def longer(sentences: Sequence[Coded], width: int) -> int:
  """How many sentences are longer than a row."""
  return rows_of.longer([len(one.words) for one in sentences], width)


def batch(
  sentences: Sequence[Coded],
  width: int,
  *,
  rows: int | None = None,
  indices: Sequence[int] | np.ndarray | None = None,
) -> Batch:
  """One batch of sentences, each at the left of its row.

  Args:
    sentences: one or more, no longer than the width, all with letters and bigrams or all without.
    width: W.
    rows: B; the number of sentences if None. Rows beyond it are 0 throughout, but for `row`.
    indices: those of the sentences, for `row`; by default 0, 1, ...

  Returns:
    int32 arrays, 0 in the padding: `inputs` and `labels`, numbers of words and tags, and
    `segments`, 1 at each word, [B, W]; perhaps `characters` [B, W, L] and `bigrams` [B, W]; `row`,
    the index of the sentence, -1 in a row that is filled up, and `tokens`, its words, [B].

  Raises:
    ValueError: if a sentence does not fit.
  """
  fields = {'inputs': 'words', 'labels': 'tags', 'characters': 'characters', 'bigrams': 'bigrams'}
  arrays = {
    name: ([getattr(one, field) for one in sentences], (width, *first.shape[1:]))
    for name, field in fields.items()
    if (first := getattr(sentences[0], field)) is not None
  }
  lengths = [len(one.words) for one in sentences]
  return rows_of.batch(arrays, lengths, width, rows=rows, indices=indices)
