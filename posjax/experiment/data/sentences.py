"""Rows of one sentence each, with whatever is known of its words, padded to few widths.

`buckets` chooses which sentences come together, and `batch` makes the arrays. Each kind of data
says in a `batch` of its own which arrays there are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from posjax.experiment.data.buckets import Batch, Examples, longer
from posjax.models.embedding import UNKNOWN_ID


@runtime_checkable
class Coded(Protocol):
  """A sentence in numbers."""

  @property
  def words(self) -> np.ndarray:
    """The numbers of its words."""
    ...


One = TypeVar('One', bound=Coded)


def examples(coded: Sequence[One], batch: Callable[..., Batch]) -> Examples:
  """How sentences become batches.

  In training, sentences that are longer than the widest row are left out.

  Args:
    coded: the sentences.
    batch: `batch(sentences, width, *, rows=None, indices=None)` makes the arrays of one batch; its
      entry `row` is the index in `coded`.
  """
  return Examples(
    lengths(coded),
    lambda indices, width, rows: batch(
      [coded[index] for index in indices], width, rows=rows, indices=indices
    ),
    leave_out_longer=True,
    names=('sentences', 'words'),
  )


def lengths(coded: Sequence[Coded]) -> list[int]:
  """The lengths of sentences, in words."""
  return [len(one.words) for one in coded]


def unknown(coded: Sequence[Coded]) -> float:
  """The share of all words, 0 to 1, that the vocabulary does not have."""
  return sum(int((one.words == UNKNOWN_ID).sum()) for one in coded) / sum(lengths(coded))


def facts(train: Sequence[Coded], held_out: Sequence[Coded], limit: int) -> dict[str, str]:
  """How many words are unknown, and how many training sentences are too long, in words.

  Args:
    train: training sentences.
    held_out: held-out ones.
    limit: the widest row, in words.
  """
  return {
    'unknown words': f'{unknown(train):.1%} in training, {unknown(held_out):.1%} held out',
    'left out': f'{longer(lengths(train), limit):,} training sentences of more than {limit} words; '
    'held-out ones are neither left out nor cut',
  }


def longest(sentences: Sequence[tuple[Sequence[str], str]]) -> str:
  """The length and the place of the longest sentence, given as words and place."""
  words, where = max(sentences, key=lambda each: len(each[0]))
  return f'{len(words):,} words ({where})'


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
