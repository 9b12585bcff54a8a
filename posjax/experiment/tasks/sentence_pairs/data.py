"""Pairs of sentences with a label: `file:PATH`, `tfds:NAME` or `synthetic:near`.

Does the premise entail the hypothesis, do two questions ask the same? Here belongs what only such
pairs need: `files`, `tfds` and `near` read the three forms, and `batches` makes rows of few widths,
with the character n-grams of each word (`ngrams`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from posjax.experiment.data.expression import parse
from posjax.experiment.data.fingerprint import fingerprint
from posjax.experiment.data.splits import CUT, fold_of
from posjax.experiment.data.words import split
from posjax.experiment.tasks.sentence_pairs import files, near, tfds

FORMS = ('file:PATH', 'tfds:NAME', *(f'synthetic:{name}' for name in near.SIZES))


class Pair(NamedTuple):
  """A pair of sentences, its label, and where it stands, as errors say it."""

  label: str
  premise: str
  hypothesis: str
  where: str


class Pairs(NamedTuple):
  """Pairs to learn from, and pairs to be judged on.

  Attributes:
    train: one or more.
    held_out: one or more, with labels of the training pairs only.
    labels: those of the training pairs, sorted; two or more.
    cut: how the held-out pairs were chosen, in words.
    left_out: how many pairs have no label and are in neither part: 'training' and 'held-out' ones.
    sha256: 64 hexadecimal digits of all pairs and labels in their order.
  """

  train: tuple[Pair, ...]
  held_out: tuple[Pair, ...]
  labels: tuple[str, ...]
  cut: str
  left_out: Mapping[str, int]
  sha256: str


def read(expression: str) -> Pairs:
  """Reads the pairs that one line names, whole, into memory.

  Where nothing is held out, one pair in ten is, chosen by a hash of the words of its premise
  (`splits.fold_of`): all pairs with one premise are on one side of the cut.

  Args:
    expression: `file:PATH`, a file of `label<TAB>premise<TAB>hypothesis` lines in UTF-8, or a
      folder as `data.folder.read` takes it, see `pairs.files`; `tfds:NAME`, see `pairs.tfds`; or
      `synthetic:near`, `synthetic:near_1k`, `synthetic:near_4k` or `synthetic:near_16k`, see
      `pairs.near`.

  Raises:
    ValueError: a line is not a label and two sentences; it is no UTF-8; a sentence has no words;
      there are fewer than two labels, or a held-out one that training has not; or the expression
      has none of these forms.
    FileNotFoundError: there is no such file, or the data set was not prepared.

  Example:
    >>> read('synthetic:near_1k').labels
    ('contradiction', 'entailment')
  """
  kind, argument = parse('sentence pairs', expression, FORMS)
  reader = {'file': files.read, 'tfds': tfds.read, 'synthetic': near.pairs}[kind]
  found = [[Pair(*each) for each in part] for part in reader(argument)]
  train, held_out = ([pair for pair in part if pair.label] for part in found)
  left_out = {
    'training': len(found[0]) - len(train),
    'held-out': len(found[1]) - len(held_out),
  }
  cut = 'as given'
  if not found[1]:
    cut = f'one in {CUT} of the training pairs, by a hash of the premise'
    chosen = [fold_of(pair.premise, CUT) == 0 for pair in train]
    held_out = [pair for pair, out in zip(train, chosen, strict=True) if out]
    train = [pair for pair, out in zip(train, chosen, strict=True) if not out]
  labels = _checked(expression, train, held_out)
  digest = fingerprint(*(map(_line, part) for part in (train, held_out)))
  return Pairs(tuple(train), tuple(held_out), labels, cut, left_out, digest)


def _checked(expression: str, train: Sequence[Pair], held_out: Sequence[Pair]) -> tuple[str, ...]:
  """The labels. Raises ValueError where something is missing, or unknown."""
  for what, part in (('learn from', train), ('hold out', held_out)):
    if not part:
      raise ValueError(f'{expression} leaves no pair to {what}.')
    for pair in part:
      for side, sentence in (('premise', pair.premise), ('hypothesis', pair.hypothesis)):
        if not split(sentence):
          raise ValueError(f'{pair.where} should have a {side}, but it has no word.')
  labels = tuple(sorted({pair.label for pair in train}))
  if len(labels) < 2:
    raise ValueError(f'{expression} should have two labels or more, but has only {labels[0]!r}.')
  for pair in held_out:
    if pair.label not in labels:
      raise ValueError(
        f'{pair.where} has the label {pair.label!r}, which no training pair has: they have '
        f'{", ".join(labels[:20])}.'
      )
  return labels


# The length of the premise stands before it, so that no tab can move from one side to the other.
_line: Callable[[Pair], bytes] = lambda pair: (
  f'{pair.label}\t{len(pair.premise)}\t{pair.premise}\t{pair.hypothesis}'.encode()
)
