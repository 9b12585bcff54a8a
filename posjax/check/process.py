"""The process of one implementation, as the parent sees it: questions, deadlines, crashes."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

COMMAND = (sys.executable, '-m', 'posjax.check.worker')
START = 60.0  # seconds in which a process is ready: JAX is imported, and an accelerator found
# The longest wait at a stretch, in seconds: Ctrl-C is answered between waits if the system tells
# another thread of it than the main one.
PAUSE = 0.2


class Ended(Exception):
  """A process gave no answer; the text says how it ended."""


class OutOfTime(Exception):
  """The time of the whole check ended before the answer came."""


class Budget:
  """Seconds that are spent while the clock runs."""

  def __init__(self, seconds: float):
    self._end = time.monotonic() + seconds

  def left(self) -> float:
    """Seconds that are left, 0 at least."""
    return max(0.0, self._end - time.monotonic())

  def cancel(self) -> None:
    """Leaves nothing."""
    self._end = 0.0


class Worker:
  """Answers for one implementation, of a process that is started whenever there is none."""

  def __init__(self, implementation: str, command: Sequence[str] = COMMAND):
    self.implementation = implementation
    self._command = command
    self._process: _Process | None = None

  def ask(self, budget: Budget, limit: float, question: str, **arguments: Any) -> dict[str, Any]:
    """The answer to a question. A process that gives none is ended: the next starts anew.

    Args:
      budget: of which the answer takes its time, and the start of a process too.
      limit: seconds that the answer may take in any case.
      question: a method of `worker.Answers`.
      **arguments: of the question.

    Raises:
      Ended: if the process ends without an answer or has none in time, or an error is raised there.
      OutOfTime: if the budget ends first.
    """
    try:
      if self._process is None:
        if not budget.left():
          raise OutOfTime
        self._process = _Process([*self._command, self.implementation])
        self._process.answer(budget, START)
      self._process.tell({'question': question, **arguments})
      return self._process.answer(budget, limit)
    except (Ended, OutOfTime):
      self.close()
      raise

  def interrupt(self) -> None:
    """Kills the process, so that a thread that waits for its answer gets none."""
    if (process := self._process) is not None:
      process.kill()

  def close(self) -> None:
    """Ends the process, if there is one."""
    if self._process is not None:
      self._process.end()
      self._process = None


class _Process:
  """One process, which reads and writes lines of JSON."""

  def __init__(self, command: Sequence[str]):
    # A pipe that nobody reads would fill up, so what libraries print goes to a file. A session of
    # its own keeps Ctrl-C from the process: the parent, which gets it, ends them all.
    self._errors = tempfile.TemporaryFile('w+', errors='replace')  # noqa: SIM115 (see `end`)
    self._popen = subprocess.Popen(
      command,
      env=_environment(),
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
      start_new_session=True,
    )
    self._lines: queue.Queue[str] = queue.Queue()
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def tell(self, question: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # `answer` says that the process is gone
      print(json.dumps(question), file=self._popen.stdin, flush=True)

  def answer(self, budget: Budget, limit: float) -> dict[str, Any]:
    """The next line; raises as `Worker.ask`."""
    line, end = None, Budget(limit)
    while line is None:
      left = min(budget.left(), end.left())
      with contextlib.suppress(queue.Empty):
        line = self._lines.get(timeout=min(left, PAUSE))
      if line is None and not budget.left():
        raise OutOfTime
      if line is None and not end.left():
        raise Ended(f'no answer within {limit:.0f} s')
    if not line:
      raise Ended(f'crashed ({_how(self._popen.wait())}){self._last_words()}')
    answer = json.loads(line)
    if 'failed' in answer:
      raise Ended(f'failed: {answer["failed"]}')
    return answer

  def kill(self) -> None:
    self._popen.kill()

  def end(self) -> None:
    self._popen.kill()
    self._reader.join()
    with contextlib.suppress(BrokenPipeError):
      self._popen.communicate()
    self._errors.close()

  def _read(self) -> None:
    """Hands on each line, and '' at the end."""
    for line in self._popen.stdout or ():
      self._lines.put(line)
    self._lines.put('')

  def _last_words(self) -> str:
    """The last line of the error output, after a colon."""
    self._errors.seek(0)
    lines = [line.strip() for line in self._errors if line.strip()]
    return f': {lines[-1][:160]}' if lines else ''


def _environment() -> dict[str, str]:
  """The parent's, in which nothing chooses an implementation, or takes all of a GPU's memory."""
  found = {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'} | os.environ
  found.pop('POSJAX_IMPLEMENTATION', None)
  return found


def _how(code: int) -> str:
  if code >= 0:
    return f'exit code {code}'
  with contextlib.suppress(ValueError):
    return f'signal {-code}, {signal.Signals(-code).name}'
  return f'signal {-code}'
