"""Schemes that take the place of a checkpoint's own, with what the checkpoint was trained with.

A line such as 'yarn(factor=8.0, original_length=4096)' says what is new. The base, the share of a
head that rotates, and which dimensions form a pair are those of the checkpoint, whose weights were
trained with them: a line that leaves them out gets them from the checkpoint's own scheme.
"""

import ast
from collections.abc import Sequence
from typing import Any

from posjax.arguments import shown
from posjax.expression import COLON, arguments_of, get, members_of, names, parameters_of, parsed
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
    'grouped(8, 64, base=500000.0)+ssmax'
  """
  trained = _trained(own)
  written = [_completed(node, trained) for node in members_of(parsed(line.strip()))]
  return '+'.join(written).replace(COLON, ':')


def _completed(node: ast.expr, trained: dict[str, Any]) -> str:
  """One member of a line; what is wrong in it is left for `posjax.get` to refuse."""
  call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
  name = call.func.id if isinstance(call.func, ast.Name) else ''
  takes = parameters_of(name) if name in names() else {}
  if not {'base', 'interleaved'} <= takes.keys():  # it rotates no queries and keys
    return ast.unparse(node)
  given = {*list(takes)[: len(call.args)], *(each.arg for each in call.keywords)}
  added = []
  for argument, value in trained.items():
    if argument in given:
      continue
    if argument in takes:
      if takes[argument].default != value:
        added.append(ast.keyword(argument, ast.Constant(value)))
    elif value != parameters_of('rope')[argument].default:
      raise ValueError(
        f'The checkpoint rotates its queries and keys with {argument}={value!r}, which the scheme '
        f'{shown(name)} has no argument for.'
      )
  return ast.unparse(ast.Call(call.func, call.args, [*call.keywords, *added]))


def _trained(own: Scheme) -> dict[str, Any]:
  """The arguments of `_TRAINED` of the first member that rotates queries and keys."""
  for part in own.parts or (own,):
    _, given = arguments_of(part)
    if 'interleaved' in given and 'base' in given:
      return {name: given[name] for name in _TRAINED if name in given}
  return {}
