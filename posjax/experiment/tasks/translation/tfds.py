"""Parallel text from TensorFlow Datasets, read without TensorFlow: `tfds:NAME`."""

from typing import Any

from posjax.experiment.data.corpus import decoded
from posjax.experiment.data.tfds import library, open_builder, read_split

Example = tuple[str, str, str]

_TRAIN, _HELD_OUT = 'train', 'validation'


def read(
  dataset: str, source: str, target: str, held_out: str | None
) -> tuple[list[Example], list[Example] | None, str]:
  """Reads the train split, and the split that is held out.

  Nothing is ever downloaded; `posjax.experiment.data.tfds` says where the data must be. Everything
  is in memory at once (wmt14_translate/de-en: some 3 GB).

  Args:
    dataset: what `tfds.builder` takes, such as `wmt14_translate/de-en`.
    source: the name of the feature to translate from: 'de'.
    target: the name of the feature to translate to: 'en'.
    held_out: the name of a split. None: 'validation', where there is one.

  Returns:
    Training pairs; held-out pairs, None if there is no such split and none was named; and the name
    of the held-out split, in words.

  Raises:
    ImportError: tensorflow_datasets is not installed.
    ValueError: there is no such data set, configuration or split; it has no text in such a
      language; a text is not UTF-8; or the training split was named as held out.
    FileNotFoundError: the data was not prepared as array_record.
  """
  builder = open_builder(dataset)
  features = builder.info.features
  texts = [name for name in sorted(features) if isinstance(features[name], library().features.Text)]
  for language in (source, target):
    if language not in texts:
      raise ValueError(
        f'tfds:{dataset} has no text in {language!r}, but has {", ".join(texts) or "none"}.'
      )
  if held_out == _TRAIN:
    raise ValueError(f'held_out must name another split than {_TRAIN!r}, which is learned from.')

  def pair(example: Any, where: str) -> Example:
    return decoded(example[source], where), decoded(example[target], where), where

  train = read_split(builder, dataset, _TRAIN, pair)
  if held_out is None and _HELD_OUT not in builder.info.splits:
    return train, None, ''
  split = held_out or _HELD_OUT
  return train, read_split(builder, dataset, split, pair), f'split {split}'
