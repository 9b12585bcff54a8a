"""Numbers of words, of letters, of tags and of labels, learned from training sentences."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posjax.experiment.data import words
from posjax.experiment.data.columns.vocabulary import spell
from posjax.experiment.data.trees.batches import Coded
from posjax.experiment.data.trees.spans import Sentence, Span, check_tags, gold


class Vocabulary(NamedTuple):
  """The words that a parser reads, and the labels that it says.

  Attributes:
    words: of the training sentences, as `spell` has them.
    characters: their letters; None where nobody reads them.
    tags: of the training sentences; None where nobody reads them.
    labels: the names: '', which is no constituent, and those of spans in training, the most
      frequent first.
    longest_word: letters of a word that are read, the first ones.
    lower: whether words are in lower case; letters are not.
    zero_digits: whether every digit is 0, in words and letters.
  """

  words: words.Words
  characters: words.Words | None
  tags: words.Words | None
  labels: tuple[str, ...]
  longest_word: int
  lower: bool
  zero_digits: bool

  def encode(
    self,
    tokens: Sequence[str],
    tags: Sequence[str] | None = None,
    spans: Sequence[Span] = (),
    where: str = 'The sentence',
  ) -> Coded:
    """A sentence in numbers.

    Args:
      tokens: its words, one or more.
      tags: of the words, for a parser that reads tags; others ignore them.
      spans: of its tree; a label that training has not is 0, see `spans.gold`.
      where: its place, for errors.

    Raises:
      ValueError: there is no word, there are not as many tags as words, or a parser that reads tags
        got none.
    """
    if not tokens:
      raise ValueError(f'{where} should have one word or more, but has none.')
    if tags is not None:
      check_tags(tokens, tags, where)
    elif self.tags is not None:
      raise ValueError(f'{where} should have tags, which this parser reads, but has none.')
    spelled = [spell(one, lower=self.lower, zero_digits=self.zero_digits) for one in tokens]
    characters = None
    if self.characters is not None:
      characters = np.zeros((len(tokens), self.longest_word), np.int32)
      for row, token in zip(characters, tokens, strict=True):
        letters = spell(token, lower=False, zero_digits=self.zero_digits)[: self.longest_word]
        row[: len(letters)] = self.characters.encode(letters)
    return Coded(
      self.words.encode(spelled),
      gold(spans, {name: number for number, name in enumerate(self.labels)}, len(tokens)),
      characters,
      None if self.tags is None or tags is None else self.tags.encode(tags),
    )

  def encode_all(self, sentences: Sequence[Sentence]) -> list[Coded]:
    """Sentences in numbers, with their trees."""
    return [self.encode(one.words, one.tags, one.spans, one.where) for one in sentences]


def learn(
  sentences: Sequence[Sentence],
  labels: Sequence[str],
  *,
  min_count: int,
  characters: bool,
  tags: bool,
  longest_word: int,
  lower: bool,
  zero_digits: bool,
) -> Vocabulary:
  """The vocabulary of training sentences.

  Args:
    sentences: to learn from; what is held out must not be among them.
    labels: of their spans, as `Trees.labels` has them.
    min_count: a word or letter that occurs less often is unknown; tags are all known.
    characters: whether letters are read.
    tags: whether tags are read.
    longest_word: as in `Vocabulary`.
    lower: as in `Vocabulary`.
    zero_digits: as in `Vocabulary`.

  Raises:
    ValueError: if no word occurs so often.
  """
  spelled = lambda lower: (
    [spell(word, lower=lower, zero_digits=zero_digits) for word in one.words] for one in sentences
  )
  letters = (word[:longest_word] for each in spelled(False) for word in each)
  return Vocabulary(
    words.vocabulary(spelled(lower), min_count),
    words.vocabulary(letters, min_count) if characters else None,
    words.vocabulary((one.tags for one in sentences), 1) if tags else None,
    ('', *labels),
    longest_word,
    lower,
    zero_digits,
  )
