"""What a process holds, and what the machine can still give, in bytes. Exact on Linux."""

import contextlib
import ctypes
import gc
import os
import pathlib
import resource
import sys

from benchmarks.spec import Unable

_STATUS = pathlib.Path('/proc/self/status')
_MACHINE = pathlib.Path('/proc/meminfo')
_GROUP = pathlib.Path('/sys/fs/cgroup')
MEBIBYTE = 2**20


def level() -> int:
  """Resets the high-water mark where the system can, and returns it: what is held now.

  Elsewhere the mark stays, so that a later `peak` is told too low rather than too high.
  """
  with contextlib.suppress(OSError):
    pathlib.Path('/proc/self/clear_refs').write_text('5')
  return peak()


def trim() -> None:
  """Gives what compilation and other work have freed back to the system, where glibc can."""
  gc.collect()
  with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL(None).malloc_trim(0)


def peak() -> int:
  """The most that this process has held since `level`.

  Not `ru_maxrss` on Linux: a child inherits there what its parent had held.
  """
  if _STATUS.exists():
    return 1024 * _number(_STATUS, 'VmHWM:')
  most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return most if sys.platform == 'darwin' else 1024 * most


def pages(process: int) -> int:
  """How often the system has given a process a page of memory so far; 0 where it does not tell.

  A page costs some 1.5 microseconds here. Whether a run asks for its pages anew or finds those of
  the run before depends on where the allocator put other things, not on the program that is timed.

  Args:
    process: its number.
  """
  try:
    line = pathlib.Path(f'/proc/{process}/stat').read_text()
  except OSError:
    return 0
  return int(line.rpartition(')')[2].split()[7])


def available() -> int:
  """What can be taken without swapping, in this control group if it has a limit."""
  if not _MACHINE.exists():
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  free = 1024 * _number(_MACHINE, 'MemAvailable:')
  try:
    limit = int((_GROUP / 'memory.max').read_text())
    return min(free, limit - int((_GROUP / 'memory.current').read_text()))
  except (OSError, ValueError):  # none, or 'max'
    return free


def require(needed: int) -> None:
  """Refuses what would not fit, with a tenth to spare.

  Raises:
    Unable: if the machine cannot give as many bytes.
  """
  free = available()
  if needed > 0.9 * free:
    raise Unable(f'needs {needed / 2**30:.1f} GiB of memory, of which {free / 2**30:.1f} are free')


def _number(path: pathlib.Path, name: str) -> int:
  lines = (line.split() for line in path.read_text().splitlines())
  return next(int(words[1]) for words in lines if words and words[0] == name)
