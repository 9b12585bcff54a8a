"""Data is named in one line, `kind:argument`, which each kind of data reads with `parse`.

Before it `tune:` may stand, as in 'tune:file:PATH': a tenth of the training data is then held out,
by which to choose a learning rate, and what the data hold out stays unread.
"""

from collections.abc import Sequence
from pathlib import Path

from posjax.arguments import nearest, unknown_name

TUNE = 'tune:'


def parse(what: str, expression: str, forms: Sequence[str]) -> tuple[str, str]:
  """Cuts an expression at its first colon, if it has one of the forms that there are.

  Args:
    what: the kind of data, for the error: 'text'.
    expression: such as 'file:corpus/train.txt'.
    forms: what an expression may look like. Without a colon ('python_docs') it is the whole
      expression; with an argument in capital letters ('file:PATH') any argument may be there;
      with one in small letters ('synthetic:order') that one alone.

  Returns:
    What comes before the colon, and what after it; '' where the form has no colon.

  Raises:
    ValueError: if the expression has none of these forms.

  Example:
    >>> parse('text', 'file:a/b.txt', ['python_docs', 'file:PATH'])
    ('file', 'a/b.txt')
  """
  kind, colon, argument = expression.partition(':')
  for form in forms:
    name, _, expected = form.partition(':')
    if expression == form or (kind == name and expected.isupper() and argument):
      return kind, argument
  raise ValueError(unknown_name(what, expression, forms, _meant(kind, colon, expression, forms)))


def to_tune(expression: str) -> tuple[str, bool]:
  """The expression without `tune:`, and whether it began so.

  Example:
    >>> to_tune('tune:file:a.txt'), to_tune('file:a.txt')
    (('file:a.txt', True), ('file:a.txt', False))
  """
  rest = expression.removeprefix(TUNE)
  return rest, rest != expression


def path_of(argument: str) -> Path:
  """The path of a file or a folder, in which `~` is the home folder.

  Raises:
    ValueError: if it begins with the home folder of a user whom there is not.
  """
  try:
    return Path(argument).expanduser()
  except RuntimeError:
    raise ValueError(
      f"A path with '~' must name a user with a home folder, but got {argument!r}."
    ) from None


def _meant(kind: str, colon: str, expression: str, forms: Sequence[str]) -> str | None:
  """The form that was probably meant, as the part before the colon tells."""
  by_name: dict[str, list[str]] = {}
  for form in forms:
    by_name.setdefault(form.partition(':')[0] + colon, []).append(form)
  near = nearest(kind + colon, by_name)
  alike = [] if near is None else by_name[near]
  if len(alike) == 1:
    return alike[0]
  has_argument = expression not in (kind, kind + colon)  # without one, no argument is nearer
  return nearest(expression, alike) if has_argument else None
