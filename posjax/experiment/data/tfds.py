"""TensorFlow Datasets, read without TensorFlow: what the readers of `tfds:NAME` share.

Nothing is ever downloaded here: without a network that would hang for minutes. The data must have
been prepared as array_record, under `TFDS_DATA_DIR` or `~/tensorflow_datasets`.
"""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

Example = TypeVar('Example')

# Builders inside the wheel are known only once their package is imported (glue, wmt16_translate).
_PACKAGES = ('text', 'translate', 'question_answering', 'summarization', 'text_simplification')


def open_builder(dataset: str) -> Any:
  """The builder of a data set.

  Args:
    dataset: what `tfds.builder` takes, such as `tiny_shakespeare` or `imdb_reviews/plain_text`.

  Raises:
    ImportError: tensorflow_datasets is not installed.
    ValueError: there is no such data set or configuration.
  """
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


def examples(builder: Any, dataset: str, splits: tuple[str, ...]) -> Any:
  """The examples of the first of these splits that there is.

  Args:
    builder: of `open_builder`.
    dataset: its name, for errors.
    splits: names of splits.

  Raises:
    ValueError: there is none of these splits.
    FileNotFoundError: the data was not prepared as array_record; the message says how to.
  """
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


def read_split(
  builder: Any, dataset: str, split: str, example: Callable[[Any, str], Example]
) -> list[Example]:
  """All examples of a split; `example(entry, where)` reads one, as `examples` finds them."""
  source = examples(builder, dataset, (split,))
  where = f'tfds:{dataset}, split {split}, example'
  return [example(source[number], f'{where} {number}') for number in range(len(source))]


def _how_to_prepare(builder: Any, dataset: str) -> str:
  return (
    f'tfds:{dataset} is not prepared as array_record in {builder.data_path}: where there is a '
    f"network, run tfds.builder({dataset!r}, file_format='array_record').download_and_prepare()."
  )
