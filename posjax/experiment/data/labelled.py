"""Texts with labels: `file:PATH`, `tfds:NAME` or `synthetic:order`, and cuts of them by a hash."""

import difflib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from posjax.experiment.data import fingerprint, labelled_tfds, order
from posjax.experiment.data.files import HELD_OUT, TRAIN
from posjax.experiment.data.lines import lines
from posjax.experiment.data.words import split

CUT = 10  # where nothing is held out, one text in ten is
_FORMS = ('file:PATH', 'tfds:NAME', 'synthetic:order')


class Example(NamedTuple):
  """A text, its label, and where it stands, as errors say it."""

  label: str
  text: str
  where: str


class Labelled(NamedTuple):
  """Texts to learn from, and texts to be judged on.

  Attributes:
    train: one or more.
    held_out: one or more, with labels of the training texts only.
    labels: those of the training texts, sorted; two or more.
    cut: how the held-out texts were chosen, in words.
    sha256: 64 hexadecimal digits of all texts and labels in their order.
  """

  train: tuple[Example, ...]
  held_out: tuple[Example, ...]
  labels: tuple[str, ...]
  cut: str
  sha256: str


def read(expression: str, folds: int = 0, fold: int = 0) -> Labelled:
  """Reads the texts that one line names, whole, into memory.

  Which fold a text belongs to is a function of its words alone (`fold_of`), so equal texts are
  never on both sides of a cut, and no other text matters.

  Args:
    expression: `file:PATH`, a file of `label<TAB>text` lines in UTF-8, or a folder with one such
      file whose name begins with `train.` and perhaps one with `dev.`, `val.`, `valid.` or
      `validation.` (no other dot but that of the ending); `tfds:NAME`, see `labelled_tfds`; or
      `synthetic:order`, see `order`.
    folds: cross-validation: all texts together, train and dev, are cut into so many parts. 0: what
      is held out already is; and where nothing is, one text in ten.
    fold: the part to hold out, in [0, folds); 0 where there are no folds.

  Raises:
    ValueError: a line is not a label, a tab and a text; it is no UTF-8; a text has no words; there
      are fewer than two labels, or a held-out one that training has not; a number is out of range;
      or the expression has none of these forms.
    FileNotFoundError: there is no such file, or the data set was not prepared.
  """
  if folds == 1 or folds < 0 or not 0 <= fold < max(folds, 1):
    raise ValueError(f'Folds must be 0 <= fold < folds, or both 0, but got {fold} and {folds}.')
  train, held_out = _both(expression)
  cut = 'as given'
  if folds or not held_out:
    cut = f'fold {fold} of {folds}' if folds else f'one in {CUT} of the training texts, by hash'
    everything = train + held_out
    chosen = [fold_of(example.text, folds or CUT) == fold for example in everything]
    train = [each for each, out in zip(everything, chosen, strict=True) if not out]
    held_out = [each for each, out in zip(everything, chosen, strict=True) if out]
  labels = _checked(expression, train, held_out)
  digest = fingerprint(*(map(_line, part) for part in (train, held_out)))
  return Labelled(tuple(train), tuple(held_out), labels, cut, digest)


def fold_of(text: str, folds: int) -> int:
  """The fold of a text, in [0, folds): of its words, so that spaces and capitals do not matter."""
  digest = hashlib.sha256(' '.join(split(text)).encode()).digest()
  return int.from_bytes(digest[:8], 'big') % folds


def _both(expression: str) -> tuple[list[Example], list[Example]]:
  kind, _, name = expression.partition(':')
  if kind == 'file' and name:
    return _files(Path(name).expanduser())
  if kind == 'tfds' and name:
    made = labelled_tfds.read(name)
  elif expression == 'synthetic:order':
    made = order.examples()
  else:
    near = difflib.get_close_matches(expression, _FORMS, n=1)
    hint = f' did you mean {near[0]!r}?' if near else ''
    raise ValueError(
      f'Unknown labelled texts {expression!r};{hint} There are: {", ".join(_FORMS)}.'
    )
  train, held_out = ([Example(*each) for each in part] for part in made)
  return train, held_out


def _files(path: Path) -> tuple[list[Example], list[Example]]:
  if path.is_file():
    return _lines(path), []
  if not path.is_dir():
    raise FileNotFoundError(f'file:PATH expects a file or a folder, but nothing is at {path}.')
  train, held_out = _named(path, TRAIN), _named(path, HELD_OUT)
  if train is None:
    names = ', '.join(sorted(each.name for each in path.iterdir())) or 'nothing'
    raise FileNotFoundError(f'The folder {path} should hold a train.tsv, but holds {names}.')
  return _lines(train), [] if held_out is None else _lines(held_out)


def _named(folder: Path, stems: frozenset[str]) -> Path | None:
  """The one file of such a name; None where there is none."""
  files = sorted(path for path in folder.iterdir() if path.is_file() and path.stem in stems)
  if len(files) > 1:
    names = ' and '.join(path.name for path in files)
    raise ValueError(f'The folder {folder} should hold one of {names}; or name a file.')
  return files[0] if files else None


def _lines(path: Path) -> list[Example]:
  return [_example(line, where) for where, line in lines(path, path.read_bytes())]


def _example(line: str, where: str) -> Example:
  label, *texts = line.split('\t')
  if not label.strip() or len(texts) != 1:
    raise ValueError(f'{where} should be a label, a tab and a text, but is {line[:80]!r}.')
  return Example(label.strip(), texts[0], where)


def _checked(
  expression: str, train: Sequence[Example], held_out: Sequence[Example]
) -> tuple[str, ...]:
  """The labels. Raises ValueError where something is missing, or unknown."""
  for what, part in (('learn from', train), ('hold out', held_out)):
    if not part:
      raise ValueError(f'{expression} leaves no text to {what}.')
    for example in part:
      if not split(example.text):
        raise ValueError(f'{example.where} should have a text, but it has no word.')
  labels = tuple(sorted({example.label for example in train}))
  if len(labels) < 2:
    raise ValueError(f'{expression} should have two labels or more, but has only {labels[0]!r}.')
  for example in held_out:
    if example.label not in labels:
      raise ValueError(
        f'{example.where} has the label {example.label!r}, which no training text has: they have '
        f'{", ".join(labels[:20])}.'
      )
  return labels


_line: Callable[[Example], bytes] = lambda example: f'{example.label}\t{example.text}'.encode()
