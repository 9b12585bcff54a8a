"""How the words of sentences are looked up, whole and by their letters."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posjax.experiment.data.words import Words


class Spelling(NamedTuple):
  """How a word is looked up.

  Attributes:
    longest_word: letters of a word that are read, the first ones.
    lower: whether words are in lower case; letters are not.
    zero_digits: whether every digit is 0, in words and letters.
  """

  longest_word: int
  lower: bool
  zero_digits: bool

  def word(self, token: str) -> str:
    """The form in which a token is looked up among words.

    Example:
      >>> Spelling(4, lower=True, zero_digits=True).word('May2019')
      'may0000'
    """
    return self._digits(token.lower() if self.lower else token)

  def letters(self, token: str) -> str:
    """The letters of a token that are read.

    Example:
      >>> Spelling(4, lower=True, zero_digits=True).letters('May2019')
      'May0'
    """
    return self._digits(token)[: self.longest_word]

  def encode_letters(self, known: Words, tokens: Sequence[str]) -> np.ndarray:
    """Numbers of the letters of each token, int32 [T, longest_word]; 0 where a token has ended.

    Args:
      known: the numbers of letters.
      tokens: of a sentence, T.
    """
    encoded = np.zeros((len(tokens), self.longest_word), np.int32)
    for row, token in zip(encoded, tokens, strict=True):
      letters = self.letters(token)
      row[: len(letters)] = known.encode(letters)
    return encoded

  def described(self, known: Words, sentences: Sequence[Sequence[str]], name: str) -> str:
    """Describes the letters for the log, as '128 known; of 23 words with more than 20, ...'.

    The first number is that of the letters in the vocabulary, the second that of the tokens which
    have more than `longest_word` letters, so that their last letters are not read.

    Args:
      known: the vocabulary of letters.
      sentences: the tokens of each.
      name: what tokens are called in it, such as 'words'.
    """
    cut = sum(len(token) > self.longest_word for tokens in sentences for token in tokens)
    return (
      f'{len(known.ids):,} known; of {cut:,} {name} with more than {self.longest_word}, only the '
      'first are read'
    )

  def _digits(self, token: str) -> str:
    return re.sub(r'\d', '0', token) if self.zero_digits else token
