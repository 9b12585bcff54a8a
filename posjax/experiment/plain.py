"""Text that is shown as it is: consoles without markup, pictures without formulas, plain errors.

What a user wrote (a path, a prompt, a label) may look like the markup of Rich, as '[/b]', or like
a formula of Matplotlib, as '$_$'. Both would be drawn as something else, or end the program.
"""

from typing import Any

from rich.console import Console


def console(**options: Any) -> Console:
  """A console that changes nothing in what it prints.

  Args:
    options: of `rich.console.Console`.
  """
  return Console(markup=False, emoji=False, highlight=False, **options)


def in_picture(text: str) -> str:
  r"""A text as Matplotlib must be given it to draw these letters.

  Example:
    >>> print(in_picture('file:$a$'))
    file:\$a\$
  """
  return text.replace('$', r'\$')


def sentence(error: BaseException) -> str:
  """The message of an error in one line; the name of its class where it has none."""
  return ' '.join(str(error).split()) or type(error).__name__
