"""Stopping politely: the step that runs is finished, and the state is saved."""

import contextlib
import signal
import threading
from collections.abc import Callable, Generator


@contextlib.contextmanager
def interrupts() -> Generator[Callable[[], bool]]:
  """Within it, Ctrl-C and SIGTERM only set a flag; gives a function that reads it.

  A second Ctrl-C interrupts at once. Outside the main thread, signals are left alone.
  """
  stopped = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield stopped.is_set
    return

  def stop(number, frame):
    stopped.set()
    signal.signal(signal.SIGINT, signal.default_int_handler)

  before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield stopped.is_set
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
