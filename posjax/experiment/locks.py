"""A lock on a folder, which ends with the processes that hold it, however they end."""

import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the quota, the largest file
PATIENCE = 3.0  # seconds to wait for a process that is about to end


class Busy(OSError):
  """Another process works in the folder."""


class Gone(OSError):
  """The folder is not the one any more in which this process began to work."""


def lock(path: Path, patience: float | None = None) -> IO[str]:
  """Holds a file for this process, and for those that inherit the handle, until all have ended.

  Args:
    path: of the file; it is made, and stays.
    patience: seconds to wait for processes that are about to end; by default `PATIENCE`.

  Raises:
    Busy: if another process holds it.
  """
  file = path.open('a+')
  deadline = time.monotonic() + (PATIENCE if patience is None else patience)
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
    except BaseException:
      file.close()
      raise
  try:
    file.truncate(0)
    now = time.strftime('%Y-%m-%d %H:%M:%S')
    file.write(f'process {os.getpid()} on {socket.gethostname()}, since {now}')
    file.flush()
  except OSError as error:  # only the name of the holder is lost
    if error.errno not in FULL:
      raise
  return file


def check_held(file: IO[str], path: Path) -> None:
  """Refuses to go on in a folder that was deleted, moved or replaced, with the lock in it."""
  try:
    there = os.path.samestat(os.stat(path), os.fstat(file.fileno()))
  except (FileNotFoundError, NotADirectoryError):
    there = False
  if not there:
    raise Gone(
      f'{path.parent}, or {path.name} in it, was deleted, moved or replaced while this process '
      'worked there; it stops, and writes nothing more.'
    )


def check_free(path: Path) -> None:
  """Refuses a lock that another process holds, and takes none itself."""
  if path.exists():
    lock(path).close()
