"""Stopping politely: the step that runs is finished, and the state is saved."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator

import jax

INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended
TERMINATED = 143  # that of one that SIGTERM ended

_signals: list[int] = []  # those that asked this process to stop, in their order


def status() -> int:
  """The exit code of a command that was stopped, and has saved."""
  return INTERRUPTED if _signals[:1] == [signal.SIGINT] else TERMINATED


@contextlib.contextmanager
def interrupts() -> Generator[Callable[[], bool]]:
  """Within it, Ctrl-C and SIGTERM only set a flag; gives a function that reads it.

  A second Ctrl-C does what one did before. Outside the main thread, signals are left alone. Where a
  run has several processes, JAX tells all of them of a SIGTERM to one (`cluster.reached_stop`), so
  that one is left to JAX, and Ctrl-C becomes one.
  """
  stopped = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield stopped.is_set
    return

  def stop(number, frame):
    _signals.append(number)
    if alone:
      stopped.set()
    else:
      os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGINT, before[signal.SIGINT])

  alone = not jax.distributed.is_initialized()
  numbers = (signal.SIGINT, signal.SIGTERM) if alone else (signal.SIGINT,)
  before = {number: signal.signal(number, stop) for number in numbers}
  try:
    yield stopped.is_set
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def leave_quietly() -> None:
  """From here on, Ctrl-C ends this command with one sentence, at once and without a traceback."""

  def leave(number, frame):
    with contextlib.suppress(Exception):
      sys.stdout.flush()
    if os.isatty(1):
      os.write(1, b'\x1b[?25h')  # the cursor, which a progress bar hides
    with contextlib.suppress(OSError):
      os.write(2, b'\ninterrupted: what was saved stays, and the same command goes on.\n')
    os._exit(INTERRUPTED)  # libraries would wait for their threads, or print what they were at

  signal.signal(signal.SIGINT, leave)
