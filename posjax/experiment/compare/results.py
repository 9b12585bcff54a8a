"""results.jsonl: a line for each cell that ended, written whole or not at all, by one process."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posjax.experiment import record
from posjax.experiment.compare.lines import current
from posjax.experiment.locks import FULL, Busy, lock

__all__ = ['FULL', 'Busy', 'append', 'lock', 'read']


def read(folder: Path) -> dict[str, dict[str, Any]]:
  """The lines of cells that ended, the last one of each; a line that a kill cut short is left out.

  A line of success stays, whatever failed later. Lines of earlier versions are converted.

  Raises:
    ValueError: if a whole line is no result.
  """
  found = {}
  for path in sorted(folder.glob('results*.jsonl')):
    for number, line in enumerate(path.read_text().split('\n')[:-1], start=1):
      try:
        row = json.loads(line)
        name, failed = row['id'], 'error' in row
      except (ValueError, KeyError, TypeError):
        raise ValueError(
          f'{path}, line {number}, must be the JSON of a run, but is {line[:40]!r}; take the line '
          'out to have it run again.'
        ) from None
      if not failed or 'error' in found.get(name, row):
        found[name] = current(row)
  return found


def append(path: Path, row: Mapping[str, Any]) -> None:
  """Adds a line, and returns once the disk has it. Only one process may write.

  Raises:
    OSError: if it cannot be written; the file is then as it was.
  """
  record.append(path, row, durable=True)
