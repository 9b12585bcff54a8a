"""Writing a scheme as one line: the inverse of what `posjax.expression` reads."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def call(name: str, positional: Sequence[Any], named: Mapping[str, Any]) -> str | None:
  """A scheme with its arguments, as `posjax.get` reads it; None if an argument has no literal.

  Args:
    name: of the scheme, such as 'rope' or 'my_package.my_module:scheme'.
    positional: arguments without a name.
    named: arguments by name.

  Example:
    >>> call('rope', (), {'base': 5e5}), call('none', (), {})
    ('rope(base=500000.0)', 'none')
  """
  values = [literal(value) for value in positional]
  values += [
    None if code is None else f'{key}={code}'
    for key, code in ((key, literal(value)) for key, value in named.items())
  ]
  written = [value for value in values if value is not None]
  if len(written) < len(values):
    return None
  return f'{name}({", ".join(written)})' if written else name


def literal(value: Any) -> str | None:
  """A value as a Python literal in printable ASCII, a scheme as the string of its line.

  None if it has none.

  Example:
    >>> literal((1, math.inf)), literal({'a': [None]}), literal(math.nan)
    ('(1, 1e999)', "{'a': [None]}", None)
  """
  if isinstance(getattr(value, 'line', None), str):
    return ascii(value.line)
  if type(value) in (list, tuple):
    codes = [literal(each) for each in value]
    known = [code for code in codes if code is not None]
    if len(known) < len(codes):
      return None
    joined = ', '.join(known) + ',' * (type(value) is tuple and len(known) == 1)
    return f'[{joined}]' if type(value) is list else f'({joined})'
  if type(value) is dict:
    pairs = [(literal(key), literal(each)) for key, each in value.items()]
    broken = any(None in pair for pair in pairs)
    return None if broken else f'{{{", ".join(f"{key}: {each}" for key, each in pairs)}}}'
  if type(value) is float and not math.isfinite(value):
    return None if math.isnan(value) else '1e999' if value > 0 else '-1e999'  # beyond all floats
  return ascii(value) if type(value) in (bool, int, float, str, bytes, type(None)) else None
