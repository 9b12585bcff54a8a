"""Arguments are read by their annotations: exactly, or refused by one sentence.

A number that is no number, a string in place of a boolean or a float in place of a size would
otherwise go on until something far away breaks, or until nothing does. `read` reads one value, of
an argument of this library as of a key of a config; `checked` reads all arguments of a constructor.
`Annotated[float, Range(above=0)]` says a range; what relates several arguments is checked where
they are used.
"""

import difflib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

import jax
import numpy as np

from posjax import line

_CHECKED = '_posjax_checked'  # the attribute by which a decorated constructor is known
_REGISTRY = 'posjax.schemes.'  # the folder whose files `posjax.get` calls by their names
_END = 2**31  # the integers that ids and sizes can be end before it
# As float64: NumPy would compare in float32, where a larger number overflows.
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

_P = ParamSpec('_P')
_T = TypeVar('_T')


@typing.runtime_checkable
class Limit(Protocol):
  """A limit that `Annotated` adds to a type: it refuses some values, and says so in words."""

  def holds(self, value: Any) -> bool:
    """Whether a value of the type is allowed."""
    ...

  def describe(self, words: str) -> str:
    """The words for what is expected: the type, and the range of its values."""
    ...


class Range(NamedTuple):
  """The numbers that are allowed; NaN is in no range.

  Attributes:
    least: the smallest one, or None.
    most: the largest one, or None. Where it is inf, an infinite number is allowed.
    above: all are larger than this, or None.
    below: all are smaller than this, or None.
  """

  least: float | int | None = None
  most: float | int | None = None
  above: float | int | None = None
  below: float | int | None = None

  def holds(self, value: float | int) -> bool:
    """Whether a number is in the range."""
    return (
      value == value  # NaN is not
      and (self.least is None or value >= self.least)
      and (self.most is None or value <= self.most)
      and (self.above is None or value > self.above)
      and (self.below is None or value < self.below)
    )

  def describe(self, words: str) -> str:
    """The words for what is expected: the type, and the range of its values.

    Example:
      >>> Range(0, below=1).describe('a number'), Range(1, 10_000).describe('an integer')
      ('a number of at least 0 and below 1', 'an integer from 1 to 10,000')
    """
    if self == INT32:
      return f'{words} of 32 bits'
    if self.most == math.inf:
      return f'{self._replace(most=None).describe(words)}, or inf'
    if self.least is not None and self.most is not None:
      return f'{words} from {self.least:,} to {self.most:,}'
    bounds = {
      'of at least': self.least,
      'above': self.above,
      'of at most': self.most,
      'below': self.below,
    }
    written = lambda bound: '2^31' if bound == _END else f'{bound:,}'
    limits = [f'{word} {written(bound)}' for word, bound in bounds.items() if bound is not None]
    return f'{words} {" and ".join(limits)}'


INT32 = Range(-_END, below=_END)
POSITIVE = Range(1, below=_END)

Size = Annotated[int, POSITIVE]
Whole = Annotated[int, Range(0, below=_END)]  # a size that may be 0
AtLeastTwo = Annotated[int, Range(2, below=_END)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(above=0, most=1)]
Share = Annotated[float, Range(0, below=1)]  # such as that of weights which are dropped


def read(value: Any, kind: Any, name: str) -> Any:
  """The value as an annotation has it, with numbers of NumPy and JAX as Python's.

  The annotation may be bool, int, float, str, None, Any, a class, a `Literal`, a list, tuple or
  Sequence of one of them, a union of them, or one of them `Annotated` with a range. An int is in
  the range of int32 unless a range is given. A float is finite in float32, and may be given as an
  integer. A bool is no number. An array without axes is a number, if its value is known.

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
    >>> read(0, Size, 'The width')
    Traceback (most recent call last):
      ...
    ValueError: The width must be an integer of at least 1 and below 2^31, but got 0.
  """
  if kind is bool:
    if not isinstance(value, (bool, np.bool_)):
      raise _refusal(TypeError, name, kind, value)
    return bool(value)
  if kind in (int, float):
    return _read_number(value, kind, kind, name)
  origin, parts = typing.get_origin(kind), typing.get_args(kind)
  if origin is Annotated:
    return _read_limited(value, kind, name)
  if _is_union(kind):
    return _read_one_of(value, kind, name)
  if origin is Literal:
    if not any(type(value) is type(each) for each in parts):
      raise _refusal(TypeError, name, kind, value)
    if value not in parts:
      raise _refusal(ValueError, name, kind, value)
    return value
  if _is_sequence(kind):
    return _read_sequence(value, kind, name)
  if kind is not Any and not isinstance(value, kind or types.NoneType):
    raise _refusal(TypeError, name, kind, value)
  if kind is str and not _is_text(str(value)):
    raise ValueError(f'{name} must be Unicode text, but got {shown(value)}.')
  return value


def describe(kind: Any) -> str:
  """The expectation of an annotation, in words.

  Raises:
    TypeError: if it is an annotation that `read` does not know.

  Example:
    >>> describe(float | None), describe(list[int])
    ('a finite number or None', 'a list of integers')
  """
  return _describe(kind, plural=False)


def nearest(name: str, known: Iterable[str]) -> str | None:
  """The known name that is most like this one; None where none is.

  Example:
    >>> nearest('rop', ['alibi', 'rope'])
    'rope'
  """
  return next(iter(difflib.get_close_matches(name, tuple(known), n=1)), None)


def check_known(what: str, name: str, known: Iterable[str]) -> None:
  """Refuses a name that is none of those that there are.

  Args:
    what: the kind of thing, such as 'optimizer'.
    name: what was given.
    known: the names that there are.

  Raises:
    ValueError: with the nearest known name, and all of them.

  Example:
    >>> check_known('optimizer', 'adam', ['adamw', 'sgd'])
    Traceback (most recent call last):
    ValueError: Unknown optimizer 'adam'; did you mean 'adamw'? There are: adamw, sgd.
  """
  known = tuple(known)
  if name not in known:
    raise ValueError(unknown_name(what, name, known, nearest(name, known)))


def unknown_name(what: str, name: str, known: Iterable[str], near: str | None) -> str:
  """The error message for an unknown name; `near` is the known one that was probably meant."""
  hint = f"; did you mean '{near}'?" if near else '.'
  return f"Unknown {what} '{name}'{hint} There are: {', '.join(known)}."


def listed(names: Sequence[Any]) -> str:
  """The names to choose from, in words.

  Example:
    >>> listed(['a', 'b']), listed(['a'])
    ("one of 'a', 'b'", "'a'")
  """
  return f'one of {", ".join(map(repr, names))}' if len(names) > 1 else repr(names[0])


def shown(value: Any, longest: int = 80) -> str:
  """The value as code, cut where it is longer than a sentence can hold; its type where it has none.

  Example:
    >>> shown('x' * 100, longest=10)
    "'xxxxxxx.."
    >>> shown([print, object()]), shown(dict), shown(np.ones(2)), shown(10**90)
    ('a list', 'the class dict', 'an array float64[2]', 'an integer of 91 digits')
  """
  if isinstance(value, type):
    return f'the class {value.__name__}'
  if isinstance(value, types.ModuleType):
    return f'the module {value.__name__}'
  if isinstance(value, (jax.Array, np.ndarray)):
    return f'an array {value.dtype}{list(value.shape)}'
  if type(value) is int and abs(value) >= 10**longest:
    return f'an integer of {int(value.bit_length() * math.log10(2)) + 1:,} digits'
  try:
    code = repr(value)
  except (ValueError, RecursionError):  # a list that is deep, or of integers of thousands of digits
    code = f'a {type(value).__name__} that is too long to show'
  code = ' '.join(code.split())
  if ' at 0x' in code:  # an address says nothing to a reader
    return f'a {type(value).__name__}'
  return code if len(code) <= longest else code[: longest - 2] + '..'


def checked(constructor: Callable[_P, _T]) -> Callable[_P, _T]:
  """Decorates the constructor of a scheme: its arguments are read by their annotations.

  An argument that its annotation does not allow is a TypeError or a ValueError that names it. The
  scheme remembers the line that makes it, with the arguments that differ from their defaults.

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
    make: Any = constructor  # by names alone, which a type checker cannot follow
    made = make(**values)
    changed = {
      name: values[name]
      for name, parameter in signature.parameters.items()
      if name in values and not _is_default(values[name], parameter.default)
    }
    return made.with_line(_line(constructor, changed)) if hasattr(made, 'with_line') else made

  setattr(reading, _CHECKED, True)
  return reading


def is_checked(function: Any) -> bool:
  """Whether `checked` decorates it, so that it is the constructor of a scheme."""
  return getattr(function, _CHECKED, False) is True


def _is_default(value: Any, default: Any) -> bool:
  """Whether an argument has the value that it would have without being given."""
  value = getattr(value, 'line', value)  # a scheme is as good as its line
  plain = (bool, int, float, str, tuple, types.NoneType)
  return isinstance(value, plain) and isinstance(default, plain) and value == default


def _line(constructor: Callable[..., Any], named: dict[str, Any]) -> str | None:
  """The line that `posjax.get` reads to make this call; None for a function within another."""
  module, function = constructor.__module__, constructor.__qualname__
  if not function.isidentifier():
    return None
  of_library = function == 'scheme' and module.startswith(_REGISTRY)
  return line.call(
    module.removeprefix(_REGISTRY) if of_library else f'{module}:{function}', (), named
  )


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
      near = nearest(name, names)
      hint = f"; did you mean '{near}'?" if near else '.'
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


def _read_limited(value: Any, kind: Any, name: str) -> Any:
  """A value of an `Annotated` type that all limits hold."""
  plain, *limits = typing.get_args(kind)
  if plain in (int, float):
    return _read_number(value, plain, kind, name, limits)
  found = read(value, plain, name)
  if not all(limit.holds(found) for limit in limits):
    raise _refusal(ValueError, name, kind, value)
  return found


def _read_one_of(value: Any, kind: Any, name: str) -> Any:
  """The value as the first member of a union that it fits, or the error of one of its type."""
  _check_known(value, name)
  out_of_range = None
  for member in typing.get_args(kind):
    try:
      return read(value, member, name)
    except TypeError:
      continue
    except ValueError as error:
      out_of_range = out_of_range or error
  raise out_of_range or _refusal(TypeError, name, kind, value)


def _read_sequence(value: Any, kind: Any, name: str) -> tuple[Any, ...]:
  is_vector = isinstance(value, np.ndarray) and value.ndim == 1
  if not is_vector and not isinstance(value, (list, tuple)):
    raise _refusal(TypeError, name, kind, value)
  member = typing.get_args(kind)[0]
  return tuple(read(entry, member, f'{name}[{i}]') for i, entry in enumerate(value))


def _read_number(
  value: Any, plain: type, kind: Any, name: str, limits: Sequence[Limit] = ()
) -> float | int:
  """An int or a float, of Python, NumPy or JAX.

  Args:
    value: what the caller gave.
    plain: int or float.
    kind: the whole annotation.
    name: what the value is.
    limits: those of the annotation.
  """
  _check_known(value, name)
  given = value.item() if isinstance(value, (jax.Array, np.ndarray)) and not value.shape else value
  types_of_it = (int, np.integer) if plain is int else (int, float, np.integer, np.floating)
  if isinstance(given, bool) or not isinstance(given, types_of_it):
    raise _refusal(TypeError, name, plain, given)
  if plain is int:
    if not all(limit.holds(int(given)) for limit in limits or [INT32]):
      raise _refusal(ValueError, name, kind if limits else Annotated[int, INT32], given)
    return int(given)
  number = _as_float(given)
  endless = number == given == math.inf and any(
    getattr(limit, 'most', None) == math.inf for limit in limits
  )
  if not all(limit.holds(number) for limit in limits) or not (endless or math.isfinite(number)):
    raise _refusal(ValueError, name, kind, given)
  if endless:
    return number
  # Most numbers meet float32 arrays, where larger ones become inf, and smaller ones 0.
  if number and not _LEAST <= abs(number) <= _MOST:
    raise ValueError(f'{name} must be a number in the range of float32, but got {shown(given)}.')
  if number != given:
    raise ValueError(f'{name} must be a number that float64 holds exactly, but got {shown(given)}.')
  return number


def _check_known(value: Any, name: str) -> None:
  if isinstance(value, jax.core.Tracer):
    raise TypeError(
      f'{name} must be known when JAX traces the program, but got {shown(value)} that is traced.'
    )


def _as_float(value: Any) -> float:
  try:
    return float(value)
  except OverflowError:
    return math.inf


def _is_sequence(kind: Any) -> bool:
  return typing.get_origin(kind) in (list, tuple, Sequence)


def _is_union(kind: Any) -> bool:
  return isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union


def _is_text(value: str) -> bool:
  """Undecodable bytes of a command line, as Python holds them, can be neither shown nor stored."""
  return not any('\ud800' <= letter <= '\udfff' for letter in value)


_WORDS = {
  bool: ('True or False', 'True or False'),
  int: ('an integer', 'integers'),
  float: ('a finite number', 'finite numbers'),
  str: ('a string', 'strings'),
  None: ('None', 'None'),
  types.NoneType: ('None', 'None'),
  Any: ('anything', 'anything'),
}


def _describe(kind: Any, plural: bool) -> str:
  parts = typing.get_args(kind)
  if typing.get_origin(kind) is Annotated:
    words = _describe(parts[0], plural)
    for limit in parts[1:]:
      words = limit.describe(words)
    return words
  if _is_union(kind):
    # A bound ends in front of a comma: 'at least 1 and below 2^31, or None'.
    limited = any(typing.get_origin(part) is Annotated for part in parts)
    return (', or ' if limited else ' or ').join(_describe(part, plural) for part in parts)
  if typing.get_origin(kind) is Literal:
    return listed(parts)
  if _is_sequence(kind):
    return f'a list of {_describe(parts[0], plural=True)}'
  if kind in _WORDS:
    return _WORDS[kind][plural]
  if not isinstance(kind, type):
    raise TypeError(f'Arguments are read by simple annotations, but got {kind}.')
  return f'a {kind.__name__}'


def _names(kind: Any) -> Sequence[str]:
  """The names among which an annotation lets choose."""
  parts = typing.get_args(kind)
  if typing.get_origin(kind) is Literal:
    return [each for each in parts if isinstance(each, str)]
  if typing.get_origin(kind) is Annotated:
    return [name for limit in parts[1:] for name in getattr(limit, 'names', lambda: ())()]
  return ()


def _possessive(owner: str) -> str:
  return f"{owner}'" if owner.endswith('s') else f"{owner}'s"


def _refusal(error: type[Exception], name: str, kind: Any, value: Any) -> Exception:
  near = nearest(value, _names(kind)) if isinstance(value, str) else None
  hint = f'; did you mean {near!r}?' if near else '.'
  return error(f'{name} must be {describe(kind)}, but got {shown(value)}{hint}')
