"""Cells in processes of their own, so that one that fails, or dies, takes no other with it.

Each process is an executor of one worker (`concurrent.futures`), which imports JAX once and runs
one cell after another. It ends when whoever started it does, however that ended.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from posjax.experiment.compare.cell import Refused, remember_programs, run_cell
from posjax.experiment.compare.grid import Cell
from posjax.experiment.locks import FULL
from posjax.experiment.plain import sentence


class Ended(NamedTuple):
  """A cell that ended, with its row of results, or `error`, or `stopped`."""

  cell: Cell
  row: dict[str, Any]


class Worker:
  """One process at a time, on some processors; '' of them means all."""

  def __init__(self, cores: str, shares_memory: bool):
    self.arguments = cores, shares_memory
    self.executor: ProcessPoolExecutor | None = None
    self.process: BaseProcess | None = None

  def submit(self, cell: Cell, folder: Path, options: Mapping[str, Any]) -> Future[dict[str, Any]]:
    """Starts a cell, and the process if there is none, or none any more."""
    if self.executor is None or not (self.process and self.process.is_alive()):
      self.close()
      spawn = multiprocessing.get_context('spawn')
      self.executor = ProcessPoolExecutor(1, spawn, _begin, self.arguments)
    others = set(multiprocessing.active_children())
    future = self.executor.submit(attempt, cell.config, folder / 'cells' / cell.id, **options)
    self.process = next(iter({*multiprocessing.active_children()} - others), self.process)
    return future

  def ended(self, future: Future[dict[str, Any]], stopped: bool) -> dict[str, Any]:
    """The row of a cell; `stopped` or `error` if its process died."""
    try:
      return future.result()
    except BrokenProcessPool:
      if stopped:
        return {'stopped': True}
      self.close()
      code = getattr(self.process, 'exitcode', None) or 0
      how = f'with exit status {code}'
      if code < 0:
        how = f'by signal {-code} ({signal.strsignal(-code)}); memory may have run out'
      return {'error': f'Its process ended {how}.', 'full': False}

  def close(self) -> None:
    """Ends the process at once."""
    if self.process:
      self.process.kill()
      self.process.join()
    if self.executor:
      self.executor.shutdown()
    self.executor = None


def run_all(
  cells: Iterable[Cell],
  folder: Path,
  processes: int,
  stopped: Callable[[], bool],
  tick: Callable[[list[Cell]], None],
  options: Callable[[Cell], Mapping[str, Any]] = lambda cell: {},
) -> Generator[Ended]:
  """Runs cells, `processes` at a time, and gives each as it ends.

  Args:
    cells: in this order.
    folder: of the comparison.
    processes: how many at once, 1 or more.
    stopped: whether to stop: cells that run are saved, and no others are begun.
    tick: called about each second with the cells that run.
    options: of `run_cell`, for a cell that is about to begin.
  """
  waiting = deque(cells)
  workers = [Worker(cores, shares_memory=processes > 1) for cores in _cores(processes)]
  free, running, signalled = list(workers), {}, False
  try:
    while True:
      if stopped() and not signalled:
        waiting.clear()
        signalled = True
        for _, worker in running.values():
          worker.process.terminate()
      while waiting and free:
        cell, worker = waiting.popleft(), free.pop(0)
        running[worker.submit(cell, folder, options(cell))] = cell, worker
      if not running:
        return
      tick([cell for cell, _ in running.values()])
      for future in wait(running, 1.0, FIRST_COMPLETED).done:
        cell, worker = running.pop(future)
        row = worker.ended(future, stopped())
        free.append(worker)
        yield Ended(cell, row)
  finally:
    for worker in workers:
      worker.close()


def _cores(processes: int) -> list[str]:
  """Processors for each process: a share each, where there are enough; '' for all of them."""
  if processes == 1 or not hasattr(os, 'sched_getaffinity'):
    return [''] * processes
  cores = sorted(os.sched_getaffinity(0))
  if len(cores) < processes:
    return [''] * processes
  return [','.join(map(str, cores[i::processes])) for i in range(processes)]


def _begin(cores: str, shares_memory: bool) -> None:
  """The start of a worker."""
  os.setsid()  # Ctrl-C is for the one who started it, who passes it on
  parent = multiprocessing.parent_process()
  threading.Thread(target=lambda: (parent and parent.join(), os._exit(0)), daemon=True).start()
  if cores:
    os.sched_setaffinity(0, map(int, cores.split(',')))
  if shares_memory:  # of an accelerator; by default the first process takes most of it
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  logging.set_verbosity(logging.WARNING)  # Orbax logs every file otherwise
  remember_programs()


def attempt(config: Any, folder: Path, **options: Any) -> dict[str, Any]:
  """The row of a cell; or `stopped`; or `error`. What is printed goes to log.txt in its folder.

  Beside an error, `full` says whether there was no room, and `refused` whether no step was taken.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / 'log.txt', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    if multiprocessing.parent_process():
      os.dup2(log, 1)
      os.dup2(log, 2)
    os.close(log)
    row = run_cell(config, folder, **options)
  except Exception as error:  # whatever it is, the other cells go on
    with contextlib.suppress(OSError):
      traceback.print_exc()
    return {'error': sentence(error), 'full': full(error), 'refused': isinstance(error, Refused)}
  return {'stopped': True} if row is None else row


def full(error: BaseException | None) -> bool:
  """Whether an error, or one that led to it, is that there is no room on the disk."""
  while error is not None:
    texts = [os.strerror(number) for number in FULL]
    if getattr(error, 'errno', None) in FULL or any(text in str(error) for text in texts):
      return True
    error = error.__cause__ or error.__context__
  return False
