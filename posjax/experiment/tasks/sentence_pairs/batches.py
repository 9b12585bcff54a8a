"""Batches of sentence pairs, padded to few widths, so that few programs are compiled.

Both sentences of a pair have rows of the same width, that of the longer one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posjax.experiment.data.buckets import Batch, Examples

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


def examples(pairs: Sequence[Coded], ngrams: np.ndarray) -> Examples:
  """How pairs become the batches that `batch` makes; training refuses one that is too long."""
  return Examples(
    [pair.length() for pair in pairs],
    lambda indices, width, rows: batch([pairs[index] for index in indices], ngrams, width, rows),
    names=('pairs', 'words'),
  )


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
