"""Batches of texts of unequal length, padded to few widths, so that few programs are compiled."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posjax.experiment.data.buckets import Batch, Examples


class Text(NamedTuple):
  """Numbers of its words [T], and of its label."""

  tokens: np.ndarray
  label: int


def examples(texts: Sequence[Text]) -> Examples:
  """How texts become the batches that `batch` makes; in training, one that is too long is refused.

  Each text has at least one word.
  """
  return Examples(
    [len(text.tokens) for text in texts],
    lambda indices, width, rows: batch([texts[index] for index in indices], width, rows),
    names=('texts', 'words'),
  )


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
