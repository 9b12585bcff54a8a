"""Constituency trees in brackets, as `(S (NP (PRP I)) (VP (VBP see)))`: read, stripped, written.

Trees are walked without recursion, so that no depth is too deep.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Union

EMPTY = '-NONE-'  # the tag of a trace, which no text has
# Other spaces, such as the one that joins 10 and 000, are letters.
_WORD = re.compile(r'[^ \t\r\n()]+')
_PIECE = re.compile(rf'[()]|{_WORD.pattern}')
_FUNCTIONS = re.compile(r'^([^-=]+)[-=].*')  # labels that begin with a hyphen, as -LRB-, have none


class Leaf(NamedTuple):
  """A word with its tag."""

  tag: str
  word: str


class Node(NamedTuple):
  """A constituent, of one child or more; the outermost one may have the label ''."""

  label: str
  children: tuple['Tree', ...]


Tree = Union[Leaf, Node]  # noqa: UP007 (a string cannot be joined by |)
Event = str | Leaf | None  # a node that opens, by its label; a leaf; the end of the open node


class _Open:
  """A bracket that is not closed yet."""

  def __init__(self, where: str) -> None:
    self.where = where
    self.text: list[str] = []
    self.children: list[Tree] = []


def read(lines: Iterable[tuple[str, str]]) -> list[tuple[Tree, str]]:
  """Reads all trees of a file, each in one line, or printed over several.

  A line whose first character is `(` begins a tree, so a tree that goes on has its further lines
  indented. The outermost bracket may be without a label, as in `( (S ...))`.

  Args:
    lines: places and lines, as of `data.corpus.lines`.

  Returns:
    The trees, each with the place where it begins.

  Raises:
    ValueError: there is a bracket too many or too few, an empty bracket, a bracket without a label
      in a tree, words and constituents side by side in a bracket, or text outside of brackets.

  Example:
    >>> read([('a.trees, line 1', '(NP (DT a)'), ('a.trees, line 2', '  (NN dog))')])[0][1]
    'a.trees, line 1'
  """
  found: list[tuple[Tree, str]] = []
  stack: list[_Open] = []
  for where, line in lines:
    if stack and line.startswith('('):
      raise _unclosed(stack, f'{where} begins another one')
    for piece in _PIECE.findall(line):
      if piece == '(':
        stack.append(_Open(where))
      elif not stack:
        what = 'a bracket too many' if piece == ')' else f'{piece[:40]!r} outside of brackets'
        raise ValueError(f'{where} should have trees in brackets, but has {what}.')
      elif piece != ')':
        stack[-1].text.append(piece)
      else:
        closed = stack.pop()
        tree = _closed(closed, where, outermost=not stack)
        if stack:
          stack[-1].children.append(tree)
        else:
          found.append((tree, closed.where))
  if stack:
    raise _unclosed(stack, 'the file ends')
  return found


def _unclosed(stack: list[_Open], then: str) -> ValueError:
  return ValueError(
    f'{stack[0].where} begins a tree with {len(stack)} closing brackets too few: {then} before it '
    'is closed.'
  )


def _closed(bracket: _Open, where: str, *, outermost: bool) -> Tree:
  """The tree of a bracket. Raises ValueError where it is none."""
  text, children = bracket.text, tuple(bracket.children)
  if len(text) == 2 and not children:
    return Leaf(*text)
  if children and (len(text) == 1 or (not text and outermost)):
    return Node(text[0] if text else '', children)
  if children:
    expected = 'a label alone before its constituents'
    got = 'none' if not text else repr(' '.join(text)[:40])
  else:
    expected = 'a tag and a word, or a label and constituents'
    got = 'nothing' if not text else repr(' '.join(text)[:40])
  raise ValueError(f'{where} should have in each bracket {expected}, but one has {got}.')


def parsed(text: str, where: str = 'The tree') -> Tree:
  """The one tree of a text.

  Args:
    text: one tree in brackets.
    where: its place, for errors.

  Raises:
    ValueError: as `read` does, or if there is no tree or more than one.

  Example:
    >>> parsed('(NP (DT a) (NN dog))').children[1]
    Leaf(tag='NN', word='dog')
  """
  found = read([(where, text)])
  if len(found) != 1:
    raise ValueError(f'{where} should be one tree in brackets, but there are {len(found)}.')
  return found[0][0]


def events(tree: Tree) -> Iterator[Event]:
  """A tree from the left to the right: labels where nodes open, leaves, and None where they end."""
  waiting: list[Tree | None] = [tree]
  while waiting:
    one = waiting.pop()
    if isinstance(one, Node):
      yield one.label
      waiting += [None, *reversed(one.children)]
    else:
      yield one


def built(walked: Iterable[Event]) -> Tree | None:
  """The tree of its events; a node without children is left out, and None if nothing is left."""
  stack: list[tuple[str, list[Tree]]] = [('', [])]
  for event in walked:
    if event is None:
      label, children = stack.pop()
      if children:
        stack[-1][1].append(Node(label, tuple(children)))
    elif isinstance(event, Leaf):
      stack[-1][1].append(event)
    else:
      stack.append((event, []))
  return stack[0][1][0] if stack[0][1] else None


def write(tree: Tree) -> str:
  """A tree in one line, with one space between its parts.

  Raises:
    ValueError: a label, tag or word has a bracket or a space, or is empty (but for the outermost
      label), so that it could not be read again.

  Example:
    >>> write(parsed('( (NP (DT a)(NN dog) ) )'))
    '( (NP (DT a) (NN dog)))'
  """
  parts: list[str] = []
  for event in events(tree):
    if event is None:
      parts.append(')')
      continue
    text = event if isinstance(event, Leaf) else (event,)
    for each in text:
      if not (_WORD.fullmatch(each) or (event == '' and not parts)):
        raise ValueError(
          'Labels, tags and words should have no brackets or spaces, and a letter or more, but '
          f'there is {each!r}: `escaped` spells brackets.'
        )
    parts.append(f'{" " if parts else ""}({" ".join(text)}')
    if isinstance(event, Leaf):
      parts.append(')')
  return ''.join(parts)


def escaped(word: str) -> str:
  """A word as treebanks spell it, without round brackets.

  Example:
    >>> escaped('('), escaped('dog')
    ('-LRB-', 'dog')
  """
  return word.replace('(', '-LRB-').replace(')', '-RRB-')


def stripped(tree: Tree, *, traces: bool, functions: bool) -> Tree | None:
  """A tree without what a parser does not say.

  Args:
    tree: as it was read.
    traces: whether leaves with the tag -NONE- are taken off, and nodes that have no others.
    functions: whether labels of nodes lose functions and indices, all from the first hyphen or
      equals sign on; a label that begins with one, as -LRB-, keeps it.

  Returns:
    The tree; None if no word is left.

  Example:
    >>> tree = parsed('(S (NP-SBJ-1 (PRP I)) (VP=2 (VBP go) (NP (-NONE- *))))')
    >>> write(stripped(tree, traces=True, functions=True))
    '(S (NP (PRP I)) (VP (VBP go)))'
  """

  def left() -> Iterator[Event]:
    for event in events(tree):
      if isinstance(event, str):
        yield _FUNCTIONS.sub(r'\1', event) if functions else event
      elif not (traces and event is not None and event.tag == EMPTY):
        yield event

  return built(left())


def without_functions(label: str) -> str:
  """A label without functions and indices.

  Example:
    >>> [without_functions(label) for label in ('NP-SBJ-1', 'NP=2', '-LRB-')]
    ['NP', 'NP', '-LRB-']
  """
  return _FUNCTIONS.sub(r'\1', label)
