"""Tagged sentences from a file or a folder, a token in each line: `file:PATH`."""

from pathlib import Path

from posjax.experiment.data import corpus
from posjax.experiment.tasks.tagging.tags import check_tag

Token = tuple[str, str, str]  # the token, its tag as the file has it, and its place
Raw = list[Token]

DOCUMENT = '-DOCSTART-'  # what CoNLL's files have in the place of a token before each document


def read(place: str) -> tuple[list[Raw], list[Raw], int]:
  """Reads a file of training sentences, or a folder that may have held-out ones, too.

  A line is a token, perhaps other columns, and a tag, parted by tabs, or by spaces where it has no
  tab. One blank line parts two sentences; more of them at the beginning and at the end of a file,
  and around a `-DOCSTART-` line, part nothing.

  Args:
    place: a file, or a folder with one file named `train.` and perhaps one named `dev.`, `val.`,
      `valid.` or `validation.`, with any ending; `~` is the home folder.

  Returns:
    Training sentences; held-out sentences, perhaps none; and how many `-DOCSTART-` lines were
    skipped.

  Raises:
    ValueError: a column is missing, a token is empty, a tag has no form that there is, a sentence
      has no tokens, a line is no UTF-8, or there is a held-out file without sentences.
    FileNotFoundError: there is no such file.
  """
  train_path, held_out_path = corpus.paths(place, 'train.conll')
  train, skipped = _sentences(train_path)
  if held_out_path is None:
    return train, [], skipped
  held_out, skipped_too = _sentences(held_out_path)
  return train, corpus.check_held_out(held_out_path, held_out), skipped + skipped_too


def _sentences(path: Path) -> tuple[list[Raw], int]:
  """All sentences of a file, and how many marks of documents it has."""
  found: list[Raw] = []
  columns, marks = 0, 0
  inside = False  # whether the line before is a token
  blank: list[str] = []  # places of the blank lines since the last token
  for where, line in corpus.lines(path):
    if line.startswith(DOCUMENT):
      marks, inside, blank = marks + 1, False, []
    elif not line.strip():
      if inside or blank:
        blank.append(where)
      inside = False
    else:
      if len(blank) > 1:
        raise ValueError(
          f'{blank[1]} should be a token and its tag, but there is an empty sentence: one '
          'blank line parts two sentences.'
        )
      token, columns = _token(line, where, columns)
      if inside:
        found[-1].append(token)
      else:
        found.append([token])
      inside, blank = True, []
  return found, marks


def _token(line: str, where: str, columns: int) -> tuple[Token, int]:
  """One token, and how many columns its line has.

  Args:
    line: not a blank one.
    where: its place.
    columns: how many the lines before it have; 0 for the first line.
  """
  cells = line.split('\t') if '\t' in line else [cell for cell in line.split(' ') if cell]
  if len(cells) < 2 or not cells[0] or len(cells) != (columns or len(cells)):
    expected = f'{columns} columns as in the lines before' if columns else 'a token and a tag'
    raise ValueError(
      f'{where} should have {expected}, the token first and the tag last, parted by tabs or '
      f'spaces, but is {line[:80]!r}.'
    )
  check_tag(cells[-1], where)
  return (cells[0], cells[-1], where), len(cells)
