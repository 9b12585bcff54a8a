"""Where the numbers of a comparison come from: the command, the code, the sizes and the data."""

import functools
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import posjax
from posjax.experiment.compare.grid import Cell, flat
from posjax.experiment.compare.summary import Summary
from posjax.experiment.report import computed

SIZES = ('batch_size', 'model.')  # keys of a config that say how large a run is


class Origin(NamedTuple):
  """The part of a report that lines of results.jsonl do not tell.

  Attributes:
    command: that was given.
    commit: of the code that draws the report; '' outside a checkout.
    config: by key, the values that all runs share.
  """

  command: str
  commit: str
  config: Mapping[str, Any]


def origin(arguments: Sequence[str], cells: Sequence[Cell]) -> Origin:
  """The origin of a grid."""
  command = shlex.join(['python', '-m', 'posjax.experiment.compare', *arguments])
  every = [flat(cell.config.to_dict()) for cell in cells]
  shared = {
    key: value
    for key, value in every[0].items()
    if key not in ('scheme', 'seed') and all(key in one and one[key] == value for one in every)
  }
  return Origin(command, commit(), shared)


@functools.cache
def commit() -> str:
  """The commit of posjax, and whether its files were changed since; '' outside a checkout.

  Example:
    >>> commit()  # doctest: +SKIP
    '9bf3586abcde, with changes'
  """
  return of_checkout(Path(posjax.__file__).parent)


def of_checkout(folder: Path) -> str:
  """The commit of the checkout that tracks the files of a folder; '' if none does.

  A folder that lies inside of a checkout need not belong to it: a virtual environment often does.
  """
  if not _git(folder, 'ls-files', '.'):
    return ''
  name = _git(folder, 'rev-parse', '--short=12', 'HEAD')
  changed = _git(folder, 'status', '--porcelain', '--untracked-files=no')
  return f'{name}, with changes' if name and changed else name


def _git(folder: Path, *arguments: str) -> str:
  """The answer of git; '' where it fails, is missing, or does not answer."""
  command = ['git', '--no-optional-locks', '-C', str(folder), *arguments]
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
  except (OSError, subprocess.SubprocessError):
    return ''
  return done.stdout.strip() if done.returncode == 0 else ''


def provenance(summary: Summary, made: Origin | None = None) -> list[tuple[str, str]]:
  """Names and texts, in the order in which a reader asks for them."""
  lines = [each.result for row in summary.rows for each in row.cells]
  config = {} if made is None else made.config
  commits = _distinct(line.get('commit') or 'not recorded' for line in lines)
  if made is not None and made.commit and commits != made.commit:
    commits += f' (this page: {made.commit})'
  others = {key: value for key, value in config.items() if key != 'steps' and not _is_size(key)}
  known = [
    ('command', '' if made is None else made.command),
    ('commit', commits),
    ('schemes', str(len({row.scheme for row in summary.rows}))),
    ('seeds', _distinct(each.seed for row in summary.rows for each in row.cells)),
    ('steps', _steps(lines, config)),
    ('sizes', _sizes(lines, config)),
    ('computed in', _computing(lines)),
    *_facts(summary),
    ('versions', '; '.join(_versions(lines))),
    ('device', _distinct(line['device'] for line in lines)),
    ('other keys', _pairs(others)),
  ]
  return [(name, text) for name, text in known if text]


def short(summary: Summary, made: Origin | None = None) -> str:
  """The same in one line: how many schemes and runs, how long, on what, by which code."""
  known = dict(provenance(summary, made))
  runs = [each.result for row in summary.rows for each in row.cells]
  seeds = known['seeds']
  data = _distinct(line['facts']['data'] for line in runs if 'data' in line['facts'])
  parts = [
    f'{known["schemes"]} schemes, {len(runs)} finished runs, seed{"s" * (", " in seeds)} {seeds}',
    f'{known["steps"]} steps' if 'steps' in known else '',
    f'data {data}' if data else '',
    f'commit {known["commit"]}',
  ]
  return '; '.join(filter(None, parts)) + '.'


def _distinct(values: Iterable[Any]) -> str:
  return ', '.join(map(str, sorted(set(values))))


def _pairs(values: Mapping[str, Any]) -> str:
  return ', '.join(f'{key}={value}' for key, value in values.items() if value is not None)


def _is_size(key: str) -> bool:
  return key.startswith(SIZES)


def _steps(lines: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> str:
  if 'steps' in config:
    return f'{config["steps"]:,}'
  last = {line['curve'][-1][0] for line in lines if line['curve']}
  ends = ' to '.join(f'{step:,}' for step in sorted({min(last), max(last)})) if last else ''
  return ends and f'{ends} (where the curves end)'


def _sizes(lines: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> str:
  counts = [line['parameters'] for line in lines]
  ends = ' to '.join(f'{count:,}' for count in sorted({min(counts), max(counts)}))
  keys = _pairs({key: value for key, value in config.items() if _is_size(key)})
  return ', '.join(filter(None, [f'{ends} parameters', keys]))


def _computing(lines: Sequence[Mapping[str, Any]]) -> str:
  return _distinct(computed(line) for line in lines if 'dtype' in line)


def _versions(lines: Sequence[Mapping[str, Any]]) -> list[str]:
  names = dict.fromkeys(name for line in lines for name in line['versions'])
  return [
    f'{name} {_distinct(line["versions"].get(name, "not recorded") for line in lines)}'
    for name in names
  ]


def _facts(summary: Summary) -> list[tuple[str, str]]:
  """The facts of the data; those that differ by the values of an axis have each value."""
  found: dict[str, dict[str, list[str]]] = {}
  for row in summary.rows:
    for each in row.cells:
      for name, value in each.result['facts'].items():
        panels = found.setdefault(name, {}).setdefault(value, [])
        panels += [] if row.panel in panels else [row.panel]
  return [(name, _fact(values)) for name, values in found.items()]


def _fact(values: Mapping[str, Sequence[str]]) -> str:
  """The values of a fact, each with where it holds, where there are several."""
  if len(values) == 1:
    return next(iter(values))
  return '; '.join(
    ' '.join(filter(None, [value, f'({" and ".join(panels)})' if any(panels) else '']))
    for value, panels in values.items()
  )
