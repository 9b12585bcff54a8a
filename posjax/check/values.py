"""The first part: values and gradients of every case, by every implementation."""

import concurrent.futures
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from posjax.check.cases import Case
from posjax.check.process import PAUSE, Budget, Ended, OutOfTime, Worker

LIMIT = 60.0  # seconds of one case, with the compilation of the reference

Status = Literal['correct', 'wrong', 'reference', 'tiles', 'ended', 'left out']


class Result(NamedTuple):
  """The outcome of a case.

  Attributes:
    implementation: who computed it.
    case: what was computed.
    status: 'reference' where it would be compared with itself, 'tiles' where the implementation
      leaves it to attention in tiles, 'ended' where its process gave no answer, and 'left out'
      where there was no time.
    detail: why, in words.
    error: the largest, relative to the size of the result.
  """

  implementation: str
  case: Case
  status: Status
  detail: str = ''
  error: float | None = None


def compare(
  workers: Sequence[Worker],
  cases: Sequence[Case],
  budget: Budget,
  one_at_a_time: bool,
  say: Callable[[str], None],
) -> list[Result]:
  """The results of all cases, in their order for each implementation.

  The processes compile at the same time, unless the device serves one only. An implementation may
  have several workers, which share its cases.

  Args:
    workers: at least one for each implementation.
    cases: the most important first.
    budget: of all.
    one_at_a_time: whether the device serves one process only: each then has its share of the time.
    say: is told what comes next.
  """
  names = dict.fromkeys(worker.implementation for worker in workers)
  todo: dict[str, queue.SimpleQueue[Case]] = {name: queue.SimpleQueue() for name in names}
  for name in names:
    for case in cases:
      todo[name].put(case)
  found: list[Result] = []
  run = lambda worker, budget: _run(worker, todo[worker.implementation], budget, found, say)
  if one_at_a_time:
    for i, worker in enumerate(workers):
      run(worker, Budget(budget.left() / (len(workers) - i)))
      worker.close()
  else:
    _together(run, workers, budget)
  order = {(name, case): i for i, (name, case) in enumerate(itertools.product(names, cases))}
  return sorted(found, key=lambda x: order[x.implementation, x.case])


def _together(
  run: Callable[[Worker, Budget], None], workers: Sequence[Worker], budget: Budget
) -> None:
  """Runs all workers in threads; if this one is interrupted, they end first."""
  begin = threading.Event()  # once all have been started

  def wait_and_run(worker: Worker) -> None:
    begin.wait()
    run(worker, budget)

  with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
    try:
      futures = [pool.submit(wait_and_run, worker) for worker in workers]
      begin.set()
      while concurrent.futures.wait(futures, PAUSE).not_done:
        pass
      for future in futures:
        future.result()
    except BaseException:
      budget.cancel()  # no thread starts a process from here on
      begin.set()
      for worker in workers:
        worker.interrupt()
      raise


def _run(
  worker: Worker,
  todo: 'queue.SimpleQueue[Case]',
  budget: Budget,
  found: list[Result],
  say: Callable[[str], None],
) -> None:
  """Takes cases until there are none. What would take longer than any so far may not fit."""
  longest = 0.0
  while True:
    try:
      case = todo.get_nowait()
    except queue.Empty:
      return
    before = budget.left()
    if before <= longest:
      found.append(Result(worker.implementation, case, 'left out', 'for lack of time'))
      continue
    say(f'{worker.implementation}: {case.title}')
    result = _result(worker, case, budget)
    found.append(result)
    if result.status != 'ended':
      longest = max(longest, before - budget.left())


def _result(worker: Worker, case: Case, budget: Budget) -> Result:
  name = worker.implementation
  try:
    answer = worker.ask(budget, LIMIT, 'compare', **case._asdict())
  except Ended as ended:
    return Result(name, case, 'ended', str(ended))
  except OutOfTime:
    return Result(name, case, 'left out', 'for lack of time')
  if 'tiles' in answer:
    return Result(name, case, 'tiles', answer['tiles'])
  if 'reference' in answer:
    return Result(name, case, 'reference')
  error = answer['error']
  if error <= case.bound:
    return Result(name, case, 'correct', error=error)
  detail = f'the error of {answer["of"]} is {error:.1e} of its size, where rounding allows '
  return Result(name, case, 'wrong', f'{detail}{case.bound:.1e}', error)
