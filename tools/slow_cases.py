"""Writes tests/slow_cases.txt: the parametrized cases that `pytest` leaves to `pytest -m slow`.

  pytest --junitxml=all.xml -m 'slow or not slow'; python tools/slow_cases.py all.xml

A case is listed if it took longer than LIMIT seconds, and another case of the same test took less
time: that one stays in the default run, so that each test runs there with some arguments. The
contract, which tests every scheme, chooses its cases by itself.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

LIMIT = 0.25
TARGET = Path(__file__).resolve().parent.parent / 'tests' / 'slow_cases.txt'
HEADER = """\
# Cases that run with `pytest -m slow` only: another case of the same test runs by default.
# Written by tools/slow_cases.py from measured times.
"""


def main(report: str) -> None:
  """Reads a JUnit report of all tests, and writes the list."""
  tests: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
  for case in ElementTree.parse(report).iter('testcase'):
    module, name = case.get('classname', ''), case.get('name', '')
    if module.startswith('tests.') and '.contract.schemes_test' not in module and '[' in name:
      path = module.replace('.', '/') + '.py'
      tests[path, name.partition('[')[0]].append((float(case.get('time', 0)), name))
  listed = []
  for (path, _), cases in tests.items():
    fastest = min(cases)
    listed += [
      f'{path}::{name}' for seconds, name in cases if seconds > LIMIT and name != fastest[1]
    ]
  TARGET.write_text(HEADER + ''.join(f'{case}\n' for case in sorted(listed)))


if __name__ == '__main__':
  main(*sys.argv[1:])
