"""Facts of parallel text: what was read, and what became of it, in words."""

from collections.abc import Sequence

import numpy as np

from posjax.experiment.data.buckets import longer
from posjax.experiment.tasks.translation.batches import lengths
from posjax.experiment.tasks.translation.data import Pair, Parallel
from posjax.experiment.tasks.translation.vocabulary import MARKS, Coded, Language, Vocabulary


def facts(
  parallel: Parallel,
  vocabulary: Vocabulary,
  train: Sequence[Coded],
  held_out: Sequence[Coded],
  widths: Sequence[int],
) -> dict[str, str]:
  """Facts of a run, by name.

  Args:
    parallel: what was read.
    vocabulary: learned from its training pairs.
    train: its training pairs, encoded.
    held_out: its held-out pairs, encoded.
    widths: of rows, rising.
  """
  too_long = f'more than {widths[-1]} tokens'
  left_out = {**parallel.left_out, too_long: longer(lengths(train), widths[-1])}
  sides = {parallel.source: 'source', parallel.target: 'target'}
  wider = longer(lengths(held_out), widths[-1])
  return {
    'data': f'{parallel.name}, {parallel.source} to {parallel.target}',
    'pairs': f'{len(train):,} to learn from, {len(held_out):,} held out ({parallel.cut})',
    'left out': ', '.join(
      f'{count:,} training pairs with {reason}' for reason, count in left_out.items()
    ),
    'empty': f'{_empty(parallel.held_out):,} held-out pairs have an empty side',
    'equal sides': f'{sum(pair.source == pair.target for pair in parallel.train):,} training pairs '
    'have equal sides',
    'seen before': f'{_seen(parallel):,} held-out sources are training sources, too',
    'vocabulary': _size(parallel, vocabulary),
    'tokens in a sentence': ', '.join(
      f'{name} {_mean(train, side):.1f} in training and {_mean(held_out, side):.1f} held out'
      for name, side in sides.items()
    ),
    'unknown tokens': ', '.join(
      f'{name} {_unknown(getattr(vocabulary, side), train, held_out, side)}'
      for name, side in sides.items()
    ),
    'longest sentence': f'{_longest(parallel.train, train)} in training, '
    f'{_longest(parallel.held_out, held_out)} held out',
    'wide rows': f'{wider:,} held-out pairs have more than {widths[-1]} tokens, and are not cut',
    'sha256': parallel.sha256,
  }


def _empty(pairs: Sequence[Pair]) -> int:
  return sum(not (pair.source.strip() and pair.target.strip()) for pair in pairs)


def _seen(parallel: Parallel) -> int:
  known = {pair.source for pair in parallel.train}
  return sum(pair.source in known for pair in parallel.held_out)


def _size(parallel: Parallel, vocabulary: Vocabulary) -> str:
  size = lambda side: (
    f'{side.size:,} tokens: {len(MARKS)} marks and {side.size - len(MARKS):,} {side.unit}s'
  )
  if vocabulary.joint:
    return f'{size(vocabulary.source)}, for both sides'
  return f'{parallel.source} {size(vocabulary.source)}; {parallel.target} {size(vocabulary.target)}'


def _mean(pairs: Sequence[Coded], side: str) -> float:
  return float(np.mean([len(getattr(pair, side)) for pair in pairs]))


def _unknown(
  language: Language, train: Sequence[Coded], held_out: Sequence[Coded], side: str
) -> str:
  if language.unknown is None:
    return 'none'
  counts = [
    sum(int((getattr(pair, side) == language.unknown).sum()) for pair in part)
    for part in (train, held_out)
  ]
  return f'{counts[0]:,} in training and {counts[1]:,} held out'


def _longest(pairs: Sequence[Pair], coded: Sequence[Coded]) -> str:
  lengths = [each.length() for each in coded]
  at = int(np.argmax(lengths))
  return f'{lengths[at]:,} tokens ({pairs[at].where})'
