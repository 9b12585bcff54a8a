"""The fields of a Hugging Face configuration, each read by its type and its range.

`config.json` is a file, so that whatever is wrong in it is a `ValueError`, whose sentence names the
field as in the file: `rope_scaling.factor`. A field that is null counts as left out,
because transformers writes null where it has no value; one with a default is never null there.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from posjax.arguments import Size, read, shown

Config = Mapping[str, Any]


class Fields(NamedTuple):
  """A dict of a configuration.

  Attributes:
    values: the dict itself.
    path: where it is in the configuration: '', or as 'rope_scaling.'.
  """

  values: Config
  path: str = ''

  def get(self, name: str, kind: Any, default: Any = None) -> Any:
    """The value of a field, or the default where it is left out; None where it is null.

    Raises:
      ValueError: if it is not of that kind, an annotation that `posjax.arguments.read` reads, or
        null although it has a default.

    Example:
      >>> Fields({'n_positions': 'many'}).get('n_positions', int)
      Traceback (most recent call last):
        ...
      ValueError: The configuration's n_positions must be an integer, but got 'many'.
    """
    value = self.values.get(name)
    if name not in self.values or (value is None and default is None):
      return default
    try:
      return read(value, kind, self._name(name))
    except TypeError as error:
      raise ValueError(str(error)) from None

  def size(self, *names: str) -> int | None:
    """The first of these fields that there is: a positive integer; None where there is none.

    Example:
      >>> Fields({'n_embd': 8, 'hidden_size': None}).size('hidden_size', 'n_embd')
      8
    """
    return self._first(names, lambda name: self.get(name, Size))

  def positive(self, *names: str) -> float | None:
    """The first of these fields that there is: a positive number; None where there is none.

    Example:
      >>> Fields({'rope_theta': 500000}).positive('rope_theta')
      500000.0
    """
    return self._first(names, self._positive)

  def needed(self, name: str, reading: Callable[..., Any]) -> Any:
    """The value of a field that must be there, read by one of the methods above.

    Raises:
      ValueError: if it is null or left out.
    """
    value = reading(name)
    if value is None:
      raise ValueError(
        f'The configuration needs {self.path}{name}, but got {shown(dict(self.values))}.'
      )
    return value

  def section(self, name: str) -> 'Fields':
    """The dict that a field holds; an empty one where it is null or left out.

    Raises:
      ValueError: if it is no dict.
    """
    value = self.values.get(name)
    if value is not None and not isinstance(value, Mapping):
      raise ValueError(f'{self._name(name)} must be a dict or null, but got {shown(value)}.')
    return Fields(value or {}, f'{self.path}{name}.')

  def refuse(self, name: str, expected: str) -> ValueError:
    """The error of a field whose value is of the right kind, but not what is expected.

    Example:
      >>> Fields({'head_dim': 3}).refuse('head_dim', 'even')
      ValueError("The configuration's head_dim must be even, but got 3.")
    """
    return ValueError(f'{self._name(name)} must be {expected}, but got {shown(self.values[name])}.')

  def _name(self, name: str) -> str:
    return f"The configuration's {self.path}{name}"

  def _first(self, names: tuple[str, ...], reading: Callable[[str], Any]) -> Any:
    """The first value; all are read, so that a wrong one is refused anywhere."""
    values = [reading(name) for name in names]
    return next((value for value in values if value is not None), None)

  def _positive(self, name: str) -> float | None:
    value = self.get(name, float)
    if value is not None and value <= 0:
      raise self.refuse(name, 'a positive number')
    return value


def read_config(config: Any) -> Fields:
  """The whole configuration.

  Raises:
    TypeError: if it is no dict, such as the configuration of transformers as an object.

  Example:
    >>> read_config('config.json')
    Traceback (most recent call last):
      ...
    TypeError: A configuration must be a dict, the contents of config.json, but got 'config.json'.
  """
  if not isinstance(config, Mapping):
    hint = ': take its to_dict()' if hasattr(config, 'to_dict') else ''
    raise TypeError(
      f'A configuration must be a dict, the contents of config.json, but got {shown(config)}{hint}.'
    )
  return Fields(config)
