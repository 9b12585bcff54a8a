"""Batches of sentences with their trees as charts, for `posjax.experiment.data.sentences`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posjax.experiment.data import sentences
from posjax.experiment.data.buckets import Batch


class Coded(NamedTuple):
  """A sentence in numbers.

  Attributes:
    words: of its n words, int32.
    gold: of its spans, [n, n] by first and last word, 0 elsewhere; zeros if unknown.
    characters: of the letters of each word, [n, L], 0 behind them; None if unused.
    tags: of its words, int32; None if unused.
  """

  words: np.ndarray
  gold: np.ndarray
  characters: np.ndarray | None = None
  tags: np.ndarray | None = None


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
  return sentences.batch(fields, sentences.lengths(coded), width, rows=rows, indices=indices)


def _of_all(coded: Sequence[Coded], field: str) -> list[np.ndarray]:
  return [getattr(one, field) for one in coded]
