"""One file per scheme: pure functions on top, `scheme(...)` last. The folder is the registry.

A file is imported when it is first asked for: `posjax.schemes.rope` needs no import of its own.
"""

import importlib
import importlib.util
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
  """The file of a scheme."""
  if name.startswith('_') or importlib.util.find_spec(f'{__name__}.{name}') is None:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return importlib.import_module(f'{__name__}.{name}')
