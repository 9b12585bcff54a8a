"""Writes docs/schemes.md, and README's table of a dozen schemes, from the files in posjax/schemes.

python tools/schemes_page.py
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import posjax
from posjax.math import rotation

ROOT = Path(__file__).resolve().parent.parent
README, PAGE = ROOT / 'README.md', ROOT / 'docs' / 'schemes.md'
START, END = (
  '<!-- schemes: python tools/schemes_page.py writes this table -->',
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
# README shows the ones that most people look for, and links to the page for the others.
SHOWN = ('none', 'learned', 'sinusoidal', 'randomized', 'rope', 'yarn', 'axial_rope')
SHOWN += ('transformer_xl', 'shaw', 'deberta', 'alibi', 't5', 'fire')

HEAD = """# All schemes

<!-- python tools/schemes_page.py writes this page from the files in posjax/schemes -->

`posjax.get` reads these names, with their arguments, chained by `+`: `'t5(num_buckets=64)'`,
`'randomized(max_length=2048)+rope'`. *Shift-invariant* means that adding one number to all ids
changes nothing. Each file has the formula, the reference, and where paper and published code
differ; [the gallery](../notebooks/04_gallery.ipynb) draws each scheme; `posjax.citation` returns
the BibTeX of its papers.
"""


FAMILY = "The arguments of RoPE's family"
BACK = '[Back to the list](#all-schemes)'  # the page is long, and GitHub has no link to its top


def page() -> str:
  """The page: contents, a section for each place with its schemes, what RoPE's family shares.

  Raises:
    ValueError: if the file of a scheme lacks something that the page shows.
  """
  for name in posjax.names():
    check(importlib.import_module(f'posjax.schemes.{name}'))
  members = groups()
  contents = '\n'.join(
    f'- [{title}](#{anchor(title)}): {", ".join(f"[`{n}`](#{n})" for n in names)}'
    for title, names in members.items()
  )
  sections = (
    f'## {title}\n\n{BACK}\n\n' + '\n\n'.join(map(entry, names)) for title, names in members.items()
  )
  return '\n\n'.join([HEAD.rstrip(), contents, *sections, family()]) + '\n'


def check(module: ModuleType) -> None:
  """Refuses a file that lacks what every file of a scheme has.

  Args:
    module: the file.

  Raises:
    ValueError: with the file and everything that it lacks.
  """
  scheme = getattr(module, 'scheme', None)
  parameters = inspect.signature(scheme).parameters.values() if callable(scheme) else ()
  forced = [each.name for each in parameters if each.default is inspect.Parameter.empty]
  there = {
    'a docstring': module.__doc__,
    'a function `scheme`': callable(scheme),
    'a docstring of `scheme`': scheme is None or scheme.__doc__,
    '`SHIFT_INVARIANT`, whether adding one number to all ids changes nothing': (
      hasattr(module, 'SHIFT_INVARIANT')
    ),
    '`PAPERS`, the keys of its papers in posjax/papers.bib': hasattr(module, 'PAPERS'),
    f'`EXAMPLE`, a line that gives {" and ".join(forced)}': (
      not forced or hasattr(module, 'EXAMPLE')
    ),
  }
  lacking = [what for what, found in there.items() if not found]
  if lacking:
    path = f'posjax/schemes/{module.__name__.rpartition(".")[2]}.py'
    raise ValueError(f'{path} must have {"; ".join(lacking)} (CONTRIBUTING.md, Adding a scheme).')


def family() -> str:
  """The arguments that several members of RoPE's family share: the top of their file has them."""
  items = re.findall(r'^  (\w+) +(\S.*(?:\n {15}.*)*)', rotation.__doc__, re.M)
  lines = [f'- `{name}`: {" ".join(text.split())}' for name, text in items]
  return f'## {FAMILY}\n\n{BACK}\n\n' + '\n'.join(lines)


def groups() -> dict[str, list[str]]:
  """The names of the schemes under the first place that each of them uses."""
  first = {name: next(iter(posjax.places(make(name))), None) for name in posjax.names()}
  return {title: [n for n in first if first[n] in group] for title, group in GROUPS.items()}


def anchor(title: str) -> str:
  """The address of a heading within its page, as GitHub makes it."""
  return re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-')


def entry(name: str) -> str:
  """All that the page says about one scheme: it comes from its file alone."""
  module = importlib.import_module(f'posjax.schemes.{name}')
  invariant = 'shift-invariant' if module.SHIFT_INVARIANT else 'not shift-invariant'
  facts = [where(name), invariant, reference(module), f'[file](../posjax/schemes/{name}.py)']
  lines = [f'### `{name}`', f'{summary(module)}.', ' · '.join(facts)]
  if listed := arguments(module):
    lines.append('\n'.join(listed))
  return '\n\n'.join(lines)


def table() -> str:
  """README's table: a dozen schemes, each with a link to its entry on the page."""
  head = [('scheme', 'what it does', 'places', 'paper'), ('---',) * 4]
  rows = [
    (
      f'[`{name}`](docs/schemes.md#{name})',
      summary(module),
      numbers_of(name),
      short(reference(module)),
    )
    for name in SHOWN
    for module in [importlib.import_module(f'posjax.schemes.{name}')]
  ]
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in (*head, *rows))


def make(name: str) -> posjax.Scheme:
  """The scheme of a file, with the arguments of its example where it needs some."""
  module = importlib.import_module(f'posjax.schemes.{name}')
  return posjax.get(getattr(module, 'EXAMPLE', name))


def where(name: str) -> str:
  """The places that a scheme uses, with their numbers."""
  used: dict[int, list[str]] = {}
  for place in posjax.places(make(name)):
    used.setdefault(NUMBER[place], []).append(f'`{place}`')
  listed = '; '.join(f'{number}: {", ".join(places)}' for number, places in used.items())
  return f'Place{"s" * (len(used) > 1)} {listed}' if used else 'No place'


def numbers_of(name: str) -> str:
  """The numbers of the places alone."""
  return ', '.join(map(str, sorted({NUMBER[place] for place in posjax.places(make(name))}))) or '-'


def summary(module: ModuleType) -> str:
  """The first line of the docstring, as a cell."""
  return module.__doc__.splitlines()[0].rstrip('.').replace('|', r'\|')


def arguments(module: ModuleType) -> list[str]:
  """A line for each argument: how it is written, with its default, and what it means.

  Raises:
    ValueError: if the docstring leaves out an argument, or has another one.
  """
  parameters = inspect.signature(module.scheme).parameters
  told = described(module)
  if sorted(name for names, _ in told for name in names) != sorted(parameters):
    raise ValueError(f"The docstring of {module.__name__}'s scheme must describe {[*parameters]}.")
  return [f'- {", ".join(_written(parameters[n]) for n in names)}: {text}' for names, text in told]


def described(module: ModuleType) -> list[tuple[list[str], str]]:
  """The names and the words of each item under `Args:` of the docstring of `scheme`."""
  section = re.search(r'^Args:\n((?:  .*\n?)+)', inspect.cleandoc(module.scheme.__doc__), re.M)
  items = re.split(r'^  (?=\w)', section[1], flags=re.M)[1:] if section else []
  parts = (item.partition(': ') for item in items)
  return [(names.split(', '), linked(' '.join(text.split()))) for names, _, text in parts]


def linked(text: str) -> str:
  """The words with links to what they name of `posjax.math`: RoPE's family, or a file."""

  def link(found: re.Match[str]) -> str:
    if found[1] == 'rotation':
      return f'[the arguments of the family](#{anchor(FAMILY)})'
    return f'[{found[0]}](../posjax/math/{found[1]}.py)'

  return re.sub(r'`posjax\.math\.(\w+)[\w.]*`', link, text).replace('|', r'\|')


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


def short(cited: str) -> str:
  """The reference with one author instead of a list of them, and spaces that do not break."""
  words, link = re.fullmatch(r'\[(.+)\](.+)', cited).groups()
  words = re.sub(r'^(\w+), .+ (\d{4})$', r'\1 et al. \2', words)
  return f'[{words.replace(" ", "&nbsp;")}]{link}'


def readme(text: str) -> str:
  """README with its table written anew.

  Raises:
    ValueError: if it does not hold each mark once, in order.
  """
  before, start, rest = text.partition(START)
  _, end, after = rest.partition(END)
  if not start or not end:
    raise ValueError(f'README.md must hold {START!r}, then {END!r}.')
  return f'{before}{START}\n\n{table()}\n\n{END}{after}'


def _written(parameter: inspect.Parameter) -> str:
  return f'`{parameter.replace(annotation=inspect.Parameter.empty)}`'


def main() -> None:
  """Writes both files; neither where something is lacking, which one sentence names."""
  try:
    texts = {PAGE: page(), README: readme(README.read_text(encoding='utf-8'))}
  except ValueError as error:
    sys.exit(f'schemes_page.py: error: {error}')
  for path, text in texts.items():
    path.write_text(text, encoding='utf-8')


if __name__ == '__main__':
  main()
