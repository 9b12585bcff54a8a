"""Trees as spans of words: unary chains collapsed and restored, and charts of labels.

A span is half-open: (start, end, label) with 0 <= start < end <= n. A chain of nodes with one child
each is one span, whose label joins theirs by '::', the topmost first. A chart [n, n] has the number
of the label of each span, by its first and its last word; 0, the label '', is no constituent.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posjax.experiment.tasks.parsing.tree import Event, Leaf, Node, Tree, built, events

JOIN = '::'
TOP = 'TOP'
TOPS = ('', TOP, 'ROOT', 'S1')  # labels of an outermost bracket that is no constituent


class Span(NamedTuple):
  """A constituent, or a chain of them, over the words [start, end)."""

  start: int
  end: int
  label: str


class Sentence(NamedTuple):
  """A tree as words and spans.

  Attributes:
    words: [n], one or more.
    tags: of the words, [n].
    spans: outer ones first, then from the left to the right; no two have the same words. The first
      one has all words.
    top: the label of the outermost bracket, one of `TOPS`, which is not among the spans; None where
      there is none.
    where: the place of the tree, for errors.
  """

  words: tuple[str, ...]
  tags: tuple[str, ...]
  spans: tuple[Span, ...]
  top: str | None = TOP
  where: str = 'The sentence'


def sentence(tree: Tree, where: str = 'The tree') -> Sentence:
  """The words and spans of a tree; `tree` is the way back.

  The outermost bracket is taken off where it has a label of `TOPS`. If it holds anything but one
  constituent, the sentence has the span TOP in its place, so that each has a span of all words.

  Args:
    tree: as it was read.
    where: its place, for errors.

  Raises:
    ValueError: a label has '::', or one below the outermost bracket is TOP.

  Example:
    >>> from posjax.experiment.tasks.parsing.tree import parsed
    >>> sentence(parsed('(TOP (S (VP (VB Go) (ADVP (RB now)))))')).spans
    (Span(start=0, end=2, label='S::VP'), Span(start=1, end=2, label='ADVP'))
  """
  top = tree.label if isinstance(tree, Node) and tree.label in TOPS else None
  leaves: list[Leaf] = []
  opened: list[tuple[int, str]] = []
  chains: dict[tuple[int, int], list[str]] = defaultdict(list)  # inner labels first
  for event in events(tree):
    if isinstance(event, Leaf):
      leaves.append(event)
    elif event is None:
      start, label = opened.pop()
      chains[start, len(leaves)].append(label)
    else:
      if JOIN in event or (event == TOP and opened):
        raise ValueError(
          f'{where} should have labels without {JOIN}, and {TOP} at no inner bracket, but has '
          f'{event!r}.'
        )
      opened.append((len(leaves), event))
  whole = chains[0, len(leaves)]
  if top is not None:
    whole.pop()
  if not whole:
    whole.append(TOP)
  spans = sorted(
    (Span(*place, JOIN.join(reversed(labels))) for place, labels in chains.items()),
    key=_outer_first,
  )
  tags, words = zip(*leaves, strict=True)
  return Sentence(words, tags, tuple(spans), top, where)


def tree(sentence: Sentence) -> Tree:
  """The tree of words and spans, with its unary chains and its outermost bracket.

  Raises:
    ValueError: there are not as many tags as words, or the spans are those of no tree.
  """
  made = built(_walk(sentence))
  if made is None:
    raise ValueError(f'{sentence.where} should have one word or more, but has none.')
  return made


def _walk(sentence: Sentence) -> Iterator[Event]:
  """The events of the tree of a sentence."""
  words, top = sentence.words, sentence.top
  check_tags(words, sentence.tags, sentence.where)
  opening = by_start(sentence)
  ends: list[int] = []
  whole = next((span.label for span in sentence.spans if span[:2] == (0, len(words))), '')
  if top is not None and whole != TOP:
    yield top
  for place, leaf in enumerate(map(Leaf, sentence.tags, words)):
    for span in opening[place]:
      # A lone word whose span is TOP had no bracket around it but its own.
      bare = top is None and span.label == TOP and len(words) == 1
      chain = [] if bare else span.label.split(JOIN)
      yield from [top if label == TOP and top is not None else label for label in chain]
      ends += [span.end] * len(chain)
    yield leaf
    while ends and ends[-1] == place + 1:
      ends.pop()
      yield None
  if top is not None and whole != TOP:
    yield None


def by_start(sentence: Sentence) -> dict[int, list[Span]]:
  """The spans of a sentence that begin at each word, outer ones first.

  Raises:
    ValueError: they are not those of a tree over all of its words.
  """
  opening: dict[int, list[Span]] = defaultdict(list)
  around: list[Span] = []
  length = len(sentence.words)
  spans = sorted(sentence.spans, key=_outer_first)
  if not spans or spans[0][:2] != (0, length):
    raise ValueError(f'{sentence.where} should have a span of all of its {length} words.')
  for span in spans:
    while around and around[-1].end <= span.start:
      around.pop()
    inside = not around or (span.end <= around[-1].end and span[:2] != around[-1][:2])
    if not (inside and 0 <= span.start < span.end <= length and span.label):
      raise ValueError(
        f'{sentence.where} should have spans of a tree over {length} words, but {tuple(span)} is '
        'outside, or crosses or repeats another.'
      )
    around.append(span)
    opening[span.start].append(span)
  return opening


def _outer_first(span: Span) -> tuple[int, int]:
  return span.start, -span.end


def check_tags(words: Sequence[str], tags: Sequence[str], where: str) -> None:
  """Raises ValueError if there are not as many tags as words."""
  if len(words) != len(tags):
    raise ValueError(
      f'{where} should have a tag for each of {len(words)} words, but has {len(tags)}.'
    )


def gold(spans: Iterable[Span], ids: Mapping[str, int], length: int) -> np.ndarray:
  """A chart of labels, int32 [n, n], 0 where there is no constituent.

  A label without a number is 0 as well, since no model can say it. But all words together must be a
  constituent for a chart: there, its number is 1.

  Args:
    spans: of a sentence.
    ids: the number of each label, from 1 on.
    length: n.
  """
  made = np.zeros((length, length), np.int32)
  for start, end, label in spans:
    made[start, end - 1] = ids.get(label, 1 if end - start == length else 0)
  return made


def spans_of(chart: np.ndarray, names: Sequence[str]) -> tuple[Span, ...]:
  """The spans of a chart, as `Sentence.spans` has them.

  Args:
    chart: numbers of labels [n, n] by first and last word, 0 elsewhere; of one tree.
    names: of the labels, '' first.

  Example:
    >>> spans_of(gold([Span(0, 2, 'NP')], {'NP': 1}, 2), ('', 'NP'))
    (Span(start=0, end=2, label='NP'),)
  """
  found = [
    Span(start, last + 1, names[chart[start, last]]) for start, last in np.argwhere(chart).tolist()
  ]
  return tuple(sorted(found, key=_outer_first))
