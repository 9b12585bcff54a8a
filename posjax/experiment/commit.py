"""The commit of the code that runs, where it runs from a checkout."""

import functools
import subprocess
from pathlib import Path

import posjax


@functools.cache
def commit() -> str:
  """The commit of posjax, and whether its files were changed since; '' outside a checkout.

  Example:
    >>> commit()  # doctest: +SKIP
    '9bf3586abcde, with changes'
  """
  return of_checkout(Path(posjax.__file__).parent)


def of_checkout(folder: Path) -> str:
  """The commit of the checkout that tracks the files of a folder; '' if none does.

  A folder that lies inside of a checkout need not belong to it: a virtual environment often does.
  """
  if not _git(folder, 'ls-files', '.'):
    return ''
  name = _git(folder, 'rev-parse', '--short=12', 'HEAD')
  changed = _git(folder, 'status', '--porcelain', '--untracked-files=no')
  return f'{name}, with changes' if name and changed else name


def _git(folder: Path, *arguments: str) -> str:
  """The answer of git; '' where it fails, is missing, or does not answer."""
  command = ['git', '--no-optional-locks', '-C', str(folder), *arguments]
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
  except (OSError, subprocess.SubprocessError):
    return ''
  return done.stdout.strip() if done.returncode == 0 else ''
