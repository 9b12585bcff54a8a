"""Which part of the data is learned from, and which is held out.

The purpose of each file of a folder is told by words in its name. There is no word for tests: what
is to stay unseen until the end is read by nobody here. Where nothing is held out, a hash chooses.
"""

import hashlib
from pathlib import Path

from posjax.experiment.data.words import split

TRAIN = frozenset({'train'})
HELD_OUT = frozenset({'dev', 'val', 'valid', 'validation'})
CUT = 10  # where nothing is held out, one text in ten is


def fold_of(text: str, folds: int) -> int:
  """The fold of a text, in [0, folds): of its words, so that spaces and capitals do not matter."""
  digest = hashlib.sha256(' '.join(split(text)).encode()).digest()
  return int.from_bytes(digest[:8], 'big') % folds


def file_named(folder: Path, stems: frozenset[str]) -> Path | None:
  """The one file of a folder that has such a name and any ending; None where there is none.

  Args:
    folder: where to look.
    stems: names without an ending, such as `TRAIN` or `HELD_OUT`.

  Raises:
    ValueError: there are several such files.
  """
  files = sorted(path for path in folder.iterdir() if path.is_file() and path.stem in stems)
  if len(files) > 1:
    names = ' and '.join(path.name for path in files)
    raise ValueError(f'The folder {folder} should hold one of {names}; or name a file.')
  return files[0] if files else None
