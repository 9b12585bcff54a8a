"""The command: every case of every area, the table of their classes, and the list of faults.

The cases run in a process of their own. If one hangs or dies, its case is counted, and another
process goes on behind it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import areas, table, worker
from tests.fuzz.areas import AREAS
from tests.fuzz.judge import FAULTS, ROOT, judge
from tests.fuzz.table import Row

STEP = 607  # of --quick: one case in so many
QUICK = ('library', 'configs')
# Cases share programs. Compiling without optimization takes a third of the time.
ENVIRONMENT = {
  'JAX_PLATFORMS': 'cpu',
  'MPLBACKEND': 'agg',
  'PYTHONPATH': str(ROOT),
  'JAX_ENABLE_COMPILATION_CACHE': 'true',
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  'XLA_FLAGS': '--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 '
  '--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters',
}
MEMORY = 24 * 2**30  # bytes of addresses for a process, so that a case that wants all gets an error


def main() -> None:
  """The exit code is 1 if a case is raw, silently wrong or hangs."""
  parser = argparse.ArgumentParser('tests.fuzz', description='Calls posjax with what is wrong.')
  parser.add_argument('--area', choices=[*AREAS], action='append', help='by default all')
  parser.add_argument('--only', metavar='AREA:NUMBER', help='one case, with its traceback')
  parser.add_argument('--step', type=int, default=1, help='one case in so many')
  parser.add_argument('--quick', action='store_true', help='a sample, in 10 seconds')
  parser.add_argument('--out', type=Path, default=Path('build', 'fuzz.md'), help='the table')
  given = parser.parse_args()
  scratch = Path(tempfile.mkdtemp(prefix='fuzz-'))
  os.environ.update(ENVIRONMENT)
  os.environ['FUZZ_SCRATCH'] = str(scratch)
  os.environ['JAX_COMPILATION_CACHE_DIR'] = str(scratch / 'programs')
  try:
    if given.only:
      sys.exit(one(given.only))
    chosen = given.area or (QUICK if given.quick else [*AREAS])
    started = time.monotonic()
    rows = [
      row for area in chosen for row in run(area, STEP if given.quick else given.step, scratch)
    ]
    spent = sum(os.times()[:4]), time.monotonic() - started
  finally:
    shutil.rmtree(scratch, ignore_errors=True)
  text = report(rows, *spent)
  given.out.parent.mkdir(parents=True, exist_ok=True)
  given.out.write_text(text)
  print(text)
  sys.exit(1 if any(row.kind in FAULTS for row in rows) else 0)


def report(rows: list[Row], cpu: float, wall: float) -> str:
  """The table and the list, as Markdown."""
  took = f'{cpu / 60:.1f} CPU minutes, {wall / 60:.1f} minutes in all.'
  return f'{table.counts(rows)}\n\n{took}\n\n{table.faults(rows)}\n'


def one(name: str) -> int:
  """Runs a case in this process, and shows its traceback."""
  area, _, number = name.partition(':')
  case = areas.cases(area)[int(number)]
  print(worker.printable(case.title))
  verdict = judge(case)
  print(f'{verdict.kind}: {worker.printable(verdict.detail)}')
  if verdict.kind in FAULTS:
    print(case.call())
  return int(verdict.kind in FAULTS)


def run(area: str, step: int, scratch: Path) -> list[Row]:
  """All cases of an area."""
  path, first, lost = scratch / f'{area}.jsonl', 0, []
  while True:
    process = subprocess.Popen(
      [sys.executable, '-m', 'tests.fuzz.worker', area, str(first), str(step), path],
      cwd=ROOT,
      preexec_fn=_limit,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
    )
    hung = _watch(process, path)
    error = process.communicate()[1].decode(errors='replace')
    begun = _last_begun(path)
    if begun is None:
      if process.returncode:
        raise RuntimeError(f'The worker of {area} ended before a case was over: {error[-2000:]}')
      return sorted([*table.read(area, path), *lost], key=lambda row: row.number)
    why = 'the process had to be killed' if hung else f'the process died: {error[-200:]}'
    kind = 'hang' if hung else 'raw'
    lost.append(Row(area, begun['begun'], begun['title'], kind, worker.printable(why)))
    with path.open('a') as file:
      file.write(json.dumps({'lost': begun['begun']}) + '\n')
    first = begun['begun'] + step


def _limit() -> None:
  import resource

  resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _watch(process: subprocess.Popen, path: Path) -> bool:
  """Waits for a worker; kills it, and returns True, where a case takes twice its limit."""
  while True:
    try:
      process.wait(timeout=2)
      return False
    except subprocess.TimeoutExpired:
      begun = _last_begun(path)
      if begun and time.time() - path.stat().st_mtime > 2 * begun['seconds'] + 60:
        process.kill()
        return True


def _last_begun(path: Path) -> dict | None:
  """The case that a worker is at; None where the last one is over."""
  lines = path.read_text().splitlines() if path.exists() else []
  last = json.loads(lines[-1]) if lines else {}
  return last if 'begun' in last else None


if __name__ == '__main__':
  main()
