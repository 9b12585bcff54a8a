"""Batches of sentences with a tag for each word, for `posjax.experiment.data.sentences`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posjax.experiment.data import sentences as rows_of
from posjax.experiment.data.buckets import Batch


class Coded(NamedTuple):
  """A sentence in numbers.

  Attributes:
    words: of its T words, int32.
    tags: of their tags, int32; zeros if unknown.
    characters: of the letters of each word, [T, L], 0 behind them; None if unused.
    bigrams: of each word with the next one; None if unused.
  """

  words: np.ndarray
  tags: np.ndarray
  characters: np.ndarray | None = None
  bigrams: np.ndarray | None = None


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
  return rows_of.batch(arrays, rows_of.lengths(sentences), width, rows=rows, indices=indices)
