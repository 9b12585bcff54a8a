"""Shared by the readers of all tasks: lines of files, what is held out, and a hash of all of it.

The purpose of each file of a folder follows from words in its name. There is no word for tests:
what is to stay unseen until the end is not read here. Where nothing is held out, a hash chooses.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from posjax.experiment.data.expression import path_of
from posjax.experiment.data.words import split

TRAIN = frozenset({'train'})
HELD_OUT = frozenset({'dev', 'val', 'valid', 'validation'})
CUT = 10  # where nothing is held out, one example in ten is

Example = TypeVar('Example')


def lines(path: Path) -> Iterator[tuple[str, str]]:
  """The lines of a file in UTF-8, cut at its line feeds and nowhere else.

  A byte order mark at the beginning, a carriage return at the end of a line and a line feed at the
  end of the file are not text.

  Yields:
    A place, such as 'all.tsv, line 2', and the line.

  Raises:
    ValueError: a line is not UTF-8.
  """
  found = path.read_bytes().removeprefix(b'\xef\xbb\xbf').split(b'\n')
  if not found[-1]:
    found.pop()
  for number, line in enumerate(found, start=1):
    where = f'{path}, line {number}'
    yield where, decoded(line, where).rstrip('\r')


def decoded(text: str | bytes, where: str) -> str:
  """The text of UTF-8 bytes, if it is not text already.

  Raises:
    ValueError: it is not UTF-8; the message says where.
  """
  try:
    return text if isinstance(text, str) else bytes(text).decode()
  except UnicodeDecodeError as error:
    raise ValueError(
      f'{where} should be UTF-8, but {error.reason} at byte {error.start}.'
    ) from None


def read_lines(
  place: str, example: Callable[[str, str], Example]
) -> tuple[list[Example], list[Example]]:
  """Reads a file of training lines, or a folder that may have held-out ones, too.

  Args:
    place: as of `paths`.
    example: `(line, where) -> example`, which raises ValueError for a line that is none.

  Returns:
    Training examples and held-out ones, perhaps none.

  Raises:
    ValueError: a line is no example, or is not UTF-8; or as `paths` and `check_held_out`.
    FileNotFoundError: there is no such file.
  """
  train, held_out = paths(place, 'train.tsv')
  every = lambda path: [example(line, where) for where, line in lines(path)]
  return every(train), [] if held_out is None else check_held_out(held_out, every(held_out))


def paths(place: str, name: str) -> tuple[Path, Path | None]:
  """The training file that an expression names, and the held-out file where there is one.

  Args:
    place: a file, or a folder with one file named `train.` and perhaps one named `dev.`, `val.`,
      `valid.` or `validation.`, with any ending; `~` is the home folder.
    name: of a training file, for errors.

  Raises:
    ValueError: two files have such a name.
    FileNotFoundError: there is no such file.
  """
  path = path_of(place)
  if path.is_file():
    return path, None
  if not path.is_dir():
    raise FileNotFoundError(f'file:PATH expects a file or a folder, but nothing is at {path}.')
  train = _file_named(path, TRAIN)
  if train is None:
    names = ', '.join(sorted(each.name for each in path.iterdir())) or 'nothing'
    raise FileNotFoundError(f'The folder {path} should hold a {name}, but holds {names}.')
  return train, _file_named(path, HELD_OUT)


def _file_named(folder: Path, stems: frozenset[str]) -> Path | None:
  """The one file of a folder that has such a stem and any ending; None where there is none."""
  files = sorted(path for path in folder.iterdir() if path.is_file() and path.stem in stems)
  if len(files) > 1:
    names = ' and '.join(path.name for path in files)
    raise ValueError(f'The folder {folder} should hold one of {names}; or name a file.')
  return files[0] if files else None


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


def fold_of(text: str, folds: int) -> int:
  """The fold of a text, in [0, folds): of its words, so that spaces and capitals do not matter."""
  digest = hashlib.sha256(' '.join(split(text)).encode()).digest()
  return int.from_bytes(digest[:8], 'big') % folds


def divide(
  examples: Iterable[Example], text_of: Callable[[Example], str], folds: int = CUT, fold: int = 0
) -> tuple[list[Example], list[Example]]:
  """Holds out one fold of the examples, by a hash of their words.

  Which fold an example belongs to is a function of its words alone (`fold_of`): equal texts are
  never on both sides of a cut, and no other example matters.
  """
  parts: tuple[list[Example], list[Example]] = ([], [])
  for example in examples:
    parts[fold_of(text_of(example), folds) == fold].append(example)
  return parts


def hold_out(
  train: list[Example],
  held_out: list[Example],
  text_of: Callable[[Example], str],
  what: str,
  tune: bool = False,
) -> tuple[list[Example], list[Example], str]:
  """Training examples, held-out examples, and a sentence that says how these were chosen.

  Args:
    train: examples to learn from.
    held_out: examples that the data hold out; where there are none, one in ten of `train` is.
    text_of: an example's text, by whose words it is chosen.
    what: examples and text in words, as 'training pairs, by a hash of the premise'.
    tune: whether a tenth of the examples to learn from is held out in their place.
  """
  if not tune and held_out:
    return train, held_out, 'as given'
  cut = f'one in {CUT} of the {what}'
  if not tune:
    return *divide(train, text_of), cut
  learned = train if held_out else divide(train, text_of)[0]
  return *divide(learned, text_of, fold=1), f'{cut}, to tune on'


def check_parts(
  expression: str, what: str, train: Sequence[object], held_out: Sequence[object]
) -> None:
  """Raises ValueError if no example is left to learn from, or to hold out."""
  for purpose, part in (('learn from', train), ('hold out', held_out)):
    if not part:
      raise ValueError(f'{expression} leaves no {what} to {purpose}.')


def fingerprint(train: Iterable[bytes], held_out: Iterable[bytes]) -> str:
  """SHA-256 of two lists of documents, their order and their borders included.

  Two runs saw the same data if and only if they report the same 64 hexadecimal digits.
  """
  digest = hashlib.sha256()
  for name, documents in ((b'train', train), (b'held_out', held_out)):
    digest.update(name)
    for document in documents:
      # The length goes first, so that moving a border between two documents is seen.
      digest.update(len(document).to_bytes(8, 'little') + document)
  return digest.hexdigest()
