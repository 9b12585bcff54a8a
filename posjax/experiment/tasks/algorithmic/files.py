"""Questions and answers from a file, as SCAN has them: `file:PATH`.

A line is `question<TAB>answer`, both of words with spaces between. SCAN by the length of its
answers (Lake & Baroni 2018, https://arxiv.org/abs/1711.00350: up to 22 actions to learn from, 24 to
48 to be tested on) is such a file; so is any other rewriting of words.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posjax.experiment.data.corpus import fingerprint, lines
from posjax.experiment.data.expression import path_of

_HELD_OUT_ONE_IN = 20


class Pair(NamedTuple):
  """A question and its answer, as symbols; `held_out` is for testing at lengths trained on."""

  prompt: tuple[int, ...]
  answer: tuple[int, ...]
  held_out: bool


class Pairs(NamedTuple):
  """All questions of a file.

  Attributes:
    pairs: in the order of the file.
    alphabet: the word of each symbol, sorted.
    sha256: 64 hexadecimal digits of what was read.
  """

  pairs: tuple[Pair, ...]
  alphabet: tuple[str, ...]
  sha256: str

  def lengths(self) -> tuple[int, ...]:
    """The lengths of the answers, ascending, each once."""
    return tuple(sorted({len(pair.answer) for pair in self.pairs}))

  def most_prompt(self) -> int:
    """Symbols in the longest question."""
    return max(len(pair.prompt) for pair in self.pairs)


def read(path: str) -> Pairs:
  """Reads questions and answers.

  One question in 20, by a hash of its words, is held out: the same ones whatever else the file
  holds.

  Args:
    path: a file, or a folder whose `.tsv` files are read in the order of their names; `~` is the
      home folder.

  Returns:
    Pairs, one or more.

  Raises:
    FileNotFoundError: nothing is at `path`, or the folder holds no `.tsv` file.
    ValueError: a line is not a question, a tab and an answer, it is no UTF-8, or there is no line.
  """
  place = path_of(path)
  files = sorted(place.glob('*.tsv')) if place.is_dir() else [place]
  if not files or not files[0].is_file():
    what = 'no .tsv file is in the folder' if place.is_dir() else 'nothing is at'
    raise FileNotFoundError(f'file:PATH expects questions and answers, but {what} {place}.')
  found = [pair for file in files for pair in _split(file)]
  if not found:
    raise ValueError(f'{place} should hold questions and answers, but is empty.')
  alphabet = tuple(sorted({word for pair in found for part in pair for word in part}))
  symbols = {word: symbol for symbol, word in enumerate(alphabet)}
  code = lambda words: tuple(symbols[word] for word in words)
  pairs = tuple(Pair(code(q), code(a), _is_held_out(q)) for q, a in found)
  return Pairs(pairs, alphabet, fingerprint([file.read_bytes() for file in files], ()))


def _split(path: Path) -> list[tuple[list[str], list[str]]]:
  found = []
  for where, line in lines(path):
    parts = [part.split() for part in line.split('\t')]
    if len(parts) != 2 or not all(parts):
      raise ValueError(f'{where} should be a question, a tab and an answer, but is {line[:80]!r}.')
    found.append((parts[0], parts[1]))
  return found


def _is_held_out(words: Sequence[str]) -> bool:
  digest = hashlib.sha256(' '.join(words).encode()).digest()
  return int.from_bytes(digest[:8], 'big') % _HELD_OUT_ONE_IN == 0
