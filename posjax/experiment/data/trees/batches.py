"""Batches of sentences with their trees as charts, padded to few widths."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posjax.experiment.data import buckets, sentences
from posjax.experiment.data.buckets import Batch

if TYPE_CHECKING:
  import grain


class Coded(NamedTuple):
  """A sentence in numbers.

  Attributes:
    words: of its n words, int32.
    gold: of its spans, [n, n] by first and last word, 0 elsewhere; zeros where nobody knows them.
    characters: of the letters of each word, [n, L], 0 behind them; None where nobody reads them.
    tags: of its words, int32; None where nobody reads them.
  """

  words: np.ndarray
  gold: np.ndarray
  characters: np.ndarray | None = None
  tags: np.ndarray | None = None


def batches(
  coded: Sequence[Coded],
  *,
  widths: Sequence[int],
  batch_size: int,
  seed: int,
  shard_index: int = 0,
  shard_count: int = 1,
) -> 'grain.IterDataset':
  """Batches for training, for ever, as `buckets.batches` makes them.

  Args:
    coded: to learn from. Those longer than the last width are left out; `longer` counts them.
    widths: of rows, rising.
    batch_size: rows per batch, all shards together; shard_count divides it.
    seed: 0 or more.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of disjoint shards.

  Returns:
    Batches as of `batch`; `row` is the index in `coded`.

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


def in_order(coded: Sequence[Coded], *, widths: Sequence[int], batch_size: int) -> list[Batch]:
  """Batches for evaluation: every sentence once and whole, the shortest first.

  A sentence that is longer than the last width has a row as wide as `buckets.width_of` says. Rows
  of zeros fill the last batch of each width.

  Args:
    coded: none is left out.
    widths: of rows, rising.
    batch_size: rows per batch.
  """

  def make(here: Sequence[int], width: int) -> Batch:
    return batch([coded[index] for index in here], width, rows=batch_size, indices=here)

  return buckets.in_order(lengths(coded), make, widths=widths, rows=lambda width: batch_size)


def batch(
  coded: Sequence[Coded],
  width: int,
  *,
  rows: int | None = None,
  indices: Sequence[int] | np.ndarray | None = None,
) -> Batch:
  """One batch of sentences, each at the left of its row.

  Args:
    coded: one or more, no longer than the width, all with letters and with tags or all without.
    width: W.
    rows: B; the number of sentences if None. Rows beyond it are 0 throughout, but for `row`.
    indices: those of the sentences, for `row`; by default 0, 1, ...

  Returns:
    int32 arrays, 0 in the padding: `inputs`, numbers of words [B, W]; `gold`, numbers of labels
    [B, W, W] by first and last word; perhaps `characters` [B, W, L] and `tags` [B, W]; and what
    `data.sentences.batch` adds to all batches: `segments` [B, W], `row` [B] and `tokens` [B].

  Raises:
    ValueError: if a sentence does not fit.
  """
  fields = {
    'inputs': ([one.words for one in coded], (width,)),
    'gold': ([one.gold for one in coded], (width, width)),
  }
  if (first := coded[0].characters) is not None:
    fields['characters'] = (_of_all(coded, 'characters'), (width, first.shape[1]))
  if coded[0].tags is not None:
    fields['tags'] = (_of_all(coded, 'tags'), (width,))
  return sentences.batch(fields, lengths(coded), width, rows=rows, indices=indices)


def lengths(coded: Sequence[Coded]) -> list[int]:
  """The lengths of sentences, in words."""
  return [len(one.words) for one in coded]


def _of_all(coded: Sequence[Coded], field: str) -> list[np.ndarray]:
  return [getattr(one, field) for one in coded]
