"""Schemes from one line of text: those of the library by their names, others by their modules.

A plain name is a file of `posjax/schemes`, and nothing else is imported for it. Only the form
`module:function` imports a module, and the string says so by its colon.
"""

import ast
import difflib
import functools
import importlib
import inspect
import io
import keyword
import pkgutil
import tokenize
from collections.abc import Mapping
from typing import Any

from posjax import schemes
from posjax.arguments import read, shown
from posjax.chain import chain
from posjax.foreign import imports_allowed, make
from posjax.line import call
from posjax.scheme import Scheme

# Stands for the colon of `module:function` while Python reads a line: to Python it is a letter, and
# no line has it, since lines are ASCII.
COLON = '\u02d0'
_LONGEST = 80  # characters of a line, or of a part of it, that a sentence shows
_SHARED: dict[str, Scheme] = {}  # by the line that a scheme has as its `repr`


def names() -> tuple[str, ...]:
  """The schemes that there are: the modules of `posjax/schemes`, sorted."""
  return tuple(sorted(module.name for module in pkgutil.iter_modules(schemes.__path__)))


def get(expression: str) -> Scheme:
  """Reads a scheme: names, with literal arguments, chained by `+`.

  A scheme of your own is named by its module and its function, with a colon between them. The
  module is then imported and the function called, which must be annotated to return a scheme, as in
  `def scheme(width: int) -> posjax.Scheme:`. An import runs code: hand over no line with a colon
  that comes from somebody you do not trust. A line without a colon runs nothing but this library.

  Equal expressions give the same object, so that jit does not trace twice. A module that changed
  since its line was read is therefore not read again in the same process.

  Args:
    expression: as 'none', 'rope(base=5e5)', 'randomized(max_length=2048)+rope' or
      'my_package.my_module:scheme(width=8)'.

  Returns:
    The scheme that `posjax.schemes.<name>.scheme(...)`, or the function of your own, makes; or the
    chain of several. Its `repr` is its expression, which this function reads again.

  Raises:
    ValueError: if the line cannot be read, a name is unknown, an argument is wrong, or a module of
      your own cannot be imported, or has no function of that name that makes a scheme.
    TypeError: if it is no string.

  Example:
    >>> from posjax.scheme import places
    >>> places(get('sinusoidal+alibi')), get('rope(5e5)+alibi()')
    (('embed', 'bias'), rope(base=500000.0)+alibi)
  """
  return _read(read(expression, str, 'The line of a scheme'), imports_allowed())


@functools.cache
def _read(expression: str, imports: bool) -> Scheme:
  """As `get`; what was read where imports are allowed is not handed out where they are not."""
  try:
    nodes = members_of(parsed(expression.strip()))
    return _shared(chain(*(_member(node, expression) for node in nodes)))
  except (RecursionError, MemoryError):
    raise ValueError(
      'A scheme must be one line that is not deeply nested, of a few hundred members at most, but '
      f'got {shown(expression)}.'
    ) from None


def _shared(scheme: Scheme) -> Scheme:
  """The first scheme of this line: however its arguments are written, it is one object."""
  return scheme if scheme.line is None else _SHARED.setdefault(scheme.line, scheme)


def parsed(line: str) -> ast.expr:
  """The syntax tree of a line, in which `COLON` stands for the colon of `module:function`.

  Raises:
    ValueError: if it is no expression of one line.
  """
  if not (line.isascii() and line.isprintable()):
    raise ValueError(f'A scheme must be one line of printable ASCII, but got {shown(line)}.')
  try:
    tokens = list(tokenize.generate_tokens(io.StringIO(line).readline))
    tree = ast.parse(_with_letters_for_colons(line, tokens), mode='eval').body
  except (SyntaxError, tokenize.TokenError):
    raise ValueError(
      f"A scheme must read like 'rope(base=5e5)+alibi', but got {shown(line)}."
    ) from None
  if any(token.type == tokenize.COMMENT for token in tokens):
    raise ValueError(f"A scheme takes no comment after '#', but got {shown(line)}.")
  return tree


def _with_letters_for_colons(line: str, tokens: list[tokenize.TokenInfo]) -> str:
  """The line with a letter for the colon of each `module:function`, so that Python can read it."""
  letters = list(line)
  is_name = lambda token: token.type == tokenize.NAME and not keyword.iskeyword(token.string)
  for before, colon, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
    together = before.end == colon.start and colon.end == after.start
    if colon.string == ':' and together and is_name(before) and is_name(after):
      letters[colon.start[1]] = COLON
  return ''.join(letters)


def members_of(node: ast.expr) -> list[ast.expr]:
  """The operands of `+`, in their order."""
  waiting, members = [node], []
  while waiting:
    node = waiting.pop()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
      waiting += [node.right, node.left]
    else:
      members.append(node)
  return members


def arguments_of(scheme: Scheme) -> tuple[str, dict[str, Any]]:
  """The name of a scheme of the library and all of its arguments, those left out by default too.

  Returns:
    The name and the arguments; '' and none for a chain, or a scheme that no name makes.

  Example:
    >>> name, given = arguments_of(get('alibi+rope(5e5)').parts[1])
    >>> name, given['base'], given['fraction'], arguments_of(get('alibi+rope'))
    ('rope', 500000.0, 1.0, ('', {}))
  """
  if scheme.line is None or scheme.parts:
    return '', {}
  node = parsed(scheme.line)
  called = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
  name = _path(called.func)
  if name not in names():
    return '', {}
  given = {str(each.arg): ast.literal_eval(each.value) for each in called.keywords}
  return name, {key: each.default for key, each in parameters_of(name).items()} | given


def parameters_of(name: str) -> Mapping[str, inspect.Parameter]:
  """The parameters of the constructor of a scheme of the library."""
  return inspect.signature(importlib.import_module(f'posjax.schemes.{name}').scheme).parameters


def _member(node: ast.expr, expression: str) -> Scheme:
  called = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
  path = _path(called.func)
  name = path.replace(COLON, ':')
  own = path.count(COLON) == 1 and COLON in path.rpartition('.')[2]
  if not (own or (path.isidentifier() and COLON not in path)):
    own_form = " One of your own must read like 'my_package.my_module:scheme(width=8)'."
    raise ValueError(
      f"A scheme must be a name, with or without arguments, but got '{_code(node)}' in "
      f'{shown(expression)}.{own_form if path else ""}'
    )
  if any(k.arg is None for k in called.keywords):
    raise ValueError(f'A scheme takes no ** arguments, but got {shown(expression)}.')
  if not own:
    _check_known(name)
  positional = [_literal(a, expression) for a in called.args]
  named = {str(k.arg): _literal(k.value, expression) for k in called.keywords}
  if len(named) < len(called.keywords):
    raise ValueError(f'Each argument must be given once, but got {shown(expression)}.')
  made = make(name, positional, named) if own else _made(name, positional, named)
  if (made.line or '').partition('(')[0] != name:  # of a function that `checked` does not decorate
    made = made.with_line(call(name, positional, named))
  return _shared(made)


def _path(node: ast.expr) -> str:
  """The names with points between that an expression consists of; '' if it is no such path."""
  names: list[str] = []
  while isinstance(node, ast.Attribute):
    names.append(node.attr)
    node = node.value
  return '.'.join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ''


def _check_known(name: str) -> None:
  if name not in names():
    near = difflib.get_close_matches(name[:_LONGEST].lower(), names(), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else '.'
    raise ValueError(f'Unknown scheme {shown(name)}{hint} There are: {", ".join(names())}.')


def _made(name: str, positional: list[Any], named: dict[str, Any]) -> Scheme:
  """A scheme of the library."""
  try:
    return importlib.import_module(f'posjax.schemes.{name}').scheme(*positional, **named)
  except TypeError as error:
    raise ValueError(str(error)) from error


def _literal(node: ast.expr, expression: str):
  try:
    return ast.literal_eval(node)
  except (ValueError, TypeError):  # not a literal; a list as a key
    raise ValueError(
      f"A scheme's arguments must be literals, but got '{_code(node)}' in {shown(expression)}."
    ) from None


def _code(node: ast.expr) -> str:
  code = ast.unparse(node).replace(COLON, ':')
  return code if len(code) <= _LONGEST else code[: _LONGEST - 2] + '..'
