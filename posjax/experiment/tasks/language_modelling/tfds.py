"""Text from TensorFlow Datasets: `tfds:NAME`."""

from typing import Any

from posjax.experiment.data.tfds import examples, open_builder

_HELD_OUT = ('validation', 'test')


def read(name: str) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
  """Reads the train split, and the validation (or else test) split as held out text.

  Nothing is ever downloaded; `posjax.experiment.data.tfds` says where the data must be.

  Args:
    name: what `tfds.builder` takes, such as `tiny_shakespeare` or `imdb_reviews/plain_text`; with
      `#FEATURE` appended, such as `glue/sst2#sentence`, that feature instead of `text`.

  Returns:
    Documents to train on and documents held out: an example each, in the order of the files, empty
    ones left out. Everything is in memory at once (lm1b: about 4 GB).

  Raises:
    ImportError: tensorflow_datasets is not installed.
    ValueError: there is no such data set, configuration, feature or split.
    FileNotFoundError: the data was not prepared as array_record; the message says how to.
  """
  dataset, _, feature = name.partition('#')
  builder = open_builder(dataset)
  train = _documents(builder, dataset, ('train',), feature or 'text')
  return train, _documents(builder, dataset, _HELD_OUT, feature or 'text')


def _documents(
  builder: Any, dataset: str, splits: tuple[str, ...], feature: str
) -> tuple[bytes, ...]:
  features = builder.info.features
  if feature not in features:
    raise ValueError(
      f'tfds:{dataset} has no feature {feature!r}: name one of {", ".join(sorted(features))} '
      f'as tfds:{dataset}#FEATURE.'
    )
  source = examples(builder, dataset, splits)
  texts = (_to_bytes(source[i][feature], dataset, feature) for i in range(len(source)))
  return tuple(text for text in texts if text)


def _to_bytes(text: Any, dataset: str, feature: str) -> bytes:
  if isinstance(text, str):
    return text.encode()
  if isinstance(text, bytes):
    return text
  raise ValueError(
    f'Feature {feature!r} of tfds:{dataset} should be text, but is {type(text).__name__}.'
  )
