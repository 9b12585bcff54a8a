"""Numbers of words, of letters, of bigrams and of tags, learned from training sentences."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posjax.experiment.data import words
from posjax.experiment.data.columns.batches import Coded
from posjax.experiment.data.columns.tags import tag_names

if TYPE_CHECKING:
  from posjax.experiment.data.columns import Sentence

END = '</s>'  # the second half of a sentence's last bigram, as in files of bigrams' vectors
CHARACTERS = 0.99  # the share of training tokens of one letter from which on sentences are letters


class Vocabulary(NamedTuple):
  """The words that a tagger reads, and the tags that it says.

  Attributes:
    words: of the training sentences, as `word` spells them.
    characters: their letters; None where nobody reads them.
    bigrams: each word with the next one, side by side, as files of vectors for Chinese have them;
      None where nobody reads them.
    tags: the names: 'O', and of each type the four of BIOES.
    longest_word: letters of a word that are read, the first ones.
    lower: whether words are in lower case; letters are not.
    zero_digits: whether every digit is 0, in words and letters.
    by_letter: whether a token is a letter, as in Chinese, so that a sentence is one without spaces.
  """

  words: words.Words
  characters: words.Words | None
  bigrams: words.Words | None
  tags: tuple[str, ...]
  longest_word: int
  lower: bool
  zero_digits: bool
  by_letter: bool

  def tokens(self, text: str) -> list[str]:
    """The tokens of a text: what stands between spaces, or every letter but spaces.

    Example:
      >>> spelled = Vocabulary(words.vocabulary(['a'], 1), None, None, (), 9, False, False, True)
      >>> spelled.tokens('ab c'), spelled._replace(by_letter=False).tokens('ab c')
      (['a', 'b', 'c'], ['ab', 'c'])
    """
    split = text.split()
    return list(''.join(split)) if self.by_letter else split

  def joined(self, tokens: Sequence[str]) -> str:
    """The text of tokens."""
    return ('' if self.by_letter else ' ').join(tokens)

  def encode(self, tokens: Sequence[str], tags: Sequence[str] | None = None) -> Coded:
    """A sentence in numbers.

    Args:
      tokens: as the data have them.
      tags: BIOES, each among `tags`; None leaves them 0.
    """
    numbers = {name: number for number, name in enumerate(self.tags)}
    known = [0] * len(tokens) if tags is None else [numbers[tag] for tag in tags]
    spelled = [spell(token, lower=self.lower, zero_digits=self.zero_digits) for token in tokens]
    characters = None
    if self.characters is not None:
      characters = np.zeros((len(tokens), self.longest_word), np.int32)
      for row, token in zip(characters, tokens, strict=True):
        letters = spell(token, lower=False, zero_digits=self.zero_digits)[: self.longest_word]
        row[: len(letters)] = self.characters.encode(letters)
    return Coded(
      self.words.encode(spelled),
      np.array(known, np.int32),
      characters,
      None if self.bigrams is None else self.bigrams.encode(in_pairs(spelled)),
    )


def learn(
  sentences: 'Sequence[Sentence]',
  types: Sequence[str],
  *,
  min_count: int,
  characters: bool,
  bigrams: bool,
  longest_word: int,
  lower: bool,
  zero_digits: bool,
) -> Vocabulary:
  """The vocabulary of training sentences.

  Args:
    sentences: to learn from; what is held out must not be among them.
    types: of the entities.
    min_count: what occurs less often, of words, letters and bigrams alike, is unknown.
    characters: whether letters are read.
    bigrams: whether bigrams are read.
    longest_word: as in `Vocabulary`.
    lower: as in `Vocabulary`.
    zero_digits: as in `Vocabulary`.

  Raises:
    ValueError: if no word occurs so often.
  """
  spelled = [
    [spell(token, lower=lower, zero_digits=zero_digits) for token in each.tokens]
    for each in sentences
  ]
  cased = (
    spell(token, lower=False, zero_digits=zero_digits)[:longest_word]
    for each in sentences
    for token in each.tokens
  )
  lengths = [len(token) for each in sentences for token in each.tokens]
  return Vocabulary(
    words.vocabulary(spelled, min_count),
    words.vocabulary(cased, min_count) if characters else None,
    words.vocabulary(map(in_pairs, spelled), min_count) if bigrams else None,
    tag_names(types),
    longest_word,
    lower,
    zero_digits,
    sum(length == 1 for length in lengths) >= CHARACTERS * len(lengths),
  )


def spell(token: str, *, lower: bool, zero_digits: bool) -> str:
  """A token as it is looked up.

  Example:
    >>> spell('May2019', lower=True, zero_digits=True)
    'may0000'
  """
  token = token.lower() if lower else token
  return re.sub(r'\d', '0', token) if zero_digits else token


def in_pairs(tokens: Sequence[str]) -> list[str]:
  """Each token with the next one.

  Example:
    >>> in_pairs(['a', 'b'])
    ['ab', 'b</s>']
  """
  return [one + other for one, other in zip(tokens, [*tokens[1:], END], strict=True)]
