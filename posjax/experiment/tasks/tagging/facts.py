"""Facts of sentences in numbers, in words: what a model knows of them, and what it does not."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posjax.experiment.data.buckets import longer
from posjax.experiment.data.sentences import lengths, unknown
from posjax.experiment.tasks.tagging.batches import Coded
from posjax.experiment.tasks.tagging.vocabulary import CHARACTERS, Vocabulary

if TYPE_CHECKING:
  from posjax.experiment.tasks.tagging.data import Columns, Sentence


def facts(
  columns: 'Columns',
  vocabulary: Vocabulary,
  train: Sequence[Coded],
  held_out: Sequence[Coded],
  widths: Sequence[int],
) -> dict[str, str]:
  """Facts of a run beside those of `columns.facts`, by name.

  Args:
    columns: what was read.
    vocabulary: learned from its training sentences.
    train: its training sentences, encoded.
    held_out: its held-out sentences, encoded.
    widths: of rows, rising.
  """
  parts = ((columns.train, train), (columns.held_out, held_out))
  told = {
    'what is asked': _cut_at(vocabulary),
    'words': f'{len(vocabulary.words.ids):,} known; unknown are {unknown(train):.1%} of the tokens '
    f'in training, {unknown(held_out):.1%} held out',
    'longest sentence': ', '.join(
      f'{_longest(part)} {where}'
      for (part, _), where in zip(parts, ('in training', 'held out'), strict=True)
    ),
    'left out': f'{longer(lengths(train), widths[-1]):,} training sentences of more than '
    f'{widths[-1]} tokens; held-out ones are neither left out nor cut',
  }
  if vocabulary.characters is not None:
    sentences = [one.tokens for part, _ in parts for one in part]
    told['letters'] = vocabulary.spelling.told(vocabulary.characters, sentences, 'tokens')
  if vocabulary.bigrams is not None:
    told['bigrams'] = f'{len(vocabulary.bigrams.ids):,} known'
  return told


def _cut_at(vocabulary: Vocabulary) -> str:
  if vocabulary.by_letter:
    return f'is cut into letters, since {CHARACTERS:.0%} of the training tokens or more have one'
  return 'is cut at its spaces'


def _longest(sentences: 'Sequence[Sentence]') -> str:
  longest = max(sentences, key=lambda each: len(each.tokens))
  return f'{len(longest.tokens):,} tokens ({longest.where})'
