"""Schemes from one line of text, and the folder that is their registry."""

import ast
import difflib
import functools
import importlib
import inspect
import pkgutil

from posjax import schemes
from posjax.chain import chain
from posjax.scheme import Scheme


def names() -> tuple[str, ...]:
  """The schemes that there are: the modules of `posjax/schemes`, sorted."""
  return tuple(sorted(module.name for module in pkgutil.iter_modules(schemes.__path__)))


@functools.cache
def get(expression: str) -> Scheme:
  """Reads a scheme: names, with literal arguments, chained by `+`.

  Equal expressions give the same object, so that jit does not trace twice.

  Args:
    expression: as 'none', 'rope(base=5e5)' or 'randomized(max_length=2048)+rope'.

  Returns:
    The scheme that `posjax.schemes.<name>.scheme(...)` makes, or the chain of several.

  Raises:
    ValueError: if the line cannot be read, a name is unknown, or an argument is wrong.

  Example:
    >>> from posjax.scheme import places
    >>> places(get('sinusoidal+alibi'))
    ('embed', 'bias')
  """
  try:
    tree = ast.parse(expression.strip(), mode='eval').body
  except SyntaxError:
    raise ValueError(
      f"A scheme must read like 'rope(base=5e5)+alibi', but got {expression!r}."
    ) from None
  return chain(*(_member(node, expression) for node in _members(tree)))


def _members(node: ast.expr) -> list[ast.expr]:
  if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
    return _members(node.left) + _members(node.right)
  return [node]


def _member(node: ast.expr, expression: str) -> Scheme:
  call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
  if not isinstance(call.func, ast.Name):
    raise ValueError(
      f"A scheme must be a name, with or without arguments, but got '{ast.unparse(node)}' in "
      f'{expression!r}.'
    )
  make = _constructor(call.func.id)
  arguments = [_literal(a, expression) for a in call.args]
  if any(k.arg is None for k in call.keywords):
    raise ValueError(f'A scheme takes no ** arguments, but got {expression!r}.')
  named = {str(k.arg): _literal(k.value, expression) for k in call.keywords}
  if len(named) < len(call.keywords):
    raise ValueError(f'Each argument must be given once, but got {expression!r}.')
  signature = inspect.signature(make)
  try:
    signature.bind(*arguments, **named)
    return make(*arguments, **named)
  except TypeError as error:
    raise ValueError(
      f"Wrong arguments for scheme '{call.func.id}': {error}. It takes {_shown(signature)}."
    ) from error


def _constructor(name: str):
  if name not in names():
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else '.'
    raise ValueError(f"Unknown scheme '{name}'{hint} There are: {', '.join(names())}.")
  return importlib.import_module(f'posjax.schemes.{name}').scheme


def _literal(node: ast.expr, expression: str):
  try:
    return ast.literal_eval(node)
  except (ValueError, TypeError):  # not a literal; a list as a key
    raise ValueError(
      f"A scheme's arguments must be literals, but got '{ast.unparse(node)}' in {expression!r}."
    ) from None


def _shown(signature: inspect.Signature) -> str:
  bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
  return str(inspect.Signature(bare)) if bare else 'none'
