"""Numbers of words, of letters, of bigrams and of tags, learned from training sentences."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posjax.experiment.data import words
from posjax.experiment.data.spelling import Spelling
from posjax.experiment.tasks.tagging.batches import Coded
from posjax.experiment.tasks.tagging.tags import tag_names

if TYPE_CHECKING:
  from posjax.experiment.tasks.tagging.data import Sentence

END = '</s>'  # the second half of a sentence's last bigram, as in files of bigrams' vectors
CHARACTERS = 0.99  # the share of training tokens of one letter from which on sentences are letters


class Vocabulary(NamedTuple):
  """The words that a tagger reads, and the tags that it says.

  Attributes:
    words: of the training sentences, as `spelling` has them.
    characters: their letters; None if unused.
    bigrams: each word with the next one, side by side, as files of vectors for Chinese have them;
      None if unused.
    tags: the names: 'O', and of each type the four of BIOES.
    spelling: how words and letters are looked up.
    by_letter: whether a token is a letter, as in Chinese, so that a sentence is one without spaces.
  """

  words: words.Words
  characters: words.Words | None
  bigrams: words.Words | None
  tags: tuple[str, ...]
  spelling: Spelling
  by_letter: bool

  def tokens(self, text: str) -> list[str]:
    """The tokens of a text: what is between spaces, or every letter but spaces.

    Example:
      >>> as_written = Spelling(9, lower=False, zero_digits=False)
      >>> known = Vocabulary(words.vocabulary(['a'], 1), None, None, (), as_written, True)
      >>> known.tokens('ab c'), known._replace(by_letter=False).tokens('ab c')
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
    spelled = [self.spelling.word(token) for token in tokens]
    return Coded(
      self.words.encode(spelled),
      np.array(known, np.int32),
      None if self.characters is None else self.spelling.encode_letters(self.characters, tokens),
      None if self.bigrams is None else self.bigrams.encode(in_pairs(spelled)),
    )


def learn(
  sentences: 'Sequence[Sentence]',
  types: Sequence[str],
  *,
  min_count: int,
  characters: bool,
  bigrams: bool,
  spelling: Spelling,
) -> Vocabulary:
  """The vocabulary of training sentences.

  Args:
    sentences: to learn from; what is held out must not be among them.
    types: of the entities.
    min_count: what occurs less often, of words, letters and bigrams alike, is unknown.
    characters: whether letters are read.
    bigrams: whether bigrams are read.
    spelling: as in `Vocabulary`.

  Raises:
    ValueError: if no word occurs so often.
  """
  spelled = [[spelling.word(token) for token in each.tokens] for each in sentences]
  letters = (spelling.letters(token) for each in sentences for token in each.tokens)
  lengths = [len(token) for each in sentences for token in each.tokens]
  return Vocabulary(
    words.vocabulary(spelled, min_count),
    words.vocabulary(letters, min_count) if characters else None,
    words.vocabulary(map(in_pairs, spelled), min_count) if bigrams else None,
    tag_names(types),
    spelling,
    sum(length == 1 for length in lengths) >= CHARACTERS * len(lengths),
  )


def in_pairs(tokens: Sequence[str]) -> list[str]:
  """Each token with the next one.

  Example:
    >>> in_pairs(['a', 'b'])
    ['ab', 'b</s>']
  """
  return [one + other for one, other in zip(tokens, [*tokens[1:], END], strict=True)]
