"""Schemes of other packages: a function in a module that a line names as `module:function`.

Only a function that is annotated to return a scheme is called, and nothing is imported for a line
that comes from a file (`imports`). Whatever goes wrong becomes one sentence that names the module
and the function, with the message and the line of the user's own code.
"""

import contextlib
import contextvars
import importlib
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from posjax.arguments import is_checked, nearest, shown, signature_shown
from posjax.scheme import Scheme

_LONGEST = 300  # letters of a message of other code that a sentence shows
_HERE = str(Path(__file__).parent)
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ('stdlib', 'purelib', 'platlib'))
_ALLOWED = contextvars.ContextVar('_ALLOWED', default=True)


@contextlib.contextmanager
def imports(allowed: bool) -> Generator[None]:
  """Says whether the lines that are read within it may import modules other than those of posjax.

  They may everywhere else, since a line that somebody types is that person's own program. A line
  from a file, such as the config of a work folder, may not, unless the user trusts the file.

  Args:
    allowed: whether they may.
  """
  token = _ALLOWED.set(allowed)
  try:
    yield
  finally:
    _ALLOWED.reset(token)


def imports_allowed() -> bool:
  """Whether a line that is read now may import modules other than those of posjax."""
  return _ALLOWED.get()


def check_import(what: str, module: str) -> None:
  """Refuses to import a module other than those of posjax where `imports` does not allow it.

  Args:
    what: the thing that is imported, for the error, such as "scheme 'my_package.my_module:scheme'".
    module: its path, with points between.

  Raises:
    ValueError: if it may not be imported.
  """
  if not imports_allowed() and module.partition('.')[0] != 'posjax':
    raise ValueError(
      f"The {what} comes from the config of a work folder, and would import the module '{module}', "
      'which runs its code: if you trust the folder, allow it with --allow-imports, or with '
      'allow_imports=True.'
    )


def make(name: str, positional: Sequence[Any], named: Mapping[str, Any]) -> Scheme:
  """The scheme that a function of another package makes.

  Args:
    name: of the module and the function, as 'my_package.my_module:scheme'.
    positional: arguments without a name.
    named: arguments by name.

  Raises:
    ValueError: if there is no such module or function, the module cannot be imported, or may not be
      (`check_import`), the function is not annotated to return a scheme, or it raises or returns
      something else.
  """
  check_import(f"scheme '{name}'", name.partition(':')[0])
  function = _find(name)
  try:
    with jax.ensure_compile_time_eval():  # its arrays outlive the program that is being traced
      made = function(*positional, **named)
  except (Exception, SystemExit) as error:
    raise ValueError(
      f"The scheme '{name}' could not be made: {_told(error)}.{_takes(function, error)}"
    ) from error
  if not isinstance(made, Scheme):
    raise ValueError(f"The scheme '{name}' must return a posjax.Scheme, but got {shown(made)}.")
  return made


def _find(name: str) -> Callable[..., Any]:
  path, _, function = name.partition(':')
  try:
    module = importlib.import_module(path)
  except ModuleNotFoundError as error:
    if error.name is None or not f'{path}.'.startswith(f'{error.name}.'):
      raise _unimported(name, path, error) from error  # the module is there; what it needs is not
    raise ValueError(
      f"The scheme '{name}' must name a module that Python finds, but there is no '{error.name}': "
      'start in the folder that holds it, or set PYTHONPATH.'
    ) from None
  except (Exception, SystemExit) as error:
    raise _unimported(name, path, error) from error
  found = getattr(module, function, None)
  if found is None:
    near = nearest(function, [each for each in vars(module) if callable(getattr(module, each))])
    hint = f"; did you mean '{near}'?" if near else '.'
    raise ValueError(
      f"The scheme '{name}' must name a function of the module '{path}', but there is no "
      f"'{function}'{hint}"
    )
  if not _makes_schemes(found):
    raise ValueError(
      f"The scheme '{name}' must name a function that is annotated to return a scheme, as in "
      f"'def {function}(...) -> posjax.Scheme:', since nothing else is called, but got "
      f'{shown(found)}.'
    )
  return found


def _makes_schemes(found: Any) -> bool:
  """Whether a function is annotated as one that returns a scheme; it is not called."""
  try:
    hint = inspect.signature(found).return_annotation
  except (ValueError, TypeError):  # no function, or one of C that tells nothing
    return False
  if isinstance(hint, str):  # of `from __future__ import annotations`; its name may be an alias
    hint = getattr(inspect.unwrap(found), '__globals__', {}).get(hint, hint)
  named = isinstance(hint, str) and hint.rpartition('.')[2] == Scheme.__name__
  return hint is Scheme or named or is_checked(found)


def _unimported(name: str, path: str, error: BaseException) -> ValueError:
  return ValueError(
    f"The module '{path}' of the scheme '{name}' could not be imported: {_told(error)}."
  )


def _told(error: BaseException) -> str:
  """An error of other code: its class, its message, and the line of that code."""
  message = error.msg if isinstance(error, SyntaxError) else str(error)
  words = ' '.join(f'{type(error).__name__}: {message}'.split()).rstrip('.: ')
  words = words if len(words) <= _LONGEST else f'{words[: _LONGEST - 2]}..'
  place = _place(error)
  return f'{words} ({place[0]}, line {place[1]})' if place else words


def _place(error: BaseException) -> tuple[str, int | None] | None:
  """The file and the line to look at: the innermost of the user's, not of what it calls."""
  if isinstance(error, SyntaxError) and error.filename:
    return error.filename, error.lineno
  frames = traceback.extract_tb(error.__traceback__)
  frames = [each for each in frames if not each.filename.startswith((_HERE, '<frozen'))]
  own = [each for each in frames if not each.filename.startswith(_INSTALLED)]
  found = own[-1:] or frames[:1]
  return (found[0].filename, found[0].lineno) if found else None


def _takes(function: Callable[..., Any], error: BaseException) -> str:
  """The arguments of the function, where a call did not reach it."""
  if not isinstance(error, TypeError) or _place(error):
    return ''
  try:
    return f' It takes {signature_shown(inspect.signature(function))}.'
  except (ValueError, TypeError):  # a function of C may tell nothing
    return ''
