"""Character n-grams of words: parts of a word that unknown words share with known ones."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

PADDING, UNKNOWN = 0, 1
FIRST, LAST = '<', '>'  # marks around a word, so that its ends have n-grams of their own


def ngrams(word: str, sizes: Sequence[int]) -> list[str]:
  """The n-grams of a word between its marks, from left to right, of one size after the other.

  A word that is shorter than all of the sizes is one n-gram, with its marks.

  Example:
    >>> ngrams('cats', (3,))
    ['<ca', 'cat', 'ats', 'ts>']
  """
  marked = f'{FIRST}{word}{LAST}'
  found = [marked[i : i + size] for size in sizes for i in range(len(marked) - size + 1)]
  return found or [marked]


class Ngrams(NamedTuple):
  """The n-grams that training words have.

  Attributes:
    sizes: letters of an n-gram, rising; none where no n-grams are read.
    ids: the number of each n-gram. 0 is padding, and 1 an n-gram that no training word has.
    most: how many n-grams of a word are read.
  """

  sizes: tuple[int, ...]
  ids: dict[str, int]
  most: int

  @property
  def size(self) -> int:
    """How many numbers there are, those of padding and of unknown n-grams included; or 0."""
    return len(self.ids) + 2 if self.sizes else 0

  def encode(self, words: Sequence[str]) -> np.ndarray:
    """The numbers of the n-grams of each word, int32 [T, G], with 0 after the last one."""
    made = np.zeros((len(words), self.most if self.sizes else 0), np.int32)
    for row, word in enumerate(words if self.sizes else ()):
      ids = [self.ids.get(each, UNKNOWN) for each in ngrams(word, self.sizes)[: self.most]]
      made[row, : len(ids)] = ids
    return made

  def longer(self, words: Iterable[str]) -> int:
    """How many different words have more n-grams than are read."""
    every = set(words) if self.sizes else set()
    return sum(len(ngrams(word, self.sizes)) > self.most for word in every)


def learn(words: Iterable[str], sizes: Sequence[int], most: int) -> Ngrams:
  """The n-grams of training words, by alphabet.

  Args:
    words: of the training texts.
    sizes: letters of an n-gram, each 1 or more, rising; none for no n-grams.
    most: how many n-grams of a word are read.

  Raises:
    ValueError: if the sizes do not rise.
  """
  if any(np.diff(sizes) < 1):
    raise ValueError(f'The sizes of character n-grams must rise, but got {tuple(sizes)}.')
  every = set(words) if sizes else set()
  found = sorted({each for word in every for each in ngrams(word, sizes)[:most]})
  return Ngrams(tuple(sizes), {each: at for at, each in enumerate(found, start=2)}, most)
