"""Runs many processes in turns, so that noise of the machine meets all alike.

Each case has a process of its own (`worker.py`), which waits between its runs and holds its inputs
only. A round runs every case once, in an order drawn anew.
"""

import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from benchmarks import memory

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Unless the caller's environment says otherwise.
_SHARED = {
  # A process would take most of an accelerator's memory, and leave none to the next.
  'XLA_PYTHON_CLIENT_PREALLOCATE': 'false',
  # Torch's threads would turn while they wait for each other: up to 4 times the CPU seconds here.
  'OMP_WAIT_POLICY': 'passive',
}


class Case(NamedTuple):
  """One line of a table: who, what, and its name there.

  Attributes:
    label: the name.
    peer: a file in benchmarks/peers.
    spec: of spec.py.
    root: the checkout whose benchmarks and library run.
  """

  label: str
  peer: str
  spec: Any
  root: pathlib.Path = ROOT


class Found(NamedTuple):
  """What a case took: seconds of each round, and memory in bytes.

  Attributes:
    case: what was measured.
    cpu: process CPU seconds, of all its threads.
    wall: seconds on the clock.
    peak: the most held in the runs above the inputs, by the accelerator if there is one.
    building: the same for building and the first run: compilation, mostly.
    temporary: the compiler's own figure, or None.
    parameters: how many numbers are trained.
    pages: of each round, how often the system gave the process a page of memory, where it tells.
  """

  case: Case
  cpu: tuple[float, ...]
  wall: tuple[float, ...]
  peak: int
  building: int
  temporary: int | None
  parameters: int
  pages: tuple[int, ...] = ()

  @property
  def seconds(self) -> tuple[float, float]:
    """Medians, CPU and wall."""
    return statistics.median(self.cpu), statistics.median(self.wall)


class Gone(NamedTuple):
  """A case without numbers.

  Attributes:
    case: what was asked.
    why: in words.
    failed: whether it should have worked.
    absent: whether no other case of this peer can be run here either.
  """

  case: Case
  why: str
  failed: bool
  absent: bool = False


class Process:
  """A case's process, ready once made; `gone` says why if it is not."""

  def __init__(self, case: Case, cores: int | None = None):
    self.case = case
    command = [sys.executable, '-m', 'benchmarks.worker', case.peer, type(case.spec).__name__]
    defaults = type(case.spec)._field_defaults  # another checkout may not know all fields
    fields = {k: v for k, v in case.spec._asdict().items() if k not in defaults or v != defaults[k]}
    command += [json.dumps(fields)] + ([] if cores is None else [str(cores)])
    self._process = subprocess.Popen(
      command,
      cwd=case.root,
      env=_SHARED | os.environ | {'PYTHONPATH': str(case.root)},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    self.gone: Gone | None = None
    self._runs: list[dict[str, Any]] = []
    self._facts = self._answer()

  def run(self) -> None:
    """Runs once, unless gone."""
    if self.gone is not None:
      return
    before = memory.pages(self._process.pid)
    with contextlib.suppress(BrokenPipeError):  # the answer tells
      print(file=self._process.stdin, flush=True)
    answer = self._answer()
    if self.gone is None:
      self._runs.append(answer | {'pages': memory.pages(self._process.pid) - before})

  @property
  def runs(self) -> int:
    """How often it has run."""
    return len(self._runs)

  def found(self, first: int) -> Found | Gone:
    """What the runs took, from number `first` on."""
    if self.gone is not None:
      return self.gone
    runs = self._runs[first:]
    return Found(
      self.case,
      tuple(run['cpu'] for run in runs),
      tuple(run['wall'] for run in runs),
      max(run['peak'] for run in runs),
      self._facts['building'],
      self._facts['temporary'],
      self._facts['parameters'],
      tuple(run['pages'] for run in runs),
    )

  def close(self) -> None:
    """Ends the process: it exits when its input does."""
    try:
      self._process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.communicate()

  def _answer(self) -> dict[str, Any]:
    line = self._process.stdout.readline()
    if not line:
      code = self._process.wait()
      how = f'was killed by signal {-code}' if code < 0 else f'exited with code {code}'
      self.gone = Gone(self.case, f'its process {how}', failed=True)
      return {}
    answer = json.loads(line)
    if 'failed' in answer:
      self.gone = Gone(self.case, answer['failed'], failed=True)
    if 'unable' in answer:
      self.gone = Gone(self.case, answer['unable'], failed=False, absent=answer['absent'])
    return answer


def measure(
  cases: Iterable[Case],
  rounds: int,
  *,
  baseline: Process | None = None,
  cores: int | None = None,
  seed: int = 0,
) -> list[Found | Gone]:
  """Each case over `rounds` rounds, after one more that does not count.

  Args:
    cases: what to run.
    rounds: at least 1.
    baseline: a process that runs along in each round, and stays alive; it comes first.
    cores: processors of each process; None means all.
    seed: of the order in each round.

  Raises:
    ValueError: if there is no round.
  """
  if rounds < 1:
    raise ValueError(f'There must be at least 1 round, but got {rounds}.')
  everyone = [] if baseline is None else [baseline]
  try:
    for case in cases:
      everyone.append(Process(case, cores))  # noqa: PERF401 (those started must be ended)
    firsts = [one.runs + 1 for one in everyone]
    order = random.Random(seed)
    for _ in range(rounds + 1):
      for one in order.sample(everyone, len(everyone)):
        one.run()
    return [one.found(first) for one, first in zip(everyone, firsts, strict=True)]
  finally:
    for one in everyone:
      if one is not baseline:
        one.close()
