"""Cells in processes of their own, so that one that fails, or dies, takes no other with it."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from posjax.experiment.compare.grid import Cell
from posjax.experiment.compare.worker import order


class Ended(NamedTuple):
  """A cell that ended, with its row of results, or `error`, or `stopped`."""

  cell: Cell
  row: dict[str, Any]


class Worker:
  """A process that runs cells in turn."""

  def __init__(self, cores: str, held: IO[str], events: queue.SimpleQueue, quiet: bool):
    self.cores, self.held, self.events, self.quiet = cores, held, events, quiet
    self.cell: Cell | None = None
    self.process: subprocess.Popen | None = None

  def give(self, cell: Cell, folder: Path, options: Mapping[str, Any]) -> None:
    """Starts a cell with options of `run_cell`, and the process if there is none."""
    self.cell = cell
    if self.process is None:
      self.process = self._start()
    line = order(cell.config, folder / 'cells' / cell.id, **options)
    with contextlib.suppress(BrokenPipeError):  # it is dead, as its reader will tell
      print(line, file=self.process.stdin, flush=True)

  def _start(self) -> subprocess.Popen:
    command = [sys.executable, '-m', 'posjax.experiment.compare.worker', self.cores]
    # Several processes share an accelerator's memory; by default the first takes most of it.
    shared = {} if self.quiet else {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
    process = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env={**shared, **os.environ},
      pass_fds=(self.held.fileno(),),  # the folder stays locked until the last of them has ended
      start_new_session=True,  # Ctrl-C is for the one who started it, who passes it on
    )
    threading.Thread(target=self._listen, args=(process,), daemon=True).start()
    return process

  def _listen(self, process: subprocess.Popen) -> None:
    with contextlib.suppress(ValueError):  # a line that its death cut short
      for line in process.stdout or ():
        self.events.put((self, json.loads(line)))
    self.events.put((self, None))

  def end(self) -> str:
    """Waits for a dead process; says in words how it died."""
    process, self.process = self.process, None
    code = process.wait() if process else 0
    if code < 0:
      return f'by signal {-code} ({signal.strsignal(-code)}); memory may have run out'
    return f'with exit status {code}'

  def signal(self, number: signal.Signals) -> None:
    """Sends a signal to the process, if there is one."""
    if self.process:
      self.process.send_signal(number)

  def close(self) -> None:
    """Ends the process at once."""
    if self.process:
      self.process.kill()
      self.process.wait()


def run_all(
  cells: Iterable[Cell],
  folder: Path,
  processes: int,
  held: IO[str],
  stopped: Callable[[], bool],
  tick: Callable[[list[Cell]], None],
  options: Callable[[Cell], Mapping[str, Any]] = lambda cell: {},
) -> Generator[Ended]:
  """Runs cells, `processes` at a time, and gives each as it ends.

  Args:
    cells: in this order.
    folder: of the comparison.
    processes: how many at once, 1 or more.
    held: the folder's lock.
    stopped: whether to stop: cells that run are saved, and no others are begun.
    tick: called about each second with the cells that run.
    options: of `run_cell`, for a cell that is about to begin.
  """
  waiting, events = deque(cells), queue.SimpleQueue()
  shares = _cores(processes)
  workers = [Worker(share, held, events, processes == 1) for share in shares]
  told = False
  try:
    while True:
      if stopped() and not told:
        waiting.clear()
        told = True
        for worker in workers:
          worker.signal(signal.SIGTERM)
      for worker in workers:
        if waiting and worker.cell is None:
          cell = waiting.popleft()
          worker.give(cell, folder, options(cell))
      running = [worker.cell for worker in workers if worker.cell]
      if not running:
        return
      tick(running)
      with contextlib.suppress(queue.Empty):
        worker, answer = events.get(timeout=1.0)
        yield from _ended(worker, answer, stopped())
  finally:
    for worker in workers:
      worker.close()


def _ended(worker: Worker, answer: dict[str, Any] | None, stopped: bool) -> Generator[Ended]:
  how = worker.end() if answer is None else ''
  cell, worker.cell = worker.cell, None
  if cell is not None:
    lost = {'stopped': True} if stopped else {'error': f'Its process ended {how}.', 'full': False}
    yield Ended(cell, lost if answer is None else answer)


def _cores(processes: int) -> list[str]:
  """Processors for each process: a share each, where there are enough; '' for all of them."""
  if processes == 1 or not hasattr(os, 'sched_getaffinity'):
    return [''] * processes
  cores = sorted(os.sched_getaffinity(0))
  if len(cores) < processes:
    return [''] * processes
  return [','.join(map(str, cores[i::processes])) for i in range(processes)]
