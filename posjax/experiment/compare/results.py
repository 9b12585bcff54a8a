"""results.jsonl: a line for each cell that ended, written whole or not at all, by one process."""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from posjax.experiment.compare.lines import current

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the quota, the largest file


class Busy(Exception):
  """Another process works in the folder."""


def lock(path: Path, patience: float = 3.0) -> IO[str]:
  """Holds a file for this process, and for those that inherit the handle, until all have ended.

  Args:
    path: of the file; it is made, and stays.
    patience: seconds to wait for processes that are about to end.

  Raises:
    Busy: if another process holds it.
  """
  file = path.open('a+')
  deadline = time.monotonic() + patience
  while True:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      break
    except BlockingIOError:
      if time.monotonic() > deadline:
        file.seek(0)
        holder = file.read().strip() or 'another process'
        file.close()
        raise Busy(f'{path.parent} is in use by {holder}; wait for it, or stop it.') from None
      time.sleep(0.1)
  try:
    file.truncate(0)
    file.write(f'process {os.getpid()} on {socket.gethostname()}')
    file.flush()
  except OSError as error:  # only the name of the holder is lost
    if error.errno not in FULL:
      raise
  return file


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
  line = (json.dumps(row) + '\n').encode()
  handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
  try:
    whole = _whole(handle)
    os.ftruncate(handle, whole)
    try:
      os.lseek(handle, whole, os.SEEK_SET)
      _write(handle, line)
      os.fsync(handle)
    except OSError:
      os.ftruncate(handle, whole)
      raise
  finally:
    os.close(handle)


def _write(handle: int, line: bytes) -> None:
  while line:
    line = line[os.write(handle, line) :]


def _whole(handle: int) -> int:
  """The size of a file up to the end of its last whole line."""
  size = os.fstat(handle).st_size
  tail = b''
  at = size
  while at > 0 and b'\n' not in tail:
    at = max(0, at - 65536)
    tail = os.pread(handle, size - at, at)
  return at + tail.rfind(b'\n') + 1
