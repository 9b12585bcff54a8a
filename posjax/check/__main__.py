"""Checks attention on this device: whether it is correct, and how fast it is.

python -m posjax.check
python -m posjax.check --quick
python -m posjax.check --only='t5 128 bfloat16'

Every implementation computes one scheme of each kind, at three head widths and in two dtypes, and
is compared with dense attention in float32, in values and gradients. Then all are timed at growing
lengths. Where there are several devices, attention over all of them is compared, too, and the
collectives that it needs are timed. The exit code is 0 if everything was right, and 1 if something
was wrong or gave no answer.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

from posjax.attention.choice import OVER_DEVICES
from posjax.check import page, speeds, values
from posjax.check.cases import cases
from posjax.check.collectives import Collective
from posjax.check.process import COMMAND, Budget, Ended, OutOfTime, Worker
from posjax.check.report import Report

_SECONDS, _QUICK = 290.0, 110.0  # the ends of processes take a moment
_VALUES = 0.6  # the first part's share of the time, where both are done


def check(only: str, seconds: float, command: Sequence[str] = COMMAND) -> Report:
  """Runs both parts.

  Args:
    only: words in the titles of cases; all cases, and the times, if there are none.
    seconds: that it may take.
    command: what starts a process, before the name of its implementation.

  Raises:
    SystemExit: if no case has the words, or no process can say where it runs.
  """
  wanted = cases(only)
  if not wanted:
    raise SystemExit(f'There must be a case with the words {only!r}, but got none.')
  begun, budget = time.monotonic(), Budget(seconds)
  workers = [Worker('dense', command)]
  try:
    _say('devices')
    try:
      facts = workers[0].ask(budget, budget.left(), 'facts')
    except (Ended, OutOfTime) as error:
      raise SystemExit(f'JAX cannot be used here: {error or "no answer in time"}.') from None
    present = [name for name, why in facts['implementations'].items() if not why]
    workers += [Worker(name, command) for name in present if name != 'dense']
    alone = facts['platform'] == 'tpu'  # which serves one process at a time
    more = not alone and facts['processors'] >= 2 * len(present)
    helpers = [Worker(name, command) for name in present] if more else []
    workers += helpers
    part = budget if only else Budget(_VALUES * budget.left())
    results = values.compare(workers, wanted, part, alone, _say)
    for helper in helpers:
      helper.close()
    exchanged, why = ([], '') if only else _exchanged(workers[0], budget, len(facts['devices']))
    timed = [one for one in workers[: len(present)] if one.implementation not in OVER_DEVICES]
    found = [] if only else speeds.measure(timed, budget, alone, _say)
    seconds = time.monotonic() - begun
    return Report(facts, results, found, seconds, exchanged, why)
  finally:
    _say('')
    for worker in workers:
      worker.close()


def _exchanged(worker: Worker, budget: Budget, devices: int) -> tuple[list[Collective], str]:
  """The speeds of collectives, where there are several devices; or why there are none."""
  if devices == 1:
    return [], ''
  _say('collectives')
  try:
    found = worker.ask(budget, values.LIMIT, 'collectives')['found']
  except OutOfTime:
    return [], ''
  except Ended as error:
    return [], str(error)
  return [Collective(*one) for one in found], ''


def _progress() -> Callable[[str], None]:
  """Writes over one line of a terminal; says nothing elsewhere."""
  if not sys.stderr.isatty():
    return lambda text: None
  return lambda text: print(f'\r{text[:79]:<79}\r', end='', file=sys.stderr, flush=True)


_say = _progress()


def main(argv: Sequence[str], command: Sequence[str] = COMMAND) -> int:
  """Prints the page, or JSON; 1 if something is wrong."""
  parser = argparse.ArgumentParser(prog='posjax.check', description=__doc__.splitlines()[0])
  add = parser.add_argument
  add('--quick', action='store_true', help='two minutes instead of five')
  add('--only', default='', help='words in the titles of cases, as on the page; no times then')
  add('--json', action='store_true', help='print everything in JSON')
  given = parser.parse_args(argv)
  try:
    report = check(given.only, _QUICK if given.quick else _SECONDS, command)
  except KeyboardInterrupt:
    print('Interrupted.', file=sys.stderr)
    return 130
  print(json.dumps(report.as_json(), indent=2) if given.json else page.text(report))
  return 1 if report.problems else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
