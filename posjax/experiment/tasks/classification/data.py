"""Texts with labels: `file:PATH`, `tfds:NAME` or `synthetic:order`, and cuts of them by a hash.

Here belongs what only texts with one label each need: the readers of each form, cross-validation,
and batches whose rows have few widths.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from posjax.experiment.data.expression import parse
from posjax.experiment.data.fingerprint import fingerprint
from posjax.experiment.data.splits import CUT, fold_of
from posjax.experiment.data.words import split
from posjax.experiment.tasks.classification import files, order, tfds

FORMS = ('file:PATH', 'tfds:NAME', 'synthetic:order')


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
      `validation.` (no other dot but that of the ending); `tfds:NAME`, see `labelled.tfds`; or
      `synthetic:order`, see `labelled.order`.
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


def _both(expression: str) -> tuple[list[Example], list[Example]]:
  kind, argument = parse('labelled texts', expression, FORMS)
  if kind == 'file':
    found = files.read(argument)
  elif kind == 'tfds':
    found = tfds.read(argument)
  else:
    found = order.examples()
  train, held_out = ([Example(*each) for each in part] for part in found)
  return train, held_out


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
