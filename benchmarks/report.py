"""What the commands print and keep: Markdown tables of medians and ratios, and JSON lines."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.interleave import ROOT, Found, Gone
from benchmarks.memory import MEBIBYTE

_PACKAGES = ('jax', 'flax', 'torch', 'tokamax', 'x-transformers', 'transformers')


def machine() -> dict[str, str | int]:
  """Where, when and with what."""
  versions = {}
  for name in _PACKAGES:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = 'not installed'
  return {
    'date': datetime.date.today().isoformat(),
    'commit': _commit(),
    'machine': f'{platform.system()} {platform.machine()}',
    'processors': len(os.sched_getaffinity(0)),
    'python': platform.python_version(),
    **versions,
  }


def _commit() -> str:
  command = ['git', 'describe', '--always', '--dirty', '--exclude=*']
  try:
    return subprocess.run(
      command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'


def attention_row(found: Found, baseline: Found) -> list[str]:
  """Seconds and ratios to the baseline: less is better."""
  (cpu, wall), (base_cpu, base_wall) = found.seconds, baseline.seconds
  return [
    *(found.case.spec.scheme, found.case.label),
    *(_spread(found.cpu), f'{cpu / base_cpu:.2f}'),
    *(_spread(found.wall), f'{wall / base_wall:.2f}'),
    _digits(found.case.spec.flops / wall / 1e12),
    *memory_columns(found),
  ]


ATTENTION = 'scheme | computed by | CPU s | ratio | wall s | ratio | TFLOP/s | MiB | XLA MiB'


def step_row(found: Found, baseline: Found) -> list[str]:
  """Tokens per second and ratios to the baseline: more is better."""
  tokens = found.case.spec.batch * found.case.spec.length
  (cpu, wall), (base_cpu, base_wall) = found.seconds, baseline.seconds
  return [
    *(found.case.spec.scheme, found.case.label, f'{found.parameters:,}'),
    *(_spread([tokens / s for s in found.cpu], tokens / cpu), f'{base_cpu / cpu:.2f}'),
    *(_spread([tokens / s for s in found.wall], tokens / wall), f'{base_wall / wall:.2f}'),
    *memory_columns(found),
  ]


STEP = (
  'scheme | trained by | parameters | tokens / CPU s | ratio | tokens / s | ratio | MiB | XLA MiB'
)


def pairs_row(found: Found, baseline: Found) -> list[str]:
  """Pairs, or sentences, per second and ratios to the baseline: more is better."""
  batch = found.case.spec.batch
  (cpu, wall), (base_cpu, base_wall) = found.seconds, baseline.seconds
  return [
    *(found.case.label, found.case.spec.scheme, f'{found.parameters:,}'),
    *(_spread([batch / s for s in found.cpu], batch / cpu), f'{base_cpu / cpu:.2f}'),
    *(_spread([batch / s for s in found.wall], batch / wall), f'{base_wall / wall:.2f}'),
    *memory_columns(found),
  ]


PARSES = (
  'part | scheme | parameters | sentences / CPU s | ratio | sentences / s | ratio | MiB | XLA MiB'
)
PAIRS = 'model | scheme | parameters | pairs / CPU s | ratio | pairs / s | ratio | MiB | XLA MiB'


def memory_columns(found: Found) -> list[str]:
  """Mebibytes: the most held above the inputs, and the compiler's own figure."""
  held = '' if found.temporary is None else f'{found.temporary / MEBIBYTE:.0f}'
  return [f'{found.peak / MEBIBYTE:.0f}', held]


def _spread(values: Sequence[float], median: float | None = None) -> str:
  """The median, least and most."""
  middle = statistics.median(values) if median is None else median
  return f'{_digits(middle)} ({_digits(min(values))}-{_digits(max(values))})'


def _digits(value: float) -> str:
  """Three digits that count."""
  return f'{value:.0f}' if value >= 100 else f'{value:#.3g}'


class Line(NamedTuple):
  """A case, and the baseline's numbers in the same rounds."""

  found: Found | Gone
  baseline: Found


def publish(
  tables: Iterable[tuple[str, Iterable[Line]]],
  columns: str,
  row: Callable[[Found, Found], list[str]],
  path: pathlib.Path | None,
) -> int:
  """Prints each line as it comes, and appends it to the file; 1 if a case failed."""
  about = machine()
  print(', '.join(f'{name} {value}' for name, value in about.items()), flush=True)
  status = 0
  for title, lines in tables:
    print(f'\n{title}\n\n| {columns} |\n|{" --- |" * (columns.count("|") + 1)}', flush=True)
    gone = []
    for line in lines:
      if path is not None:
        keep(path, about, line)
      if isinstance(line.found, Gone):
        gone.append(line.found)
      else:
        print(f'| {" | ".join(row(*line))} |', flush=True)
    explain(gone)
    status |= any(one.failed for one in gone)
  return status


def explain(missing: list[Gone]) -> None:
  """Prints what is not in a table, and why."""
  reasons: dict[str, list[str]] = {}
  for gone in missing:
    how = 'Failed' if gone.failed else 'Not run'
    name = gone.case.label if gone.absent else f'{gone.case.label} {gone.case.spec.scheme}'
    reasons.setdefault(f'{how}: {gone.why}', []).append(name)
  print()
  for why, names in reasons.items():
    print(f'- {why}: {", ".join(names)}.')
  print(end='', flush=True)


def keep(path: pathlib.Path, about: dict[str, Any], line: Line) -> None:
  """Appends a line in JSON: all its seconds, and what `machine` says."""
  found, baseline = line
  case = {'kind': type(found.case.spec).__name__, 'by': found.case.label}
  case |= found.case.spec._asdict()
  numbers = {name: value for name, value in found._asdict().items() if name != 'case'}
  if isinstance(found, Found):
    seconds = {'cpu': baseline.cpu, 'wall': baseline.wall}
    numbers['baseline'] = {'by': baseline.case.label, **seconds}
  with path.open('a', encoding='utf-8') as file:
    print(json.dumps({**case, **numbers, **about}), file=file)
