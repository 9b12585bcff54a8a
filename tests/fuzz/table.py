"""The table of classes and areas, and the list of the cases that must not be."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.judge import CLASSES, FAULTS

NAMES = {
  'refused': 'refused',
  'correct': 'accepted and correct',
  'raw': 'raw',
  'wrong': 'silently wrong',
  'hang': 'hang',
}


class Row(NamedTuple):
  """One case that is over."""

  area: str
  number: int
  title: str
  kind: str
  detail: str

  @property
  def name(self) -> str:
    return f'{self.area}:{self.number}'


def read(area: str, path: Path) -> list[Row]:
  """The cases that are over, from the file of a worker."""
  titles, rows = {}, []
  for row in map(json.loads, path.read_text().splitlines()) if path.exists() else ():
    if 'begun' in row:
      titles[row['begun']] = row['title']
    elif 'over' in row:
      number = row['over']
      rows.append(Row(area, number, titles[number], row['kind'], row['detail']))
  return rows


def counts(rows: Iterable[Row]) -> str:
  """Cases by area and class, as a table in Markdown."""
  rows = list(rows)
  areas = [*dict.fromkeys(row.area for row in rows), 'all']
  found = Counter((area, row.kind) for row in rows for area in (row.area, 'all'))
  lines = [
    f'| area | cases | {" | ".join(NAMES.values())} |',
    f'| --- | {" | ".join(["---:"] * (len(CLASSES) + 1))} |',
  ]
  for area in areas:
    numbers = [found[area, kind] for kind in CLASSES]
    lines.append(f'| {area} | {sum(numbers)} | {" | ".join(map(str, numbers))} |')
  return '\n'.join(lines)


def faults(rows: Iterable[Row]) -> str:
  """The cases of the last three classes: those with one cause together, the most common first."""
  groups = defaultdict(list)
  for row in rows:
    if row.kind in FAULTS:
      groups[row.area, row.kind, cause(row)].append(row)
  if not groups:
    return 'No case is raw, silently wrong or hangs.'
  lines = []
  for (area, kind, _), group in sorted(groups.items(), key=lambda item: -len(item[1])):
    first = group[0]
    lines.append(f'- {len(group)} x {NAMES[kind]} in {area}: `{first.title}`: {first.detail}')
    others = ', '.join(row.name for row in group)
    lines.append(f'  {others}')
  return '\n'.join(lines)


def cause(row: Row) -> str:
  """What cases of one cause have in common: the place of the error, or the form of the call."""
  found = re.search(r'[\w/]+\.py:\d+', row.detail)
  if found:
    return found.group()
  if row.detail.startswith('accepted, but'):
    last = re.split(r'[(,]', row.title)[-1]
    return f'{row.title.partition("(")[0].rpartition(".")[2]} {re.sub(r"-?[0-9.]+", "N", last)}'
  return re.sub(r"'[^']*'|-?[0-9.]+(e[-+]?[0-9]+)?", 'N', row.detail)[:60]
