"""Texts with labels from TensorFlow Datasets, read without TensorFlow: `tfds:NAME`."""

from typing import Any

from posjax.experiment.data.corpus import decoded
from posjax.experiment.data.tfds import library, open_builder, read_split

Example = tuple[str, str, str]


def read(name: str) -> tuple[list[Example], list[Example]]:
  """Reads the train split, and the validation split where there is one.

  The test split is never read: it stays unseen. Nothing is ever
  downloaded; `posjax.experiment.data.tfds` says where the data must be.

  Args:
    name: what `tfds.builder` takes, such as `glue/sst2`; with `#FEATURE`, or `#FEATURE+FEATURE`,
      where there are several texts or several labels: `trec#label-coarse`,
      `ag_news_subset#description`.

  Returns:
    Training texts and held-out texts, perhaps none: (label, text, where).

  Raises:
    ImportError: tensorflow_datasets is not installed.
    ValueError: there is no such data set, configuration or feature; not one text and one label; or
      an example has no label, or a text that is no UTF-8.
    FileNotFoundError: the data was not prepared as array_record.
  """
  dataset, _, chosen = name.partition('#')
  builder = open_builder(dataset)
  text, label = _features(builder, dataset, chosen.split('+') if chosen else [])
  names = builder.info.features[label].names
  read_one = lambda example, where: _example(example, text, label, names, where)
  parts = ['train', *(['validation'] if 'validation' in builder.info.splits else [])]
  found = [read_split(builder, dataset, split, read_one) for split in parts]
  return found[0], found[1] if len(found) > 1 else []


def _features(builder: Any, dataset: str, chosen: list[str]) -> tuple[str, str]:
  """The names of the text and of the label."""
  features = builder.info.features
  unknown = [name for name in chosen if name not in features]
  if unknown:
    raise ValueError(
      f'tfds:{dataset} has no feature {unknown[0]!r}; it has {", ".join(sorted(features))}.'
    )
  kinds = library().features
  found = []
  for what, kind in (('text', kinds.Text), ('label', kinds.ClassLabel)):
    names = [name for name in sorted(features) if isinstance(features[name], kind)]
    picked = [name for name in names if name in chosen] or names
    if len(picked) != 1:
      raise ValueError(
        f'tfds:{dataset} should have one {what}, but has {", ".join(picked) or "none"}: name one '
        f'as tfds:{dataset}#FEATURE, or the text and the label as #FEATURE+FEATURE.'
      )
    found.append(picked[0])
  strange = [name for name in chosen if name not in found]
  if strange:
    raise ValueError(f'Feature {strange[0]!r} of tfds:{dataset} is neither a text nor a label.')
  return found[0], found[1]


def _example(example: Any, text: str, label: str, names: list[str], where: str) -> Example:
  number, words = int(example[label]), example[text]
  if not 0 <= number < len(names):
    raise ValueError(f'{where} should have a label in [0, {len(names)}), but has {number}.')
  return names[number], decoded(words, where), where
