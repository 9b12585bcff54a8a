"""Names that a config chooses from: what is said where a name is unknown."""

from collections.abc import Iterable

from posjax.arguments import nearest as nearest


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
    raise ValueError(refusal(what, name, known, nearest(name, known)))


def refusal(what: str, name: str, known: Iterable[str], near: str | None) -> str:
  """The sentence about an unknown name; `near` is the known one that was probably meant."""
  hint = f"; did you mean '{near}'?" if near else '.'
  return f"Unknown {what} '{name}'{hint} There are: {', '.join(known)}."
