"""Parallel text from a folder with a file for each language: `file:PATH`.

Line n of `train.de` and line n of `train.en` are a pair; so are the lines of `val.de` and `val.en`.
"""

from pathlib import Path

from posjax.experiment.data.corpus import HELD_OUT, lines
from posjax.experiment.data.expression import path_of

Example = tuple[str, str, str]

_TRAIN = 'train'


def read(
  place: str, source: str, target: str, held_out: str | None
) -> tuple[list[Example], list[Example] | None, str]:
  """Reads the training pairs of a folder, and its held-out ones.

  A line ends at a line feed alone; a carriage return before it, a byte order mark and the line feed
  at the end of the file are not text. A blank line, also the last one, is an empty sentence, since
  the other file has a line for it.

  Args:
    place: the folder; `~` is the home folder. Other files than those named are not read.
    source: the ending of the files with the sentences: 'de'.
    target: the ending of the files with their translations: 'en'.
    held_out: the stem of the held-out files. None: 'dev', 'val', 'valid' or 'validation', the one
      that the folder has.

  Returns:
    Training pairs; held-out pairs, None if the folder has no such files and none were named; and
    the names of the held-out files, in words.

  Raises:
    ValueError: two files have different numbers of lines; a line is not UTF-8; the folder has
      held-out files of two names, of which none was chosen; or the training files were.
    FileNotFoundError: there is no such folder, or a file is missing.
  """
  folder = path_of(place)
  if not folder.is_dir():
    is_there = 'is a file' if folder.exists() else 'is not there'
    raise FileNotFoundError(
      f'file:PATH expects a folder with {_TRAIN}.{source} and {_TRAIN}.{target}, but {folder} '
      f'{is_there}.'
    )
  if held_out == _TRAIN:
    raise ValueError(f'held_out must name other files than {_TRAIN!r}, which are learned from.')
  train = _pairs(folder, _TRAIN, source, target)
  stem = held_out or _held_out(folder, source, target)
  if stem is None:
    return train, None, ''
  return train, _pairs(folder, stem, source, target), f'{stem}.{source} and {stem}.{target}'


def _held_out(folder: Path, source: str, target: str) -> str | None:
  """The one stem of files that are held out by their name; None where there is none."""
  there = {path.name for path in folder.iterdir()}
  stems = [stem for stem in sorted(HELD_OUT) if {f'{stem}.{source}', f'{stem}.{target}'} & there]
  if len(stems) > 1:
    raise ValueError(
      f'The folder {folder} has held-out files named {" and ".join(stems)}: name one of them as '
      'held_out.'
    )
  return stems[0] if stems else None


def _pairs(folder: Path, stem: str, source: str, target: str) -> list[Example]:
  paths = [folder / f'{stem}.{language}' for language in (source, target)]
  missing = [path.name for path in paths if not path.is_file()]
  if missing:
    there = ', '.join(sorted(path.name for path in folder.iterdir())) or 'nothing'
    raise FileNotFoundError(
      f'The folder {folder} should hold {" and ".join(missing)}, but holds {there}.'
    )
  first, second = ([*lines(path)] for path in paths)
  if len(first) != len(second):
    raise ValueError(
      f'{paths[0]} has {len(first):,} lines and {paths[1]} has {len(second):,}: each line of one '
      'should be the translation of the same line of the other.'
    )
  return [
    (sentence, translation, where)
    for (where, sentence), (_, translation) in zip(first, second, strict=True)
  ]
