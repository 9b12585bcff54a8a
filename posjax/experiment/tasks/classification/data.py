"""Texts with labels: `file:PATH`, `tfds:NAME` or `synthetic:order`, and cuts of them by a hash.

The readers of each form, and cross-validation.
"""

from collections.abc import Callable
from typing import NamedTuple

from posjax.experiment.data import corpus
from posjax.experiment.data.expression import TUNE, parse, to_tune
from posjax.experiment.tasks import supervised
from posjax.experiment.tasks.classification import order, tfds

FORMS = ('file:PATH', 'tfds:NAME', 'synthetic:order')


class Example(NamedTuple):
  """A text, its label, and its place, for errors."""

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
  expression, tune = to_tune(expression)
  if tune and folds:
    raise ValueError(f"'{TUNE}' and folds hold out other texts: give one of them, not both.")
  train, held_out = _both(expression)
  for example in train + held_out:
    supervised.check_words(example.where, text=example.text)
  by_text = lambda example: example.text
  if folds:
    cut = f'fold {fold} of {folds}'
    train, held_out = corpus.divide(train + held_out, by_text, folds, fold)
  else:
    what = 'training texts, by hash'
    train, held_out, cut = corpus.hold_out(train, held_out, by_text, what, tune)
  corpus.check_parts(expression, 'text', train, held_out)
  labels = supervised.labels_of(expression, 'text', train, held_out)
  digest = corpus.fingerprint(*(map(_line, part) for part in (train, held_out)))
  return Labelled(tuple(train), tuple(held_out), labels, cut, digest)


def _both(expression: str) -> tuple[list[Example], list[Example]]:
  kind, argument = parse('labelled texts', expression, FORMS)
  if kind == 'file':
    return corpus.read_lines(argument, _example)
  train, held_out = tfds.read(argument) if kind == 'tfds' else order.examples()
  return [Example(*each) for each in train], [Example(*each) for each in held_out]


def _example(line: str, where: str) -> Example:
  label, *texts = line.split('\t')
  if not label.strip() or len(texts) != 1:
    raise ValueError(f'{where} should be a label, a tab and a text, but is {line[:80]!r}.')
  return Example(label.strip(), texts[0], where)


_line: Callable[[Example], bytes] = lambda example: f'{example.label}\t{example.text}'.encode()
