"""A file of training lines, or a folder with one and perhaps one of held-out lines."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from posjax.experiment.data.expression import path_of
from posjax.experiment.data.lines import lines
from posjax.experiment.data.splits import HELD_OUT, TRAIN, file_named

Example = TypeVar('Example')


def read(place: str, example: Callable[[str, str], Example]) -> tuple[list[Example], list[Example]]:
  """Reads a file of training lines, or a folder that may have held-out ones, too.

  Args:
    place: a file, or a folder with one file named `train.` and perhaps one named `dev.`, `val.`,
      `valid.` or `validation.`, with any ending; `~` is the home folder.
    example: `(line, where) -> example`, which raises ValueError for a line that is none.

  Returns:
    Training examples and held-out ones, perhaps none.

  Raises:
    ValueError: a line is no example, or is no UTF-8; two files have such a name; or there is a
      held-out file without lines, which would be taken for none.
    FileNotFoundError: there is no such file.
  """
  path = path_of(place)
  every = lambda path: [example(line, where) for where, line in lines(path, path.read_bytes())]
  if path.is_file():
    return every(path), []
  if not path.is_dir():
    raise FileNotFoundError(f'file:PATH expects a file or a folder, but nothing is at {path}.')
  train, held_out = file_named(path, TRAIN), file_named(path, HELD_OUT)
  if train is None:
    names = ', '.join(sorted(each.name for each in path.iterdir())) or 'nothing'
    raise FileNotFoundError(f'The folder {path} should hold a train.tsv, but holds {names}.')
  return every(train), [] if held_out is None else check_held_out(held_out, every(held_out))


def check_held_out(path: Path, examples: list[Example]) -> list[Example]:
  """The examples of a held-out file. Without any, others would be held out in their place.

  Raises:
    ValueError: if there are none.
  """
  if not examples:
    raise ValueError(
      f'{path} should hold what is held out, but it is empty: fill it or delete it, and a part of '
      'the training data is held out.'
    )
  return examples
