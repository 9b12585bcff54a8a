"""Checks of values that a config holds, by the annotations of the functions that take them.

A key of a config is an argument of some constructor: of a task, a model, an optimizer. Its type is
its annotation there, and `Annotated[int, Range(1)]` says its range as well. Whoever writes a new
task has its keys checked by annotating its arguments.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from posjax.arguments import Range as Range
from posjax.arguments import Share as Share
from posjax.arguments import Size, Whole, describe, listed, nearest, read, shown


class OneOf:
  """The names that a key takes, where only a function can tell them.

  Args:
    names: `() -> names`.
  """

  def __init__(self, names: Callable[[], Sequence[str]]):
    self.names = names

  def holds(self, value: str) -> bool:
    """Whether it is one of the names."""
    return value in self.names()

  def describe(self, words: str) -> str:
    """The names, in place of the words for a string."""
    return listed(self.names())


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


Count = Size
Seed = Whole
Layers = Annotated[int, Range(1, 1000)]  # some models build them one by one
Rate = Annotated[float, Range(0)]


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
    raise TypeError(f'{what} must be a section of keys, but got {_named(given)}.')
  for name in given:
    if name not in keys.known and not keys.further:
      raise ValueError(_unknown_key(f'{prefix}{name}', [f'{prefix}{each}' for each in keys.known]))
  for name, key in keys.known.items():
    if name in given:
      check_value(f'{prefix}{name}', key.hint, given[name])
    elif key.required:
      raise ValueError(f"The config must have the key '{prefix}{name}', but it is missing.")


def _named(given: Any) -> str:
  """A section by its keys, and anything else as it is."""
  if isinstance(given, Mapping):
    return f'a section with the keys {", ".join(map(str, given)) or "none"}'
  return shown(given)


def _unknown_key(name: str, known: Sequence[str]) -> str:
  """The error message for an unknown key."""
  near = nearest(name, known)
  hint = f'did you mean {near!r}?' if near else f'there are: {", ".join(sorted(known))}.'
  return f'The config has no key {name!r}; {hint}'


def check_value(name: str, hint: Any, value: Any) -> None:
  """Checks a value by an annotation.

  Raises:
    TypeError: if it has another type.
    ValueError: if it is out of the annotation's range.

  Example:
    >>> check_value('steps', Annotated[int, Range(1)], 2.5)
    Traceback (most recent call last):
    TypeError: steps must be an integer, but got 2.5.
  """
  sections = [mark for mark in getattr(hint, '__metadata__', ()) if isinstance(mark, Section)]
  if sections:
    check_section(name, value, sections[0].keys())
  elif typing.get_origin(hint) is Mapping:
    if not isinstance(value, Mapping):
      raise TypeError(f'{name} must be a section of keys, but got {shown(value)}.')
  elif _is_known(hint):
    read(value, hint, name)
    if not _is_plain(value):
      raise TypeError(f'{name} must be {describe(hint)} of Python, but got {shown(value)}.')


def _is_known(hint: Any) -> bool:
  """Whether values are read by an annotation; others take anything."""
  try:
    describe(hint)
  except TypeError:
    return False
  return hint is not Any


def _is_plain(value: Any) -> bool:
  """Whether a file of JSON holds a value: it knows no numbers of NumPy or JAX."""
  if isinstance(value, list | tuple):
    return all(map(_is_plain, value))
  return value is None or isinstance(value, str | int | float)
