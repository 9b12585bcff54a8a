"""Facts of sentences in numbers, in words: what a parser knows of them, and what it does not."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posjax.experiment.data.buckets import longer
from posjax.experiment.data.sentences import lengths, unknown
from posjax.experiment.tasks.parsing.batches import Coded
from posjax.experiment.tasks.parsing.spans import Sentence
from posjax.experiment.tasks.parsing.vocabulary import Vocabulary

if TYPE_CHECKING:
  from posjax.experiment.tasks.parsing.data import Trees


def facts(
  trees: 'Trees',
  vocabulary: Vocabulary,
  train: Sequence[Coded],
  held_out: Sequence[Coded],
  widths: Sequence[int],
) -> dict[str, str]:
  """Facts of a run beside those of `trees.facts`, by name.

  Args:
    trees: what was read.
    vocabulary: learned from its training sentences.
    train: its training sentences, encoded.
    held_out: its held-out sentences, encoded.
    widths: of rows, rising.
  """
  told = {
    'vocabulary': f'{len(vocabulary.words.ids):,} words known; unknown are {unknown(train):.1%} of '
    f'those in training, {unknown(held_out):.1%} held out',
    'longest sentence': f'{_longest(trees.train)} in training, {_longest(trees.held_out)} held out',
    'left out': f'{longer(lengths(train), widths[-1]):,} training sentences of more than '
    f'{widths[-1]} words; held-out ones are neither left out nor cut',
  }
  if vocabulary.characters is not None:
    sentences = [one.words for one in (*trees.train, *trees.held_out)]
    told['letters'] = vocabulary.spelling.told(vocabulary.characters, sentences, 'words')
  if vocabulary.tags is not None:
    told['tags'] = f'{len(vocabulary.tags.ids):,} known, read as they are given'
  return told


def _longest(sentences: Sequence[Sentence]) -> str:
  longest = max(sentences, key=lambda one: len(one.words))
  return f'{len(longest.words):,} words ({longest.where})'
