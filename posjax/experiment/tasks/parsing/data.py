"""Sentences with a constituency tree each: `file:PATH` or `synthetic:brackets`.

`tree` reads and writes brackets, `spans` turns trees into spans and charts, `files` and `generated`
read the two forms; `vocabulary` and `batches` make numbers of them, `facts` says what was read, and
`baseline` has the trees that need no model.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from posjax.experiment.data import corpus
from posjax.experiment.data.expression import parse, to_tune
from posjax.experiment.tasks.parsing import files, generated
from posjax.experiment.tasks.parsing.files import Placed
from posjax.experiment.tasks.parsing.spans import Sentence, sentence
from posjax.experiment.tasks.parsing.tree import stripped

FORMS = ('file:PATH', 'synthetic:brackets')


class Trees(NamedTuple):
  """Sentences to learn from, and sentences to be judged on.

  Attributes:
    name: the expression that named them.
    train: one or more.
    held_out: one or more.
    labels: of spans in training, the most frequent first, equals by alphabet; no ''.
    unseen: how often each label of held-out spans occurs that no training span has, the most
      frequent first. Such spans can only be missed.
    cut: how the held-out sentences were chosen, in words.
    stripped: what was taken off the trees, in words.
    sha256: 64 hexadecimal digits of all trees in their order, as they are after stripping.
  """

  name: str
  train: tuple[Sentence, ...]
  held_out: tuple[Sentence, ...]
  labels: tuple[str, ...]
  unseen: dict[str, int]
  cut: str
  stripped: str
  sha256: str


def read(
  expression: str, *, held_out: str | None = None, traces: bool = True, functions: bool = True
) -> Trees:
  """Reads the trees that one line names, whole, into memory.

  Where nothing is held out, one training sentence in ten is, chosen by a hash of its words
  (`corpus.fold_of`), so that equal sentences stay on one side.

  Args:
    expression: `file:PATH`, a file of trees in brackets, or a folder with a training file and
      perhaps a held-out one, see `files`; or `synthetic:brackets`, see `generated`.
    held_out: a file of held-out trees; None for those that the expression names.
    traces: whether empty nodes are taken off, as `tree.stripped` says.
    functions: whether function tags and indices are taken off labels.

  Returns:
    A `Trees`, the same for the same files.

  Raises:
    ValueError: the expression has none of these forms; a tree is none, or has no word that is left;
      a line is not UTF-8; or no sentence is left to learn from or to be judged on.
    FileNotFoundError: there is no such file.

  Example:
    >>> ' '.join(read('synthetic:brackets').train[1].words)
    'every river finds every river .'
  """
  rest, tune = to_tune(expression)
  kind, argument = parse('trees', rest, FORMS)
  if kind == 'file':
    found = files.read(argument, held_out)
  elif held_out is not None:
    raise ValueError(
      f'{expression} holds out trees of its own: held_out must be None, but got {held_out!r}.'
    )
  else:
    found = generated.trees()
  train, judged = (
    [_sentence(each, traces=traces, functions=functions) for each in part] for part in found
  )
  what = 'training sentences, by a hash of the words'
  train, judged, cut = corpus.hold_out(train, judged, lambda x: ' '.join(x.words), what, tune)
  corpus.check_parts(expression, 'tree', train, judged)
  seen, there = _labels(train), _labels(judged)
  off = {'traces': traces, 'function tags and indices': functions}
  return Trees(
    expression,
    tuple(train),
    tuple(judged),
    tuple(seen),
    {label: count for label, count in there.items() if label not in seen},
    cut,
    ' and '.join(name for name, taken in off.items() if taken) or 'nothing',
    corpus.fingerprint(*(map(_line, part) for part in (train, judged))),
  )


def _sentence(found: Placed, *, traces: bool, functions: bool) -> Sentence:
  tree, where = found
  left = stripped(tree, traces=traces, functions=functions) if traces or functions else tree
  if left is None:
    raise ValueError(f'{where} should have a word, but has traces alone.')
  return sentence(left, where)


def _labels(sentences: Sequence[Sentence]) -> dict[str, int]:
  """How often each label occurs, the most frequent first."""
  counts = Counter(span.label for one in sentences for span in one.spans)
  return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _line(one: Sentence) -> bytes:
  """All of a sentence, so that no character can move from one place to another."""
  return json.dumps([one.words, one.tags, one.spans, one.top], ensure_ascii=False).encode()
