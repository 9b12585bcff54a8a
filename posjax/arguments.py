"""Arguments are read by their annotations: exactly, or refused by one sentence.

A number that is no number, a string in place of a boolean or a float in place of a size would
otherwise go on until something far away breaks, or until nothing does. `read` reads one value;
`checked` reads all arguments of a constructor. Ranges that belong to one scheme, such as a share in
(0, 1], are checked by that scheme.
"""

import difflib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np

INT32 = range(-(2**31), 2**31)  # the integers that ids and sizes can be, if nothing else is said
POSITIVE = range(1, 2**31)
# As float64: NumPy would compare in float32, where a larger number overflows.
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

Size = Annotated[int, POSITIVE]

_P = ParamSpec('_P')
_T = TypeVar('_T')


def read(value: Any, kind: Any, name: str) -> Any:
  """The value as an annotation has it, with NumPy's scalars as Python's.

  The annotation may be bool, int, float, str, None, a class, a list, tuple or Sequence of one of
  them, a union of them, or `Annotated[int, range(...)]`. An int is in the range of int32 unless a
  range is given. A float is finite in float32, and may be given as an integer. A bool is no number.

  Args:
    value: what the caller gave.
    kind: the annotation.
    name: what the value is, which begins the sentence of the error.

  Raises:
    TypeError: if the value has another type.
    ValueError: if it has the type, but not a value that the annotation allows.

  Example:
    >>> read(3, float, 'The base')
    3.0
    >>> read('False', bool, 'interleaved')
    Traceback (most recent call last):
      ...
    TypeError: interleaved must be True or False, but got 'False'.
  """
  if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
    return _read_one_of(value, kind, name)
  if _is_sequence(kind):
    return _read_sequence(value, kind, name)
  if typing.get_origin(kind) is Annotated:
    return read_integer(value, typing.get_args(kind)[1], name)
  if kind is int:
    return read_integer(value, INT32, name)
  if kind is float:
    return _read_float(value, name)
  if kind is bool and isinstance(value, np.bool_):
    return bool(value)
  if not isinstance(value, kind or types.NoneType):
    raise TypeError(_sentence(name, describe(kind), value))
  return value


def read_integer(value: Any, allowed: range, name: str) -> int:
  """The integer, Python's or NumPy's, if it is in a range.

  Raises:
    TypeError: if it is no integer.
    ValueError: if it is out of range.

  Example:
    >>> read_integer(0, POSITIVE, 'The width')
    Traceback (most recent call last):
      ...
    ValueError: The width must be an integer of at least 1 and of 32 bits, but got 0.
  """
  if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
    raise TypeError(_sentence(name, 'an integer', value))
  if int(value) not in allowed:
    raise ValueError(_sentence(name, _describe_integer(allowed), value))
  return int(value)


def describe(kind: Any) -> str:
  """The expectation of an annotation, in words.

  Raises:
    TypeError: if it is an annotation that `read` does not know.

  Example:
    >>> describe(float | None)
    'a finite number or None'
  """
  if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
    return ' or '.join(map(describe, typing.get_args(kind)))
  if _is_sequence(kind):
    return f'a list of which each entry is {describe(typing.get_args(kind)[0])}'
  if typing.get_origin(kind) is Annotated:
    return _describe_integer(typing.get_args(kind)[1])
  words = {bool: 'True or False', int: 'an integer', float: 'a finite number', str: 'a string'}
  words |= {None: 'None', types.NoneType: 'None'}
  if kind in words:
    return words[kind]
  if not isinstance(kind, type):
    raise TypeError(f'Arguments are read by simple annotations, but got {kind}.')
  return f'a {kind.__name__}'


def shown(value: Any, longest: int = 80) -> str:
  """The value as code, cut where it is longer than a sentence can hold; its type where it has none.

  Example:
    >>> shown('x' * 100, longest=10)
    "'xxxxxxx.."
    >>> shown([print, object()]), shown(dict)
    ('a list', 'the class dict')
  """
  if isinstance(value, type):
    return f'the class {value.__name__}'
  try:
    code = repr(value)
  except (ValueError, RecursionError):  # an integer of thousands of digits, or a deep list
    code = f'a {type(value).__name__} that is too long to show'
  code = ' '.join(code.split())
  if ' at 0x' in code:  # an address says nothing to a reader
    return f'a {type(value).__name__}'
  return code if len(code) <= longest else code[: longest - 2] + '..'


def checked(constructor: Callable[_P, _T]) -> Callable[_P, _T]:
  """Decorates the constructor of a scheme: its arguments are read by their annotations.

  Example:
    >>> @checked
    ... def scheme(base: float = 1e4):
    ...   return base
    >>> scheme(base=None)
    Traceback (most recent call last):
      ...
    TypeError: arguments' base must be a finite number, but got None.
    >>> scheme(bases=3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    TypeError: The scheme 'arguments' has no argument 'bases'; did you mean 'base'? It takes (bas...
  """
  signature = inspect.signature(constructor)
  owner = constructor.__module__.rpartition('.')[2]
  kinds = typing.get_type_hints(constructor, include_extras=True)
  for name in signature.parameters:
    describe(kinds[name])  # or an error, now

  @functools.wraps(constructor)
  def reading(*args: _P.args, **kwargs: _P.kwargs) -> _T:
    given = _given(signature, owner, args, kwargs)
    values = {
      name: read(value, kinds[name], f'{_possessive(owner)} {name}')
      for name, value in given.items()
    }
    call: Any = constructor  # by names alone, which a type checker cannot follow
    return call(**values)

  return reading


def signature_shown(signature: inspect.Signature) -> str:
  """The arguments and defaults of a constructor, as one writes them; 'no arguments' for none.

  Example:
    >>> signature_shown(inspect.signature(lambda base, factor=1.0: 0))
    '(base, factor=1.0)'
  """
  bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
  return str(inspect.Signature(bare)) if bare else 'no arguments'


def _given(
  signature: inspect.Signature, owner: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
  """The arguments of a call by their names; refused where Python would refuse the call."""
  names, takes = list(signature.parameters), f'It takes {signature_shown(signature)}.'
  scheme = f"The scheme '{owner}'"
  if len(args) > len(names):
    raise TypeError(f'{scheme} has {len(names)} arguments, but got {len(args)}. {takes}')
  for name in kwargs:
    if name not in names:
      near = difflib.get_close_matches(name, names, n=1)
      hint = f"; did you mean '{near[0]}'?" if near else '.'
      raise TypeError(f'{scheme} has no argument {shown(name)}{hint} {takes}')
  given = dict(zip(names, args, strict=False))
  twice = sorted(given.keys() & kwargs)
  if twice:
    raise TypeError(f'{_possessive(owner)} {twice[0]} must be given once, but got two values.')
  given |= kwargs
  parameters = signature.parameters.values()
  missing = [p.name for p in parameters if p.default is p.empty and p.name not in given]
  if missing:
    raise TypeError(f'{scheme} needs {" and ".join(missing)}, but got no value. {takes}')
  return given


def _read_one_of(value: Any, kind: Any, name: str) -> Any:
  """The value as the first member of a union that it fits."""
  wrong_value = False
  for member in typing.get_args(kind):
    try:
      return read(value, member, name)
    except TypeError:
      continue
    except ValueError:
      wrong_value = True
  raise (ValueError if wrong_value else TypeError)(_sentence(name, describe(kind), value))


def _read_sequence(value: Any, kind: Any, name: str) -> tuple[Any, ...]:
  is_vector = isinstance(value, np.ndarray) and value.ndim == 1
  if not is_vector and not isinstance(value, (list, tuple)):
    raise TypeError(_sentence(name, describe(kind), value))
  member = typing.get_args(kind)[0]
  return tuple(read(entry, member, f'{name}[{i}]') for i, entry in enumerate(value))


def _read_float(value: Any, name: str) -> float:
  numbers = (int, float, np.integer, np.floating)
  if isinstance(value, bool) or not isinstance(value, numbers):
    raise TypeError(_sentence(name, 'a finite number', value))
  try:
    number = float(value)
  except OverflowError:
    number = math.inf
  if not math.isfinite(number):
    raise ValueError(_sentence(name, 'a finite number', value))
  # Most numbers meet float32 arrays, where larger ones become inf, and smaller ones 0.
  if number and not _LEAST <= abs(number) <= _MOST:
    raise ValueError(_sentence(name, 'a number in the range of float32', value))
  if number != value:
    raise ValueError(_sentence(name, 'a number that float64 holds exactly', value))
  return number


def _is_sequence(kind: Any) -> bool:
  return typing.get_origin(kind) in (list, tuple, Sequence)


def _describe_integer(allowed: range) -> str:
  if allowed == INT32:
    return 'an integer of 32 bits'
  end = allowed.stop - 1
  return f'an integer of at least {allowed.start}' + (
    ' and of 32 bits' if end == 2**31 - 1 else f' and at most {end}'
  )


def _possessive(owner: str) -> str:
  return f"{owner}'" if owner.endswith('s') else f"{owner}'s"


def _sentence(name: str, expected: str, value: Any) -> str:
  return f'{name} must be {expected}, but got {shown(value)}.'
