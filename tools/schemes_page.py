"""Writes the README's tables of schemes from the files in posjax/schemes.

python tools/readme.py
"""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import posjax

README = Path(__file__).resolve().parent.parent / 'README.md'
START, END = (
  '<!-- schemes: python tools/readme.py writes these tables -->',
  '<!-- end of schemes -->',
)
NUMBER = {'ids': 0, 'embed': 1, 'query': 2, 'key': 2, 'logits': 3, 'bias': 3}
NUMBER |= {'value': 4, 'output': 4, 'values': 4}


# Each scheme stands under the first place that it uses.
GROUPS = {
  'Ids': ('ids',),
  'Embeddings': ('embed',),
  'Queries and keys': ('query', 'key'),
  'Logits, and values': ('logits', 'value', 'output', 'values'),
  'A bias by distance alone': ('bias',),
  'No place at all': (None,),
}


def tables() -> str:
  """A heading and a table for each place, one line for each scheme of the folder, in Markdown."""
  first = {name: next(iter(posjax.places(make(name))), None) for name in posjax.names()}
  members = {title: [n for n in first if first[n] in group] for title, group in GROUPS.items()}
  return '\n\n'.join(f'### {title}\n\n{table(names)}' for title, names in members.items())


def table(names: list[str]) -> str:
  """One line for each of these schemes."""
  head = ('scheme', 'what it does', 'places', 'shift-invariant', 'arguments', 'reference')
  rows = [head, ('---',) * len(head), *map(row, names)]
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in rows)


def make(name: str) -> posjax.Scheme:
  """The scheme of a file, with the arguments of its example where it needs some."""
  module = importlib.import_module(f'posjax.schemes.{name}')
  return posjax.get(getattr(module, 'EXAMPLE', name))


def row(name: str) -> tuple[str, ...]:
  """The cells of one scheme: all of them come from its file."""
  module = importlib.import_module(f'posjax.schemes.{name}')
  return (
    f'[`{name}`](posjax/schemes/{name}.py)',
    summary(module),
    ', '.join(f'{NUMBER[place]} `{place}`' for place in posjax.places(make(name))) or 'none',
    'yes' if module.SHIFT_INVARIANT else 'no',
    arguments(module),
    reference(module),
  )


def summary(module: ModuleType) -> str:
  """The first line of the docstring, as a cell."""
  return module.__doc__.splitlines()[0].rstrip('.').replace('|', r'\|')


def arguments(module: ModuleType) -> str:
  """The arguments with their defaults, as a user writes them in an expression."""
  parameters = inspect.signature(module.scheme).parameters.values()
  bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
  return ', '.join(f'`{p}`' for p in bare) or 'none'


def reference(module: ModuleType) -> str:
  """Authors and year of the docstring's first reference, with its link.

  Raises:
    ValueError: if there is no such reference.
  """
  form = re.compile(r'^Reference:\s+(.+?\b\d{4}\b).*?(https://[^\s,;)]+)', re.M | re.S)
  found = form.search(module.__doc__)
  if not found:
    raise ValueError(
      f"{module.__name__} needs a line 'Reference: AUTHORS YEAR, https://...' in its docstring."
    )
  authors, link = found.groups()
  return f'[{" ".join(authors.split())}]({link.rstrip(".")})'


def main() -> None:
  """Replaces what stands between the two marks.

  Raises:
    ValueError: if the README does not hold each mark once, in order.
  """
  text = README.read_text(encoding='utf-8')
  before, start, rest = text.partition(START)
  _, end, after = rest.partition(END)
  if not start or not end:
    raise ValueError(f'The README must hold {START!r}, then {END!r}.')
  README.write_text(f'{before}{START}\n\n{tables()}\n\n{END}{after}', encoding='utf-8')


if __name__ == '__main__':
  main()
