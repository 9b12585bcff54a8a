"""Words: how a text is split, and a vocabulary of them with a place for the unknown ones."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from posjax.models.embedding import UNKNOWN_ID

PADDING, UNKNOWN = '<pad>', '<unk>'

# Apostrophes and hyphens within a word, or an apostrophe before it ("n't", "'ve"), belong to it.
_WORD = re.compile(r"'?\w+(?:['’-]\w+)*|[^\w\s]")


def split(text: str) -> list[str]:
  """The words of a text in lower case, and each other sign by itself.

  Text that is split already, with spaces between words and signs, stays as it is split.

  Example:
    >>> split("I 've seen it: it's re-made!")
    ['i', "'ve", 'seen', 'it', ':', "it's", 're-made', '!']
  """
  return _WORD.findall(text.lower())


class Words(NamedTuple):
  """A vocabulary.

  Attributes:
    names: the word of each number: 0 is padding, 1 an unknown word.
    ids: the number of each word, without the two.
  """

  names: tuple[str, ...]
  ids: dict[str, int]

  def encode(self, words: Iterable[str]) -> np.ndarray:
    """Numbers of words, int32 [T]; 1 for those that are not in the vocabulary."""
    return np.array([self.ids.get(word, UNKNOWN_ID) for word in words], np.int32)


def vocabulary(texts: Iterable[Iterable[str]], min_count: int) -> Words:
  """The words that occur at least so often, the most frequent first, equals by alphabet.

  Only words that are too rare teach a model what `<unk>` is: with `min_count` 1 it is never met in
  training, and stays random.

  Args:
    texts: words of each training text; what is held out must not be among them.
    min_count: 1 or more.

  Raises:
    ValueError: if no word occurs so often, or min_count is below 1.

  Example:
    >>> vocabulary([['a', 'b', 'a'], ['c', 'b']], min_count=2).names
    ('<pad>', '<unk>', 'a', 'b')
  """
  if min_count < 1:
    raise ValueError(f'min_count must be at least 1, but got {min_count}.')
  counts = Counter(word for words in texts for word in words)
  kept = [word for word, count in counts.items() if count >= min_count]
  if not kept:
    raise ValueError(f'No word of the training texts occurs {min_count} times.')
  kept.sort(key=lambda word: (-counts[word], word))
  names = (PADDING, UNKNOWN, *kept)
  return Words(names, {word: number for number, word in enumerate(kept, start=2)})
