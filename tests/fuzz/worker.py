"""Runs cases one after the other, and tells each before it begins and when it is over.

The process that started it may kill it while a case hangs, and start another one behind it.
"""

import contextlib
import io
import json
import os
import sys
import warnings
from pathlib import Path

from tests.fuzz import areas
from tests.fuzz.judge import judge


def run(area: str, first: int, step: int, path: Path) -> None:
  """Appends two lines to a file for each case: its title, and later its verdict."""
  warnings.simplefilter('ignore')
  every = areas.cases(area)
  with path.open('a') as file:

    def tell(**row):
      file.write(json.dumps(row) + '\n')
      file.flush()

    for number in range(first, len(every), step):
      case = every[number]
      tell(begun=number, title=printable(case.title), seconds=case.seconds)
      with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        verdict = judge(case)
      spent = round(sum(os.times()[:4]), 2)
      tell(over=number, kind=verdict.kind, detail=printable(verdict.detail), spent=spent)


def printable(text: str) -> str:
  """Text that every file and terminal takes: one line, without lone surrogates."""
  return ' '.join(text[:2000].encode('utf-8', 'backslashreplace').decode().split())[:600]


if __name__ == '__main__':
  area, first, step, path = sys.argv[1:]
  run(area, int(first), int(step), Path(path))
