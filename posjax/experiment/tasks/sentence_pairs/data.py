"""Pairs of sentences with a label: `file:PATH`, `tfds:NAME` or `synthetic:near`.

Does the premise entail the hypothesis, do two questions ask the same?
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from posjax.experiment.data import corpus
from posjax.experiment.data.expression import parse, to_tune
from posjax.experiment.tasks import supervised
from posjax.experiment.tasks.sentence_pairs import near, tfds

UNDECIDED = '-'  # the label of a pair of SNLI or MultiNLI about which its annotators disagreed
FORMS = ('file:PATH', 'tfds:NAME', *(f'synthetic:{name}' for name in near.SIZES))


class Pair(NamedTuple):
  """A pair of sentences, its label ('' where it has none), and its place, for errors."""

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
  (`corpus.fold_of`): all pairs with one premise are on one side of the cut.

  Args:
    expression: `file:PATH`, a file of `label<TAB>premise<TAB>hypothesis` lines in UTF-8, where the
      label '-' is none, or a folder as `corpus.paths` takes it; `tfds:NAME`, see `tfds.read`; or
      `synthetic:near`, `synthetic:near_1k`, `synthetic:near_4k` or `synthetic:near_16k`, see
      `near`.

  Raises:
    ValueError: a line is not a label and two sentences; it is no UTF-8; a sentence has no words;
      there are fewer than two labels, or a held-out one that training has not; or the expression
      has none of these forms.
    FileNotFoundError: there is no such file, or the data set was not prepared.

  Example:
    >>> read('synthetic:near_1k').labels
    ('contradiction', 'entailment')
  """
  expression, tune = to_tune(expression)
  found = _both(expression)
  train, held_out = ([pair for pair in part if pair.label] for part in found)
  for pair in train + held_out:
    supervised.check_words(pair.where, premise=pair.premise, hypothesis=pair.hypothesis)
  left_out = {
    'training': len(found[0]) - len(train),
    'held-out': len(found[1]) - len(held_out),
  }
  if found[1]:  # perhaps none of them has a label
    corpus.check_parts(expression, 'pair', train, held_out)
  what = 'training pairs, by a hash of the premise'
  train, held_out, cut = corpus.hold_out(train, held_out, lambda x: x.premise, what, tune)
  corpus.check_parts(expression, 'pair', train, held_out)
  labels = supervised.labels_of(expression, 'pair', train, held_out)
  digest = corpus.fingerprint(*(map(_line, part) for part in (train, held_out)))
  return Pairs(tuple(train), tuple(held_out), labels, cut, left_out, digest)


def _both(expression: str) -> tuple[list[Pair], list[Pair]]:
  kind, argument = parse('sentence pairs', expression, FORMS)
  if kind == 'file':
    return corpus.read_lines(argument, _pair)
  train, held_out = tfds.read(argument) if kind == 'tfds' else near.pairs(argument)
  return [Pair(*each) for each in train], [Pair(*each) for each in held_out]


def _pair(line: str, where: str) -> Pair:
  label, *sentences = line.split('\t')
  if not label.strip() or len(sentences) != 2:
    raise ValueError(
      f'{where} should be a label, a premise and a hypothesis with tabs between, but is '
      f'{line[:80]!r}.'
    )
  label = '' if label.strip() == UNDECIDED else label.strip()
  return Pair(label, sentences[0], sentences[1], where)


# The length of the premise comes before it, so that no tab can move from one side to the other.
_line: Callable[[Pair], bytes] = lambda pair: (
  f'{pair.label}\t{len(pair.premise)}\t{pair.premise}\t{pair.hypothesis}'.encode()
)
