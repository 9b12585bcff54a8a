"""The first part: values and gradients of every case, by every implementation."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from posjax.check.cases import Case
from posjax.check.process import Budget, Ended, OutOfTime, Worker

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
  """The results of all cases, width by width.

  Args:
    workers: one for each implementation.
    cases: in order of their widths.
    budget: of all. No implementation takes more than its share of what is left.
    one_at_a_time: whether the device serves one process only.
    say: is told what comes next.
  """
  found = []
  for width in sorted({case.width for case in cases}):
    for i, worker in enumerate(workers):
      share = Budget(budget.left() / (len(workers) - i))
      longest = 0.0
      for case in (case for case in cases if case.width == width):
        before = share.left()
        if before <= longest:
          found.append(Result(worker.implementation, case, 'left out', 'for lack of time'))
          continue
        say(f'{worker.implementation}: {case.title}')
        found.append(_result(worker, case, share))
        if found[-1].status != 'ended':
          longest = max(longest, before - share.left())
      if one_at_a_time:
        worker.close()
  return found


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
