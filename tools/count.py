"""Counts the code: files, lines, refusals, and how much of it is documentation.

  python tools/count.py posjax tests

"Code" is lines without docstrings, blank lines and comments. A function's length is its code.
"""

import ast
import io
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str, tree: ast.Module) -> set[int]:
  """The numbers of the lines that hold code."""
  docstrings: set[int] = set()
  for node in ast.walk(tree):
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
      docstrings |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
  ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
  found: set[int] = set()
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type not in (*ignored, tokenize.ENDMARKER):
      found |= {*range(token.start[0], token.end[0] + 1)}
  return found - docstrings


def functions(tree: ast.Module, code: set[int]) -> Iterator[int]:
  """The lengths of all functions."""
  for node in ast.walk(tree):
    if isinstance(node, ast.FunctionDef):
      yield len(code & {*range(node.lineno, (node.end_lineno or 0) + 1)})


def count(folder: str) -> str:
  """One line about the Python files of a folder that git tracks."""
  listed = subprocess.run(['git', 'ls-files', f'{folder}/*.py'], capture_output=True, text=True)
  lines = code = raised = docs = 0
  files: list[int] = []
  lengths: list[int] = []
  for path in listed.stdout.split():
    text = Path(path).read_text()
    tree = ast.parse(text)
    own = code_lines(text, tree)
    files.append(text.count('\n'))
    lines, code = lines + files[-1], code + len(own)
    raised += sum(isinstance(node, ast.Raise) for node in ast.walk(tree))
    for node in ast.walk(tree):
      if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        docs += (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    lengths += functions(tree, own)
  p90 = lambda numbers: sorted(numbers)[int(0.9 * len(numbers))]
  return (
    f'{folder:<24} {len(files):>5} {lines:>7} {code:>7} {100 * docs / lines:>5.0f} % '
    f'{raised:>6} {1000 * raised / code:>6.1f}  '
    f'{statistics.median(files):>4.0f} {p90(files):>4} {max(files):>5}  '
    f'{statistics.median(lengths):>3.0f} {p90(lengths):>3} {max(lengths):>4}'
  )


if __name__ == '__main__':
  print(
    f'{"":<24} files   lines    code   docs  raise  /1000  file: median, p90, most; function: same'
  )
  for name in sys.argv[1:] or ['posjax', 'tests']:
    print(count(name))
