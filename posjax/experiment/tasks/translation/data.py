"""Sentences with their translations: `file:PATH`, `tfds:NAME` or `synthetic:NAME`.

`files`, `tfds` and `generated` read the three forms;
`vocabulary` has the tokens of the two sides, joint or apart; `batches` makes rows of few widths;
and `facts` says in words what was read and what became of it.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from posjax.experiment.data import corpus
from posjax.experiment.data.expression import parse, to_tune
from posjax.experiment.tasks.translation import files, generated, tfds

FORMS = ('file:PATH', 'tfds:NAME', *(f'synthetic:{name}' for name in generated.NAMES))
EMPTY = 'an empty side'


class Pair(NamedTuple):
  """A sentence, its translation, and its place, for errors and reports."""

  source: str
  target: str
  where: str


class Parallel(NamedTuple):
  """Pairs to learn from, and pairs to be judged on.

  Attributes:
    name: the expression that named them.
    source: the language that is translated, as files name it; 'source' where it has no name.
    target: the language that is translated to; 'target' where it has no name.
    train: one or more, with words on both sides.
    held_out: one or more, none left out: a side may be empty.
    cut: how the held-out pairs were chosen, in words.
    left_out: how many pairs training leaves out, by the reason in words.
    sha256: 64 hexadecimal digits of all pairs in their order, both sides.
  """

  name: str
  source: str
  target: str
  train: tuple[Pair, ...]
  held_out: tuple[Pair, ...]
  cut: str
  left_out: Mapping[str, int]
  sha256: str


def read(
  expression: str,
  *,
  source: str | None = None,
  target: str | None = None,
  held_out: str | None = None,
) -> Parallel:
  """Reads the pairs that one line names, whole, into memory.

  A training pair with an empty side, or one of white space, is left out and counted; a held-out
  pair never is. Where nothing is held out, one training pair in ten is, chosen by a hash of the
  words of its source sentence (`corpus.fold_of`), so that equal sources stay on one side.

  Args:
    expression: `file:PATH`, a folder with a file for each language, as `train.de` and `train.en`,
      see `files`; `tfds:NAME`, see `tfds`; or `synthetic:reversed`,
      `synthetic:reordered` or `synthetic:agreement`, see `generated`.
    source: the language to translate from, as files and data sets name it: 'de'. None where pairs
      are generated, as these are in no language.
    target: the language to translate to, another one.
    held_out: the files or the split to be judged on, such as 'test_2016_flickr'. None: those whose
      name says so, as 'val' and 'validation' do. For generated pairs always None.

  Returns:
    A `Parallel`, the same for the same files.

  Raises:
    ValueError: the expression has none of these forms; the languages are not two; two files have
      different numbers of lines; a line is not UTF-8; `held_out` is empty; or no pair is left to
      learn from or to be judged on.
    FileNotFoundError: there are no such files, or the data set was not prepared.

  Example:
    >>> pair = read('synthetic:reversed').train[0]
    >>> pair.target.split() == pair.source.split()[::-1]
    True
  """
  rest, tune = to_tune(expression)
  kind, argument = parse('parallel text', rest, FORMS)
  if kind == 'synthetic':
    _check_unnamed(expression, source, target, held_out)
    source, target = 'source', 'target'
    found = generated.pairs(argument)
  else:
    source, target = _languages(expression, source, target)
    if held_out == '':
      raise ValueError("held_out must name files or a split, or be None, but got ''.")
    reader = files.read if kind == 'file' else tfds.read
    found = reader(argument, source, target, held_out)
  everything, given, cut = found
  train = [Pair(*each) for each in everything if each[0].strip() and each[1].strip()]
  left_out = {EMPTY: len(everything) - len(train)}
  judged = [Pair(*each) for each in given or ()]
  if given is None or tune:
    what = 'training pairs, by a hash of the source'
    train, judged, cut = corpus.hold_out(train, judged, lambda pair: pair.source, what, tune)
  corpus.check_parts(expression, 'pair', train, judged)
  digest = corpus.fingerprint(*(map(_line, part) for part in (train, judged)))
  return Parallel(expression, source, target, tuple(train), tuple(judged), cut, left_out, digest)


def _check_unnamed(expression: str, source, target, held_out) -> None:
  if (source, target, held_out) != (None, None, None):
    raise ValueError(
      f'{expression} is in no language and holds out pairs of its own: source, target and held_out '
      f'must be None, but got {source!r}, {target!r} and {held_out!r}.'
    )


def _languages(expression: str, source: str | None, target: str | None) -> tuple[str, str]:
  if not source or not target or source == target:
    raise ValueError(
      f"{expression} needs two languages as source and target, such as 'de' and 'en', but got "
      f'{source!r} and {target!r}.'
    )
  return source, target


# The length of a side comes before it, so that no tab or space can move from one to the other.
_line: Callable[[Pair], bytes] = lambda pair: (
  f'{len(pair.source)}\t{pair.source}\t{pair.target}'.encode()
)
