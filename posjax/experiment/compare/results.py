"""results.jsonl: a line for each cell that ended, written whole or not at all, by one process."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posjax.experiment import record
from posjax.experiment.compare.lines import check
from posjax.experiment.locks import FULL, Busy, check_held, lock

__all__ = ['FULL', 'Busy', 'append', 'check_held', 'lock', 'read']


def read(folder: Path) -> dict[str, dict[str, Any]]:
  """The lines of cells that ended, the last one of each; a line that a kill cut short is left out.

  A line of success stays, whatever failed later.

  Raises:
    ValueError: if a whole line is no result.
  """
  found = {}
  for path in sorted(folder.glob('results*.jsonl')):
    for number, line in enumerate(path.read_bytes().split(b'\n')[:-1], start=1):
      row = _row(path, number, line)
      name = row['id']
      if 'error' not in row or 'error' in found.get(name, row):
        found[name] = row
  return found


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
  place = f'{path}, line {number},'
  row = None
  with contextlib.suppress(ValueError, RecursionError):
    row = json.loads(line)
  if not isinstance(row, dict) or not isinstance(row.get('id'), str):
    raise ValueError(
      f'{place} must be the JSON of a run, but is {line[:40].decode(errors="replace")!r}; take the '
      'line out to have it run again.'
    )
  if 'scores' not in row:
    return row
  try:
    check(row)
  except ValueError as error:
    raise ValueError(
      f'{place} cannot be read: {error}; take the line out to have it run again.'
    ) from error
  return row


def append(path: Path, row: Mapping[str, Any]) -> None:
  """Adds a line, and returns once the disk has it. Only one process may write.

  Raises:
    OSError: if it cannot be written; the file is then as it was.
  """
  record.append(path, row, durable=True)
