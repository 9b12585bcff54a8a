"""`citation`: the papers of a scheme, as BibTeX.

Each file in `posjax/schemes` names the keys of its papers in the constant `PAPERS`: first the one
of its docstring's reference, then others that it is taken from. Their entries are in `papers.bib`.
A module of your own, which has no part in that file, has its entries in a constant `BIBTEX`.
"""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from importlib import resources

from posjax.arguments import shown
from posjax.expression import COLON, get, members_of, parsed
from posjax.scheme import Scheme


def citation(scheme: str | Scheme) -> str:
  r"""The BibTeX entries of the papers of every member of a scheme, each once.

  Args:
    scheme: a line that `posjax.get` reads, or a scheme that remembers the line which made it.

  Returns:
    The entries in the order of the members, with an empty line between them. A scheme that is
    as an argument of another, as the `inner` of `dape`, is a member, too. A scheme of your own has
    the entries in `BIBTEX` of its module; where there is no such constant, a comment says so.

  Raises:
    ValueError: if the line cannot be read, or the scheme was made by hand.
    TypeError: if it is neither a line nor a scheme.

  Example:
    >>> [entry.splitlines()[0] for entry in citation('rope+alibi').split('\n\n')]
    ['@article{su2021roformer,', '@article{press2022train,']
  """
  line = _line(scheme)
  get(line)  # refuses whatever is no line of a scheme
  found = [entry for papers in _papers(line) for entry in papers.strip().split('\n\n')]
  return '\n\n'.join(filter(None, dict.fromkeys(found)))


def _line(scheme: str | Scheme) -> str:
  if isinstance(scheme, str):
    return scheme
  if not isinstance(scheme, Scheme):
    raise TypeError(
      f"A scheme to cite must be a line, as 'rope+alibi', or a scheme, but got {shown(scheme)}."
    )
  line = scheme.line
  if line is None:
    raise ValueError(
      'A scheme to cite must remember the line that made it, but got one made by hand; '
      "give the line, as 'rope+alibi'."
    )
  return line


def _papers(line: str) -> Iterator[str]:
  """The papers of the members of a line; after each, those of the schemes among its arguments."""
  for node in members_of(parsed(line.strip())):
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    path, own, function = ast.unparse(call.func).replace(COLON, ':').partition(':')
    module = importlib.import_module(path if own else f'posjax.schemes.{path}')
    if own:  # BibTeX ignores text between entries.
      yield getattr(module, 'BIBTEX', f'% {path}:{function} is not cited: {path} has no BIBTEX.')
    else:
      yield '\n\n'.join(entries()[key] for key in module.PAPERS)
    signature = inspect.signature(getattr(module, function or 'scheme'))
    given = signature.bind(
      *map(ast.literal_eval, call.args),
      **{str(k.arg): ast.literal_eval(k.value) for k in call.keywords},
    )
    given.apply_defaults()
    for name, value in given.arguments.items():
      if isinstance(value, str) and 'Scheme' in str(signature.parameters[name].annotation):
        yield from _papers(value)


@functools.cache
def entries() -> dict[str, str]:
  """The entries of `papers.bib` by their keys."""
  text = resources.files('posjax').joinpath('papers.bib').read_text('utf-8')
  return {re.findall(r'@\w+\{(\w+),', one)[0]: one for one in text.strip().split('\n\n')}
