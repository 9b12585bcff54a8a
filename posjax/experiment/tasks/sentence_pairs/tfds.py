"""Sentence pairs from TensorFlow Datasets, read without TensorFlow: `tfds:NAME`."""

from typing import Any

from posjax.experiment.data.corpus import decoded
from posjax.experiment.data.tfds import library, open_builder, read_split

Example = tuple[str, str, str, str]

SIDES = (('premise', 'hypothesis'), ('question1', 'question2'), ('sentence1', 'sentence2'))
_HELD_OUT = ('validation', 'validation_matched')


def read(name: str) -> tuple[list[Example], list[Example]]:
  """Reads the train split, and the validation split where there is one.

  Of MultiNLI the matched validation split is read. The test split is never read: it stays unseen.
  Nothing is ever downloaded; `posjax.experiment.data.tfds` says where the data must be.

  Args:
    name: what `tfds.builder` takes, such as `snli`, `multi_nli`, `glue/qqp` or `sci_tail`. The
      sentences are its features `premise` and `hypothesis`, or those with another pair of names
      among `SIDES`; others are named in their order, as in `glue/qnli#question+sentence`.

  Returns:
    Training pairs and held-out pairs, perhaps none: (label, premise, hypothesis, where). Labels
    have the names of the data set; a pair whose label is -1 has none, and the label is ''.

  Raises:
    ImportError: tensorflow_datasets is not installed.
    ValueError: there is no such data set, configuration or feature; not two sentences and one
      label; or an example has another label, or a sentence that is no UTF-8.
    FileNotFoundError: the data was not prepared as array_record.
  """
  dataset, _, chosen = name.partition('#')
  builder = open_builder(dataset)
  sides = _sides(builder, dataset, chosen)
  label = _label(builder, dataset)
  names = builder.info.features[label].names
  splits = ['train', *[split for split in _HELD_OUT if split in builder.info.splits][:1]]
  read_one = lambda example, where: _example(example, sides, label, names, where)
  found = [read_split(builder, dataset, split, read_one) for split in splits]
  return found[0], found[1] if len(found) > 1 else []


def _sides(builder: Any, dataset: str, chosen: str) -> tuple[str, str]:
  """The names of the two sentences."""
  features, text = builder.info.features, library().features.Text
  texts = sorted(name for name in features if isinstance(features[name], text))
  asked = [tuple(chosen.split('+'))] if chosen else list(SIDES)
  found = [sides for sides in asked if len(set(sides)) == 2 and set(sides) <= set(texts)]
  if not found:
    names = f'#{chosen}' if chosen else ', or '.join(' and '.join(sides) for sides in SIDES)
    raise ValueError(
      f'tfds:{dataset} should have two texts named {names}, but has {", ".join(texts) or "none"}: '
      f'name two as tfds:{dataset}#FIRST+SECOND.'
    )
  return found[0][0], found[0][1]


def _label(builder: Any, dataset: str) -> str:
  features, kind = builder.info.features, library().features.ClassLabel
  names = sorted(name for name in features if isinstance(features[name], kind))
  if len(names) != 1:
    raise ValueError(f'tfds:{dataset} should have one label, but has {", ".join(names) or "none"}.')
  return names[0]


def _example(
  example: Any, sides: tuple[str, str], label: str, names: list[str], where: str
) -> Example:
  number = int(example[label])
  if not -1 <= number < len(names):
    raise ValueError(f'{where} should have a label in [-1, {len(names)}), but has {number}.')
  first, second = (decoded(example[side], where) for side in sides)
  return names[number] if number >= 0 else '', first, second, where
