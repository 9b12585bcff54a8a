"""Sentence pairs of a file or a folder of `label<TAB>premise<TAB>hypothesis` lines: `file:PATH`."""

from posjax.experiment.data import folder

Example = tuple[str, str, str, str]

UNDECIDED = '-'  # the label of a pair of SNLI or MultiNLI about which its annotators disagreed


def read(place: str) -> tuple[list[Example], list[Example]]:
  """Reads a file of training pairs, or a folder that may have held-out ones, too.

  Args:
    place: as of `data.folder.read`.

  Returns:
    Training pairs and held-out pairs, perhaps none: (label, premise, hypothesis, where). The label
    is '' for a pair whose label in the file is '-'.

  Raises:
    ValueError: a line is not a label and two sentences with tabs between, or is no UTF-8.
    FileNotFoundError: there is no such file.
  """
  return folder.read(place, _example)


def _example(line: str, where: str) -> Example:
  label, *sentences = line.split('\t')
  if not label.strip() or len(sentences) != 2:
    raise ValueError(
      f'{where} should be a label, a premise and a hypothesis with tabs between, but is '
      f'{line[:80]!r}.'
    )
  label = '' if label.strip() == UNDECIDED else label.strip()
  return label, sentences[0], sentences[1], where
