"""Schemes that take the place of a checkpoint's own, with what the checkpoint was trained with.

A line such as 'yarn(factor=8.0, original_length=4096)' says what is new. The base, the share of a
head that rotates, and which dimensions form a pair are those of the checkpoint, whose weights were
trained with them: a line that leaves them out gets them from the checkpoint's own scheme.
"""

import ast
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from posjax.arguments import shown
from posjax.expression import get, members_of, names, parsed
from posjax.scheme import Scheme

OWN = 'own'
_TRAINED = 'base', 'fraction', 'interleaved'  # the arguments that are the checkpoint's
Given = str | Scheme | Sequence[str | Scheme] | None


def replaced(given: Given, own: Sequence[Scheme], passive: Sequence[bool]) -> list[Scheme]:
  """The scheme of each layer.

  Args:
    given: None or 'own', which leave all as they are; one scheme, for all layers that have one of
      their own; or a sequence of schemes, which repeats over all layers.
    own: the checkpoint's scheme of each layer.
    passive: of each layer, whether its own scheme does nothing.

  Raises:
    ValueError: if a line cannot be read, a sequence does not divide the layers, or a scheme cannot
      rotate as the checkpoint does.

  Example:
    >>> rope, none = get('rope(base=5e5, interleaved=True)'), get('none')
    >>> replaced('yarn(factor=4.0, original_length=64)', [rope, none], [False, True])
    [yarn(factor=4.0, original_length=64, base=500000.0, interleaved=True), none]
  """
  if given is None or isinstance(given, str | Scheme):
    one = OWN if given is None else given
    return [
      scheme if still else _one(one, scheme, scheme)
      for scheme, still in zip(own, passive, strict=True)
    ]
  rotating = next((each for each, still in zip(own, passive, strict=True) if not still), None)
  listed = list(given)
  if not listed or len(own) % len(listed):
    raise ValueError(
      f'The schemes must be one, or as many as divide the {len(own)} layers, but got {len(listed)}.'
    )
  pairs = zip(own, passive, strict=True)
  return [
    _one(listed[i % len(listed)], scheme, rotating if still else scheme)
    for i, (scheme, still) in enumerate(pairs)
  ]


def _one(given: str | Scheme, own: Scheme, trained: Scheme | None) -> Scheme:
  """The scheme of one layer; `trained` is the one whose base and pairs a line gets."""
  if isinstance(given, Scheme):
    return given
  if given.strip() == OWN:
    return own
  return get(given if trained is None else completed(given, trained))


def completed(line: str, own: Scheme) -> str:
  """The line with the arguments that are the checkpoint's, where it leaves them out.

  Raises:
    ValueError: if it cannot be read, or a scheme that rotates lacks an argument for what the
      checkpoint does.

  Example:
    >>> completed('grouped(8, 64)+ssmax', get('rope(base=5e5)'))
    'grouped(group=8, window=64, base=500000.0)+ssmax'
  """
  trained = _trained(own)
  written = [_completed(node, trained) for node in members_of(parsed(line.strip()))]
  return '+'.join(written).replace('\u02d0', ':')


def _completed(node: ast.expr, trained: dict[str, Any]) -> str:
  call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
  name = call.func.id if isinstance(call.func, ast.Name) else ''
  if name not in names():
    return ast.unparse(node)
  takes = _signature(name).parameters
  if 'base' not in takes or 'interleaved' not in takes:  # it rotates no queries and keys
    return ast.unparse(node)
  given = dict(zip(takes, map(ast.unparse, call.args), strict=False))
  given |= {str(each.arg): ast.unparse(each.value) for each in call.keywords}
  for argument, value in trained.items():
    if argument in given:
      continue
    if argument in takes:
      if takes[argument].default != value:
        given[argument] = repr(value)
    elif value != _DEFAULTS[argument]:
      raise ValueError(
        f'The checkpoint rotates its queries and keys with {argument}={value!r}, which the scheme '
        f'{shown(name)} has no argument for.'
      )
  return f'{name}({", ".join(f"{key}={value}" for key, value in given.items())})'


_DEFAULTS = {'base': 10000.0, 'fraction': 1.0, 'interleaved': False}


def _trained(own: Scheme) -> dict[str, Any]:
  """The arguments of `_TRAINED` in the line of the first member that rotates."""
  for part in own.parts or (own,):
    if part.line is None:
      continue
    node = members_of(parsed(part.line))[0]
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    name = call.func.id if isinstance(call.func, ast.Name) else ''
    if name not in names() or 'interleaved' not in (takes := _signature(name).parameters):
      continue
    given = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    default = lambda argument, takes=takes: takes[argument].default if argument in takes else None
    values = {each: given.get(each, default(each)) for each in _TRAINED}
    return {each: value for each, value in values.items() if value is not None}
  return {}


def _signature(name: str) -> inspect.Signature:
  return inspect.signature(importlib.import_module(f'posjax.schemes.{name}').scheme)
