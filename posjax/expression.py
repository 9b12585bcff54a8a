"""Schemes from one line of text, and the folder that is their registry."""

import ast
import difflib
import functools
import importlib
import io
import pkgutil
import tokenize

from posjax import schemes
from posjax.arguments import read, shown
from posjax.chain import chain
from posjax.scheme import Scheme

_LONGEST = 80  # characters of a line, or of a part of it, that a sentence shows


def names() -> tuple[str, ...]:
  """The schemes that there are: the modules of `posjax/schemes`, sorted."""
  return tuple(sorted(module.name for module in pkgutil.iter_modules(schemes.__path__)))


def get(expression: str) -> Scheme:
  """Reads a scheme: names, with literal arguments, chained by `+`.

  Equal expressions give the same object, so that jit does not trace twice.

  Args:
    expression: as 'none', 'rope(base=5e5)' or 'randomized(max_length=2048)+rope'.

  Returns:
    The scheme that `posjax.schemes.<name>.scheme(...)` makes, or the chain of several.

  Raises:
    ValueError: if the line cannot be read, a name is unknown, or an argument is wrong.
    TypeError: if it is no string.

  Example:
    >>> from posjax.scheme import places
    >>> places(get('sinusoidal+alibi'))
    ('embed', 'bias')
  """
  return _read(read(expression, str, 'The line of a scheme'))


@functools.cache
def _read(expression: str) -> Scheme:
  try:
    nodes = _members(_parsed(expression.strip()))
    return chain(*(_member(node, expression) for node in nodes))
  except (RecursionError, MemoryError):
    raise ValueError(
      'A scheme must be one line that is not deeply nested, of a few hundred members at most, but '
      f'got {shown(expression)}.'
    ) from None


def _parsed(line: str) -> ast.expr:
  if not (line.isascii() and line.isprintable()):
    raise ValueError(f'A scheme must be one line of printable ASCII, but got {shown(line)}.')
  try:
    tree = ast.parse(line, mode='eval').body
  except SyntaxError:
    raise ValueError(
      f"A scheme must read like 'rope(base=5e5)+alibi', but got {shown(line)}."
    ) from None
  tokens = tokenize.generate_tokens(io.StringIO(line).readline)
  if any(token.type == tokenize.COMMENT for token in tokens):
    raise ValueError(f"A scheme takes no comment after '#', but got {shown(line)}.")
  return tree


def _members(node: ast.expr) -> list[ast.expr]:
  """The operands of `+`, in their order."""
  waiting, members = [node], []
  while waiting:
    node = waiting.pop()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
      waiting += [node.right, node.left]
    else:
      members.append(node)
  return members


def _member(node: ast.expr, expression: str) -> Scheme:
  call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
  if not isinstance(call.func, ast.Name):
    raise ValueError(
      f"A scheme must be a name, with or without arguments, but got '{_code(node)}' in "
      f'{shown(expression)}.'
    )
  make = _constructor(call.func.id)
  arguments = [_literal(a, expression) for a in call.args]
  if any(k.arg is None for k in call.keywords):
    raise ValueError(f'A scheme takes no ** arguments, but got {shown(expression)}.')
  named = {str(k.arg): _literal(k.value, expression) for k in call.keywords}
  if len(named) < len(call.keywords):
    raise ValueError(f'Each argument must be given once, but got {shown(expression)}.')
  try:
    return make(*arguments, **named)
  except TypeError as error:
    raise ValueError(str(error)) from error


def _constructor(name: str):
  if name not in names():
    near = difflib.get_close_matches(name[:_LONGEST].lower(), names(), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else '.'
    raise ValueError(f'Unknown scheme {shown(name)}{hint} There are: {", ".join(names())}.')
  return importlib.import_module(f'posjax.schemes.{name}').scheme


def _literal(node: ast.expr, expression: str):
  try:
    return ast.literal_eval(node)
  except (ValueError, TypeError):  # not a literal; a list as a key
    raise ValueError(
      f"A scheme's arguments must be literals, but got '{_code(node)}' in {shown(expression)}."
    ) from None


def _code(node: ast.expr) -> str:
  code = ast.unparse(node)
  return code if len(code) <= _LONGEST else code[: _LONGEST - 2] + '..'
