"""Facts of a run: what was read, and what the model knows of it, in words."""

from collections.abc import Sequence

from posjax.experiment.data import sentences
from posjax.experiment.tasks.tagging.batches import Coded
from posjax.experiment.tasks.tagging.data import Columns, Sentence
from posjax.experiment.tasks.tagging.files import DOCUMENT
from posjax.experiment.tasks.tagging.tags import spans
from posjax.experiment.tasks.tagging.vocabulary import CHARACTERS, Vocabulary


def facts(
  columns: Columns,
  vocabulary: Vocabulary,
  train: Sequence[Coded],
  held_out: Sequence[Coded],
  limit: int,
) -> dict[str, str]:
  """Facts of a run by name.

  Args:
    columns: what was read.
    vocabulary: learned from its training sentences.
    train: its training sentences, encoded.
    held_out: its held-out sentences, encoded.
    limit: the widest row, in words.
  """
  parts = {'in training': columns.train, 'held out': columns.held_out}
  each = lambda count: ', '.join(f'{count(part):,} {name}' for name, part in parts.items())
  by_type = ', '.join(
    f'{type} {" and ".join(f"{_count(part, type):,}" for part in parts.values())}'
    for type in columns.types
  )
  first = f', the first at {columns.repaired[0]}' if columns.repaired else ''
  longest = lambda part: sentences.longest([(one.tokens, one.where) for one in part])
  made = {
    'data': columns.name,
    'sentences': f'{each(len)} ({columns.cut})',
    'tokens': each(lambda part: sum(len(one.tokens) for one in part)),
    'entities': f'{each(_count)} ({by_type})',
    'notation': f'{columns.notation}, read as BIOES',
    'repaired': f'{len(columns.repaired):,} sentences with tags that are illegal in '
    f'{columns.notation} have the entities that conlleval reads{first}',
    'document marks': f'{columns.documents:,} lines {DOCUMENT} were skipped',
    'sha256': columns.sha256,
    'questions': f'are cut {_cut_at(vocabulary)}',
    'words': f'{len(vocabulary.words.ids):,} known',
    'longest sentence': ', '.join(f'{longest(part)} {name}' for name, part in parts.items()),
    **sentences.facts(train, held_out, limit),
  }
  if vocabulary.characters is not None:
    every = [one.tokens for part in parts.values() for one in part]
    made['letters'] = vocabulary.spelling.described(vocabulary.characters, every, 'tokens')
  if vocabulary.bigrams is not None:
    made['bigrams'] = f'{len(vocabulary.bigrams.ids):,} known'
  return made


def _count(part: Sequence[Sentence], type: str | None = None) -> int:
  """How many entities these sentences have, of one type or of all."""
  return sum(type in (None, span.type) for one in part for span in spans(one.tags))


def _cut_at(vocabulary: Vocabulary) -> str:
  if vocabulary.by_letter:
    return f'into letters, since {CHARACTERS:.0%} of the training tokens or more have one'
  return 'at their spaces'
