"""Trees for people to look at: lines for a terminal, and pictures; spans in colours.

Both have the root on the left and a line for each word or group of words, so that long sentences
have room. Colours go from orange, 0, to blue, 1, which people who see no red or green can tell
apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

from rich.text import Text

from posjax.experiment.plain import in_picture
from posjax.experiment.tasks.parsing.spans import JOIN, Sentence, Span, by_start

Strengths = Mapping[tuple[int, int], float]  # of spans, by start and end, in [0, 1]
_LOW, _HIGH = (213, 94, 0), (0, 114, 178)
_FONT = 9  # points, at most
_STEP = 0.7  # of the height of a row is the size of its font


class _Branch(NamedTuple):
  """A span with what it holds: smaller spans, and numbers of words."""

  span: Span
  depth: int
  children: list[Union['_Branch', int]]


def strength(margin: float) -> float:
  """The place in [0, 1] of a margin of 0 or more, the gap in score to the best tree without a span.

  The margin 1, which training by a hinge loss asks for, is in the middle.

  Example:
    >>> strength(0.0), strength(1.0), strength(3.0)
    (0.0, 0.5, 0.75)
  """
  return margin / (1 + margin)


def text(sentence: Sentence, strengths: Strengths | None = None) -> Text:
  """A tree as lines of text.

  Args:
    sentence: words and spans, those of a tree.
    strengths: of spans, which colour their labels; a span without one has no colour.

  Raises:
    ValueError: the spans are those of no tree, or a strength is not in [0, 1].

  Example:
    >>> spans = (Span(0, 3, 'S::VP'), Span(0, 2, 'NP'))
    >>> print(text(Sentence(('a', 'b', '.'), ('X', 'X', '.'), spans)))
    S → VP
    ├─ NP a b
    └─ .
  """
  made, waiting = Text(), [('', '', _root(sentence))]
  while waiting:
    before, below, one = waiting.pop()
    made.append('\n' if made else '').append(before)
    if isinstance(one, str):
      made.append(one)
      continue
    made.append(_name(one.span), f'bold {_colour(one.span, strengths)}')
    pieces = list(_pieces(one, sentence.words))
    if isinstance(pieces[0], str) and len(pieces) == 1:
      made.append(f' {pieces[0]}')
      continue
    last = (f'{below}└─ ', f'{below}   ', pieces[-1])
    waiting += [last, *((f'{below}├─ ', f'{below}│  ', piece) for piece in pieces[-2::-1])]
  return made


def draw(figure: Any, sentence: Sentence, strengths: Strengths | None = None) -> None:
  """Draws a tree, with a row for each word.

  Args:
    figure: a `matplotlib.figure.Figure`, or a part of one; what it is saved as may be an SVG.
    sentence: as of `text`.
    strengths: as of `text`.

  Raises:
    ValueError: as of `text`.
  """
  branches = _all(_root(sentence))
  deepest = max(one.depth for one in branches) + 1
  heights: dict[tuple[int, int], float] = {}
  for one in reversed(branches):  # smaller ones first
    ends = [_height(child, heights) for child in (one.children[0], one.children[-1])]
    heights[one.span[:2]] = sum(ends) / 2
  width, height = (each / figure.dpi * 72 for each in (figure.bbox.width, figure.bbox.height))
  size = min(_FONT, _STEP * height / len(sentence.words))
  # Words are on the right, and what they leave of the width is cut into levels of the tree.
  level = (width - min(size * max(map(len, sentence.words)), width / 2)) / (deepest + 1)
  axes = figure.add_subplot()
  axes.set_axis_off()
  axes.set(xlim=(-0.5, width / level - 0.5), ylim=(len(sentence.words) - 0.5, -0.5))
  for one in branches:
    height, colour = heights[one.span[:2]], _colour(one.span, strengths) or 'black'
    for child in one.children:
      to = _height(child, heights)
      end = deepest if isinstance(child, int) else child.depth
      axes.plot([one.depth, one.depth, end], [height, to, to], color='0.7', linewidth=0.6, zorder=1)
    box = {'facecolor': 'white', 'edgecolor': colour, 'linewidth': 0.6, 'pad': size / 6}
    style = {'fontsize': size, 'color': colour, 'ha': 'center', 'va': 'center', 'bbox': box}
    axes.text(one.depth, height, in_picture(_name(one.span)), **style)
  for place, word in enumerate(sentence.words):
    axes.text(deepest + 0.1, place, in_picture(word), fontsize=size, ha='left', va='center')


def _root(sentence: Sentence) -> _Branch:
  """The spans of a sentence, each in the one around it."""
  opening = by_start(sentence)
  around: list[_Branch] = []
  for place in range(len(sentence.words)):
    for span in opening[place]:
      branch = _Branch(span, len(around), [])
      if around:
        around[-1].children.append(branch)
      around.append(branch)
    around[-1].children.append(place)
    while len(around) > 1 and around[-1].span.end == place + 1:
      around.pop()
  return around[0]


def _all(root: _Branch) -> list[_Branch]:
  """A branch and those in it, each after the one that holds it."""
  found = [root]
  for one in found:
    found += [child for child in one.children if isinstance(child, _Branch)]
  return found


def _pieces(branch: _Branch, words: Sequence[str]) -> Iterator[_Branch | str]:
  """The parts of a branch: words side by side are one piece."""
  group: list[str] = []
  for child in branch.children:
    if isinstance(child, int):
      group.append(words[child])
      continue
    if group:
      yield ' '.join(group)
    group = []
    yield child
  if group:
    yield ' '.join(group)


def _height(child: _Branch | int, heights: Mapping[tuple[int, int], float]) -> float:
  return float(child) if isinstance(child, int) else heights[child.span[:2]]


def _name(span: Span) -> str:
  return span.label.replace(JOIN, ' → ')


def _colour(span: Span, strengths: Strengths | None) -> str:
  """As '#d55e00'; '' where there is no strength. Raises ValueError if it is not in [0, 1]."""
  share = (strengths or {}).get(span[:2])
  if share is None:
    return ''
  if not 0 <= share <= 1:
    raise ValueError(f'The strength of the span {tuple(span)} should be in [0, 1], but is {share}.')
  mixed = (round(low + share * (high - low)) for low, high in zip(_LOW, _HIGH, strict=True))
  return '#' + ''.join(f'{part:02x}' for part in mixed)
