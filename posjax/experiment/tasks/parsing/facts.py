"""Facts of a run: what was read, and what the model knows of it, in words."""

from collections.abc import Sequence

from posjax.experiment.data import sentences
from posjax.experiment.tasks.parsing.batches import Coded
from posjax.experiment.tasks.parsing.data import Trees
from posjax.experiment.tasks.parsing.spans import JOIN, TOP
from posjax.experiment.tasks.parsing.vocabulary import Vocabulary


def facts(
  trees: Trees,
  vocabulary: Vocabulary,
  train: Sequence[Coded],
  held_out: Sequence[Coded],
  limit: int,
) -> dict[str, str]:
  """Facts of a run by name.

  Args:
    trees: what was read.
    vocabulary: learned from its training sentences.
    train: its training sentences, encoded.
    held_out: its held-out sentences, encoded.
    limit: the widest row, in words.
  """
  parts = {'in training': trees.train, 'held out': trees.held_out}
  each = lambda count: ', '.join(f'{count(part):,} {name}' for name, part in parts.items())
  total = lambda count: each(lambda part: sum(count(one) for one in part))
  longest = lambda part: sentences.longest([(one.words, one.where) for one in part])
  chains = sum(JOIN in label for label in trees.labels)
  made = {
    'data': trees.name,
    'sentences': f'{each(len)} ({trees.cut})',
    'words': total(lambda one: len(one.words)),
    'constituents': f'{total(lambda one: len(one.spans))}, a chain counted as one',
    'labels': f'{len(trees.labels):,} in training, {chains:,} of them chains of constituents',
    'unseen labels': f'{sum(trees.unseen.values()):,} held-out constituents have labels that '
    f'training has not, and can only be missed: {", ".join(trees.unseen) or "none"}',
    'outermost bracket': f'{total(lambda one: one.spans[0].label == TOP)} hold no single '
    f'constituent, which {TOP} replaces',
    'taken off': trees.stripped,
    'sha256': trees.sha256,
    'vocabulary': f'{len(vocabulary.words.ids):,} words known',
    'longest sentence': ', '.join(f'{longest(part)} {name}' for name, part in parts.items()),
    **sentences.facts(train, held_out, limit),
  }
  if vocabulary.characters is not None:
    every = [one.words for one in (*trees.train, *trees.held_out)]
    made['letters'] = vocabulary.spelling.described(vocabulary.characters, every, 'words')
  if vocabulary.tags is not None:
    made['tags'] = f'{len(vocabulary.tags.ids):,} known, read as they are given'
  return made
