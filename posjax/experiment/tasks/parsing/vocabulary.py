"""Numbers of words, of letters, of tags and of labels, learned from training sentences."""

from collections.abc import Sequence
from typing import NamedTuple

from posjax.experiment.data import words
from posjax.experiment.data.spelling import Spelling
from posjax.experiment.tasks.parsing.batches import Coded
from posjax.experiment.tasks.parsing.spans import Sentence, Span, check_tags, gold


class Vocabulary(NamedTuple):
  """The words that a parser reads, and the labels that it says.

  Attributes:
    words: of the training sentences, as `spelling` has them.
    characters: their letters; None if unused.
    tags: of the training sentences; None if unused.
    labels: the names: '', which is no constituent, and those of spans in training, the most
      frequent first.
    spelling: how words and letters are looked up.
  """

  words: words.Words
  characters: words.Words | None
  tags: words.Words | None
  labels: tuple[str, ...]
  spelling: Spelling

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
    return Coded(
      self.words.encode(map(self.spelling.word, tokens)),
      gold(spans, {name: number for number, name in enumerate(self.labels)}, len(tokens)),
      None if self.characters is None else self.spelling.encode_letters(self.characters, tokens),
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
  spelling: Spelling,
) -> Vocabulary:
  """The vocabulary of training sentences.

  Args:
    sentences: to learn from; what is held out must not be among them.
    labels: of their spans, as `Trees.labels` has them.
    min_count: a word or letter that occurs less often is unknown; tags are all known.
    characters: whether letters are read.
    tags: whether tags are read.
    spelling: as in `Vocabulary`.

  Raises:
    ValueError: if no word occurs so often.
  """
  spelled = (map(spelling.word, one.words) for one in sentences)
  letters = (spelling.letters(word) for one in sentences for word in one.words)
  return Vocabulary(
    words.vocabulary(spelled, min_count),
    words.vocabulary(letters, min_count) if characters else None,
    words.vocabulary((one.tags for one in sentences), 1) if tags else None,
    ('', *labels),
    spelling,
  )
