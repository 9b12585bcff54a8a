"""Facts of sentences with tags: what was read, and what became of it, in words."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from posjax.experiment.data.columns.tags import spans

from posjax.experiment.data.columns.batches import Coded, longer
from posjax.experiment.data.columns.vocabulary import CHARACTERS, Vocabulary
from posjax.experiment.data.words import UNKNOWN_ID

if TYPE_CHECKING:
  from posjax.experiment.data.columns import Columns, Sentence


def facts(
  columns: 'Columns',
  vocabulary: Vocabulary,
  train: Sequence[Coded],
  held_out: Sequence[Coded],
  widths: Sequence[int],
) -> dict[str, str]:
  """Facts of a run, by name, but for its scores and its vectors.

  Args:
    columns: what was read.
    vocabulary: learned from its training sentences.
    train: its training sentences, encoded.
    held_out: its held-out sentences, encoded.
    widths: of rows, rising.
  """
  both = (columns.train, columns.held_out)
  words = [sum(len(each.tokens) for each in part) for part in both]
  unknown = [_unknown(part) for part in (train, held_out)]
  counts = [_entities(part) for part in both]
  told = {
    'sentences': f'{len(train):,} to learn from, {len(held_out):,} held out ({columns.cut})',
    'left out': f'{longer(train, widths[-1]):,} training sentences of more than {widths[-1]} words',
    'tokens': f'{words[0]:,} to learn from, {words[1]:,} held out; {_kind(vocabulary)}',
    'entities': '; '.join(
      f'{name} {counts[0][name]:,} and {counts[1][name]:,}' for name in columns.types
    )
    + ' (to learn from and held out)',
    'words': f'{len(vocabulary.words.ids):,} known; unknown are {unknown[0]:.1%} in training '
    f'sentences, {unknown[1]:.1%} held out',
    'longest sentence': f'{_longest(columns.train)} to learn from, {_longest(columns.held_out)} '
    'held out, none of which is cut',
  }
  if vocabulary.characters is not None:
    cut = [_cut(part, vocabulary.longest_word) for part in both]
    told['letters'] = (
      f'{len(vocabulary.characters.ids):,} known; {cut[0]:,} words to learn from and {cut[1]:,} '
      f'held out have more than {vocabulary.longest_word}, of which the first are read'
    )
  if vocabulary.bigrams is not None:
    told['bigrams'] = f'{len(vocabulary.bigrams.ids):,} known'
  return told


def baseline(train: 'Sequence[Sentence]', held_out: 'Sequence[Sentence]') -> list[tuple[str, ...]]:
  """Each word's most frequent tag in training, the first by alphabet of equals; 'O' if unknown.

  Args:
    train: to count in.
    held_out: the words that are tagged.
  """
  counts: dict[str, Counter[str]] = {}
  for each in train:
    for token, tag in zip(each.tokens, each.tags, strict=True):
      counts.setdefault(token, Counter())[tag] += 1
  best = {token: min(seen, key=lambda tag: (-seen[tag], tag)) for token, seen in counts.items()}
  return [tuple(best.get(token, 'O') for token in each.tokens) for each in held_out]


def _kind(vocabulary: Vocabulary) -> str:
  if vocabulary.by_letter:
    return (
      f'they are letters ({CHARACTERS:.0%} of those to learn from have one), so what is asked is '
      'cut into letters'
    )
  return 'they are words, so what is asked is cut at its spaces'


def _unknown(sentences: Sequence[Coded]) -> float:
  count = sum(len(one.words) for one in sentences)
  return sum(int((one.words == UNKNOWN_ID).sum()) for one in sentences) / count


def _entities(sentences: 'Sequence[Sentence]') -> Counter[str]:
  return Counter(span[0] for each in sentences for span in spans(each.tags, 'BIOES'))


def _longest(sentences: 'Sequence[Sentence]') -> str:
  longest = max(sentences, key=lambda each: len(each.tokens))
  return f'{len(longest.tokens):,} words ({longest.where})'


def _cut(sentences: 'Sequence[Sentence]', longest_word: int) -> int:
  return sum(len(token) > longest_word for each in sentences for token in each.tokens)
