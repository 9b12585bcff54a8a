"""Names that a config chooses from: what is said where a name is unknown."""

import difflib
from collections.abc import Iterable


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
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else '.'
    raise ValueError(f"Unknown {what} '{name}'{hint} There are: {', '.join(known)}.")
