"""Parallel text from TensorFlow Datasets, read without TensorFlow: `tfds:NAME`."""

from typing import Any

from posjax.experiment.data.tfds import examples, library, open_builder

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
  train = _pairs(builder, dataset, _TRAIN, source, target)
  if held_out is None and _HELD_OUT not in builder.info.splits:
    return train, None, ''
  split = held_out or _HELD_OUT
  return train, _pairs(builder, dataset, split, source, target), f'split {split}'


def _pairs(builder: Any, dataset: str, split: str, source: str, target: str) -> list[Example]:
  found, made = examples(builder, dataset, (split,)), []
  for number in range(len(found)):
    where, example = f'tfds:{dataset}, split {split}, example {number}', found[number]
    made.append((_text(example[source], where), _text(example[target], where), where))
  return made


def _text(content: str | bytes, where: str) -> str:
  if isinstance(content, str):
    return content
  try:
    return bytes(content).decode()
  except UnicodeDecodeError as error:
    raise ValueError(
      f'{where} should be UTF-8, but {error.reason} at byte {error.start}.'
    ) from None
