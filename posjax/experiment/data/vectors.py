"""Word vectors from a text file, as word2vec and GloVe write them: `word number number ...`."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from posjax.experiment.data.expression import path_of


class Vectors(NamedTuple):
  """Rows for a vocabulary.

  Attributes:
    table: [V, M]; what the file has not is 0.
    found: [V], whether the file has it.
  """

  table: Float[np.ndarray, 'V M']
  found: Bool[np.ndarray, ' V']


def read(path: str, ids: Mapping[str, int], rows: int, width: int) -> Vectors:
  """Reads the vectors of some words; the others in the file are passed over.

  A first line of two whole numbers (word2vec: words, width) is a header. Words are compared as they
  are, capitals too. Where the file has a word twice, the first one counts.

  Args:
    path: the file; `~` is the home folder. Its words need not be UTF-8 throughout.
    ids: the row of each word, below `rows`.
    rows: V.
    width: M, numbers in each vector.

  Raises:
    FileNotFoundError: there is no file.
    ValueError: a line has another width or no finite numbers, or the file has none of the words.
  """
  place = path_of(path)
  if not place.is_file():
    raise FileNotFoundError(f'vectors expects a file of word vectors, but none is at {place}.')
  wanted = {word.encode(): number for word, number in ids.items()}
  table, found = np.zeros((rows, width), np.float32), np.zeros(rows, bool)
  with place.open('rb') as file:
    for number, line in enumerate(file, start=1):
      parts = line.strip(b' \r\n').rsplit(b' ', width)
      if number == 1 and _is_header(line, f'{place}, line 1', width):
        continue
      # A word of GloVe may hold spaces; a last part that is a number makes the line too wide.
      if len(parts) != width + 1 or _is_number(parts[0].rpartition(b' ')[2], parts[0]):
        got = len(line.split()) - 1
        raise ValueError(
          f'{place}, line {number} should be a word and {width} numbers, the width of the model, '
          f'but has {got}.'
        )
      row = wanted.get(parts[0])
      if row is not None and not found[row]:
        table[row], found[row] = _floats(parts[1:], f'{place}, line {number}'), True
  if not found.any():
    raise ValueError(f'{place} has none of the {len(wanted)} words of the vocabulary.')
  return Vectors(table, found)


def initial(
  path: str | None, ids: Mapping[str, int], width: int, seed: int
) -> tuple[np.ndarray | None, int, bytes]:
  """Initial embeddings of variance 1/M: those of a file, and drawn ones for all other rows.

  Args:
    path: a file as of `read`; None draws none here.
    ids: the row of each word, from 2 on: row 0 is padding, and row 1 the unknown word.
    width: M.
    seed: of the rows that are drawn.

  Returns:
    [V, M], or None without a file; how many words have a vector in the file; and these vectors, for
    a hash.

  Raises:
    FileNotFoundError: as of `read`.
    ValueError: as of `read`, or all of these vectors are 0.
  """
  if path is None:
    return None, 0, b''
  rows = len(ids) + 2
  given = read(path, ids, rows, width)
  drawn = np.random.default_rng(seed).normal(size=(rows, width))
  known = given.table[given.found]
  if not known.any():
    raise ValueError(f'{path} should tell words apart, but all of their vectors are 0.')
  # One factor for all: as large on the whole as those that are drawn, else as they were.
  table = np.where(given.found[:, None], given.table / np.sqrt(np.square(known).mean()), drawn)
  return (table * width**-0.5).astype(np.float32), int(given.found.sum()), known.tobytes()


def _is_header(line: bytes, where: str, width: int) -> bool:
  parts = line.split()
  if len(parts) != 2 or not all(part.isdigit() for part in parts):
    return False
  if width == 1 or int(parts[1]) == width:
    return int(parts[1]) == width
  raise ValueError(
    f'{where} says vectors of {int(parts[1])} numbers, but the width of the model is {width}.'
  )


def _is_number(last: bytes, word: bytes) -> bool:
  """Whether a word with spaces ends with a number: then it is no word, but the line too wide."""
  if last == word:
    return False
  try:
    float(last)
  except ValueError:
    return False
  return True


def _floats(parts: list[bytes], where: str) -> np.ndarray:
  try:
    row = np.array([float(part) for part in parts], np.float32)
  except ValueError:
    raise ValueError(f'{where} should hold numbers after the word, but it does not.') from None
  if not np.isfinite(row).all():
    raise ValueError(f'{where} should hold finite numbers, but it does not.')
  return row
