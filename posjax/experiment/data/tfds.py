"""Text from TensorFlow Datasets, read without TensorFlow: `tfds:NAME`."""

import difflib
import importlib
import importlib.util
import re
from types import ModuleType
from typing import Any

_HELD_OUT = ('validation', 'test')
# Builders inside the wheel are known only once their package is imported (glue, wmt16_translate).
_PACKAGES = ('text', 'translate', 'question_answering', 'summarization', 'text_simplification')


def read(name: str) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
  """Reads the train split, and the validation (or else test) split as held out text.

  Nothing is ever downloaded here: without a network that would hang for minutes. The data must have
  been prepared as array_record, under `TFDS_DATA_DIR` or `~/tensorflow_datasets`.

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


def open_builder(dataset: str) -> Any:
  """The builder of a data set; raises as `read` does."""
  datasets = library()
  try:
    return datasets.builder(dataset)
  except ValueError as error:
    # The library's own message lists hundreds of names over as many lines.
    base = re.split('[/:]', dataset)[0]
    known = datasets.list_builders(with_community_datasets=False)
    reason = str(error).partition('\n')[0] if base in known else _unknown(base, known)
    raise ValueError(f'tfds:{dataset} cannot be read: {reason}') from error


def _unknown(base: str, known: list[str]) -> str:
  close = difflib.get_close_matches(base, known, n=3)
  hint = f'; did you mean {" or ".join(close)}?' if close else '.'
  return f'none of the {len(known)} data sets of TensorFlow Datasets is named {base!r}{hint}'


def library() -> ModuleType:
  """TensorFlow Datasets with the packages whose builders it knows only once they are imported."""
  if importlib.util.find_spec('tensorflow_datasets') is None:
    raise ImportError("tfds:NAME needs tensorflow_datasets: pip install 'posjax[train]'.")
  for package in _PACKAGES:
    importlib.import_module(f'tensorflow_datasets.{package}')
  return importlib.import_module('tensorflow_datasets')


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


def examples(builder: Any, dataset: str, splits: tuple[str, ...]) -> Any:
  """The examples of the first of these splits that there is; raises as `read` does."""
  # as_data_source is asked rather than is_prepared(): it alone knows the formats that it can read.
  for split in splits:
    try:
      return builder.as_data_source(split)
    except NotImplementedError as error:
      raise FileNotFoundError(_how_to_prepare(builder, dataset)) from error
    except ValueError:
      if split in builder.info.splits:
        raise
  raise ValueError(
    f'tfds:{dataset} should have a split named {" or ".join(splits)}, '
    f'but has {", ".join(builder.info.splits)}.'
  )


def _how_to_prepare(builder: Any, dataset: str) -> str:
  return (
    f'tfds:{dataset} is not prepared as array_record in {builder.data_path}: where there is a '
    f"network, run tfds.builder({dataset!r}, file_format='array_record').download_and_prepare()."
  )


def _to_bytes(text: Any, dataset: str, feature: str) -> bytes:
  if isinstance(text, str):
    return text.encode()
  if isinstance(text, bytes):
    return text
  raise ValueError(
    f'Feature {feature!r} of tfds:{dataset} should be text, but is {type(text).__name__}.'
  )
