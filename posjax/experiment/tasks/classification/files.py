"""Texts with labels from a file or a folder of `label<TAB>text` lines: `file:PATH`."""

from posjax.experiment.data import folder

Example = tuple[str, str, str]


def read(place: str) -> tuple[list[Example], list[Example]]:
  """Reads a file of training texts, or a folder that may have held-out ones, too.

  Args:
    place: as of `data.folder.read`.

  Returns:
    Training texts and held-out texts, perhaps none: (label, text, where).

  Raises:
    ValueError: a line is not a label, a tab and a text, or is no UTF-8.
    FileNotFoundError: there is no such file.
  """
  return folder.read(place, _example)


def _example(line: str, where: str) -> Example:
  label, *texts = line.split('\t')
  if not label.strip() or len(texts) != 1:
    raise ValueError(f'{where} should be a label, a tab and a text, but is {line[:80]!r}.')
  return label.strip(), texts[0], where
