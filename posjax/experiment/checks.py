"""Checks of values that a config holds, by the annotations of the functions that take them.

A key of a config is an argument of some constructor: of a task, a model, an optimizer. Its type is
its annotation there, and `Annotated[int, Range(1)]` says its range as well. Whoever writes a new
task has its keys checked by annotating its arguments.
"""

import functools
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, Union

from posjax.experiment.names import nearest

SHOWN = 80  # letters of a value in a message, at most

P = ParamSpec('P')
R = TypeVar('R')


class Range(NamedTuple):
  """The numbers that a key takes; NaN is in no range.

  Attributes:
    least: the smallest one, or None.
    most: the largest one, or None.
    above: all are larger than this, or None.
    below: all are smaller than this, or None.
  """

  least: float | None = None
  most: float | None = None
  above: float | None = None
  below: float | None = None

  def holds(self, value: float | int) -> bool:
    """Whether a number is in the range."""
    return (
      value == value  # NaN is not
      and (self.least is None or value >= self.least)
      and (self.most is None or value <= self.most)
      and (self.above is None or value > self.above)
      and (self.below is None or value < self.below)
    )

  def __str__(self) -> str:
    """The range in words.

    Example:
      >>> str(Range(0, below=1)), str(Range(1, 10_000)), str(Range(above=0))
      ('of at least 0 and below 1', 'from 1 to 10,000', 'above 0')
    """
    if self.least is not None and self.most is not None:
      return f'from {self.least:,} to {self.most:,}'
    bounds = {
      'of at least': self.least,
      'above': self.above,
      'of at most': self.most,
      'below': None if self.below == math.inf else self.below,
    }
    shown = lambda bound: '2^31' if bound == END else f'{bound:,}'
    words = [f'{word} {shown(bound)}' for word, bound in bounds.items() if bound is not None]
    return ' and '.join([*words, *(['finite'] if self.below == math.inf else [])])


class OneOf:
  """The names that a key takes, where only a function can tell them.

  Args:
    names: `() -> names`.
  """

  def __init__(self, names: Callable[[], Sequence[str]]):
    self.names = names


class Section(NamedTuple):
  """A key that holds keys itself, as `config.model` does.

  Attributes:
    keys: `() -> keys`, as of `keys_of`.
  """

  keys: Callable[[], 'Keys']


class Key(NamedTuple):
  """A key of a config.

  Attributes:
    hint: the annotation of the argument that takes it; `Any` where there is none.
    required: whether it must be given.
  """

  hint: Any = Any
  required: bool = True


class Keys(NamedTuple):
  """The keys of one section.

  Attributes:
    known: by name.
    further: whether other keys are taken as well.
  """

  known: Mapping[str, Key]
  further: bool = False


END = 2**31  # the integers of JAX end before it

Count = Annotated[int, Range(1, below=END)]
Whole = Annotated[int, Range(0, below=END)]
Seed = Annotated[int, Range(0, below=END)]
Layers = Annotated[int, Range(1, 1000)]  # some models build them one by one
Rate = Annotated[float, Range(0, below=math.inf)]
Share = Annotated[float, Range(0, below=1)]


def keys_of(function: Callable[..., Any], without: Sequence[str] = ()) -> Keys:
  """The keys of a section whose values are the arguments of a function.

  Args:
    function: whose arguments can be named. Of a class, its constructor.
    without: arguments that are no keys.

  Example:
    >>> def task(scheme, *, length: int, data: str = 'docs'): ...
    >>> sorted(keys_of(task, without=['scheme']).known)
    ['data', 'length']
  """
  plain = function.__init__ if inspect.isclass(function) and _own_init(function) else function
  hints = _hints(plain)
  known, further = {}, False
  for name, parameter in inspect.signature(plain).parameters.items():
    if parameter.kind is parameter.VAR_KEYWORD:
      further = True
    elif parameter.kind is not parameter.VAR_POSITIONAL and name not in ('self', *without):
      known[name] = Key(hints.get(name, Any), parameter.default is parameter.empty)
  return Keys(known, further)


def _own_init(kind: type) -> bool:
  """Named tuples have no constructor of their own."""
  return kind.__init__ is not object.__init__ and not issubclass(kind, tuple)


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
  try:
    return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
  except (NameError, TypeError, AttributeError):  # names that exist for type checkers alone
    return {}


def check_section(section: str, given: Any, keys: Keys) -> None:
  """Checks all keys of a section: that they are known and there, and their types and ranges.

  Args:
    section: its name, such as 'task'; '' for the whole config.
    given: what should be a mapping of the keys to their values.
    keys: those that there are.

  Raises:
    TypeError: if a value has another type, or the section is none.
    ValueError: if a key is unknown or missing, or a value is out of range.

  Example:
    >>> check_section('task', {'lenght': 3}, Keys({'length': Key(int, False)}))
    Traceback (most recent call last):
    ValueError: The config has no key 'task.lenght'; did you mean 'task.length'?
  """
  prefix = f'{section}.' if section else ''
  if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
    what = f'config.{section}' if section else 'The config'
    raise TypeError(f'{what} must be a section of keys, but got {_shown(given)}.')
  for name in given:
    if name not in keys.known and not keys.further:
      raise ValueError(unknown_key(f'{prefix}{name}', [f'{prefix}{each}' for each in keys.known]))
  for name, key in keys.known.items():
    if name in given:
      check_value(f'{prefix}{name}', key.hint, given[name])
    elif key.required:
      raise ValueError(f"The config must have the key '{prefix}{name}', but it is missing.")


def unknown_key(name: str, known: Sequence[str]) -> str:
  """The sentence about a key that there is not."""
  near = nearest(name, known)
  told = f'did you mean {near!r}?' if near else f'there are: {", ".join(sorted(known))}.'
  return f'The config has no key {name!r}; {told}'


def check_value(name: str, hint: Any, value: Any) -> None:
  """Checks a value by an annotation.

  Raises:
    TypeError: if it has another type.
    ValueError: if it is out of the annotation's range.

  Example:
    >>> check_value('steps', Annotated[int, Range(1)], 2.5)
    Traceback (most recent call last):
    TypeError: steps must be a whole number of at least 1, but got 2.5.
  """
  if isinstance(section := _mark(hint, Section), Section):
    check_section(name, value, section.keys())
    return
  if _fits(hint, value):
    return
  if isinstance(value, str) and not _is_text(value):
    raise ValueError(f'{name} must be Unicode text, but got {_shown(value)}, which is none.')
  error = ValueError if _fits(_bare(hint), _ordinary(value)) else TypeError
  near = nearest(value, _names(hint)) if isinstance(value, str) else None
  asked = f'; did you mean {near!r}?' if near else '.'
  raise error(f'{name} must be {described(hint)}, but got {_shown(value)}{asked}')


def checked(section: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
  """A decorator: the arguments that a function gets by name are checked by its annotations.

  Args:
    section: the part of a config whose keys they are.
  """

  def decorate(function: Callable[P, R]) -> Callable[P, R]:
    known = keys_of(function).known

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
      for name, value in kwargs.items():
        if name in known:
          check_value(f'{section}.{name}', known[name].hint, value)
      return function(*args, **kwargs)

    return call

  return decorate


def _mark(hint: Any, kind: type) -> Any:
  """The mark of that kind in an `Annotated` hint; None where there is none."""
  marks = getattr(hint, '__metadata__', ())
  return next((mark for mark in marks if isinstance(mark, kind)), None)


def _ordinary(value: Any) -> Any:
  """A value of the same type that is in the range of that type."""
  if isinstance(value, str):
    return ''
  if isinstance(value, float) or (isinstance(value, int) and not _is_float(value)):
    return type(value)(0)
  return value


def _names(hint: Any) -> Sequence[str]:
  if one := _mark(hint, OneOf):
    return one.names()
  if typing.get_origin(hint) is Literal:
    return [each for each in typing.get_args(hint) if isinstance(each, str)]
  if typing.get_origin(hint) in (Union, types.UnionType):
    return [name for each in typing.get_args(hint) for name in _names(each)]
  return ()


def _bare(hint: Any) -> Any:
  """An annotation without its ranges."""
  origin, parts = typing.get_origin(hint), typing.get_args(hint)
  if origin is Annotated:
    return _bare(parts[0])
  if origin is Literal:
    return str if all(isinstance(each, str) for each in parts) else hint
  if origin in (Union, types.UnionType):
    return functools.reduce(operator.or_, map(_bare, parts))
  if isinstance(origin, type) and issubclass(origin, Sequence) and origin is not tuple:
    return types.GenericAlias(Sequence, tuple(map(_bare, parts)))
  return hint


def _fits(hint: Any, value: Any) -> bool:
  """Whether a value is what an annotation asks for; annotations of other kinds take anything."""
  origin, parts = typing.get_origin(hint), typing.get_args(hint)
  if origin is Annotated:
    names, within = _mark(hint, OneOf), _mark(hint, Range)
    return (
      _fits(parts[0], value)
      and (within is None or within.holds(value))
      and (names is None or value in names.names())
    )
  if origin is Literal:
    return any(type(value) is type(each) and value == each for each in parts)
  if origin in (Union, types.UnionType):
    return any(_fits(each, value) for each in parts)
  if origin is Mapping:
    return isinstance(value, Mapping)
  if isinstance(origin, type) and issubclass(origin, Sequence):
    element = parts[0] if parts else Any
    return isinstance(value, tuple | list) and all(_fits(element, each) for each in value)
  if hint is None or hint is type(None):
    return value is None
  if hint is bool:
    return isinstance(value, bool)
  if hint is int:
    return isinstance(value, int) and not isinstance(value, bool)
  if hint is float:
    return isinstance(value, int | float) and not isinstance(value, bool) and _is_float(value)
  if hint is str:
    return isinstance(value, str) and _is_text(value)
  return True


def _is_float(value: float | int) -> bool:
  try:
    return not math.isnan(float(value))
  except OverflowError:
    return False


def _is_text(value: str) -> bool:
  """Undecodable bytes of a command line, as Python holds them, can be neither shown nor stored."""
  return not any('\ud800' <= letter <= '\udfff' for letter in value)


def described(hint: Any) -> str:
  """An annotation in words.

  Example:
    >>> described(Annotated[int, Range(1)] | None)
    'a whole number of at least 1, or None'
  """
  return ', or '.join(_described(hint, plural=False))


def _described(hint: Any, plural: bool) -> list[str]:
  origin, parts = typing.get_origin(hint), typing.get_args(hint)
  if origin is Annotated:
    if names := _mark(hint, OneOf):
      return [_listed(names.names())]
    (plain,) = _described(parts[0], plural)
    within = _mark(hint, Range)
    if within is None:
      return [plain]
    return [f'{plain} {within}'.replace(' and finite', ', and finite')]
  if origin is Literal:
    return [_listed(parts)]
  if origin in (Union, types.UnionType):
    # A bound that several parts share is said with each: they are few.
    return [word for each in parts for word in _described(each, plural)]
  if isinstance(origin, type) and issubclass(origin, Sequence):
    return [f'a tuple of {" or ".join(_described(parts[0], plural=True))}']
  if origin is Mapping:
    return ['a section of keys']
  words = {
    bool: 'True or False',
    int: 'whole numbers' if plural else 'a whole number',
    float: 'numbers' if plural else 'a number',
    str: 'texts' if plural else 'a text',
    None: 'None',
    type(None): 'None',
  }
  return [words.get(hint, getattr(hint, '__name__', str(hint)))]


def _listed(names: Sequence[Any]) -> str:
  return f'one of {", ".join(map(repr, names))}' if len(names) > 1 else repr(names[0])


def _shown(value: Any) -> str:
  """A value in a message, short; where a type tells more than a value, the type."""
  if isinstance(value, Mapping):
    return f'a section with the keys {", ".join(map(str, value)) or "none"}'
  if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**SHOWN:
    return f'a whole number of {int(value.bit_length() * math.log10(2)) + 1:,} digits'
  text = repr(value)
  text = text.encode('utf-8', 'backslashreplace').decode()
  return text if len(text) <= SHOWN else f'{text[:SHOWN]}.. ({len(text):,} letters)'
