"""Texts with labels from a file or a folder of `label<TAB>text` lines: `file:PATH`."""

from pathlib import Path

from posjax.experiment.data.lines import lines
from posjax.experiment.data.splits import HELD_OUT, TRAIN, file_named

Example = tuple[str, str, str]


def read(place: str) -> tuple[list[Example], list[Example]]:
  """Reads a file of training texts, or a folder that may have held-out ones, too.

  Args:
    place: a file, or a folder with one file named `train.` and perhaps one named `dev.`, `val.`,
      `valid.` or `validation.`, with any ending; `~` is the home folder.

  Returns:
    Training texts and held-out texts, perhaps none: (label, text, where).

  Raises:
    ValueError: a line is not a label, a tab and a text, or is no UTF-8.
    FileNotFoundError: there is no such file.
  """
  path = Path(place).expanduser()
  if path.is_file():
    return _lines(path), []
  if not path.is_dir():
    raise FileNotFoundError(f'file:PATH expects a file or a folder, but nothing is at {path}.')
  train, held_out = file_named(path, TRAIN), file_named(path, HELD_OUT)
  if train is None:
    names = ', '.join(sorted(each.name for each in path.iterdir())) or 'nothing'
    raise FileNotFoundError(f'The folder {path} should hold a train.tsv, but holds {names}.')
  return _lines(train), [] if held_out is None else _lines(held_out)


def _lines(path: Path) -> list[Example]:
  return [_example(line, where) for where, line in lines(path, path.read_bytes())]


def _example(line: str, where: str) -> Example:
  label, *texts = line.split('\t')
  if not label.strip() or len(texts) != 1:
    raise ValueError(f'{where} should be a label, a tab and a text, but is {line[:80]!r}.')
  return label.strip(), texts[0], where
