"""A report as one page of text."""

import collections
from collections.abc import Iterable, Sequence

from posjax.check import cases
from posjax.check.report import Report
from posjax.check.speeds import Speed
from posjax.check.values import Result


def text(report: Report) -> str:
  """The page."""
  parts = [_device(report), _values(report), _collectives(report), _speeds(report)]
  parts.append(_closing(report))
  return '\n\n'.join(part for part in parts if part)


def _device(report: Report) -> str:
  facts = report.facts
  versions = ', '.join(f'{name} {version}' for name, version in facts['versions'].items())
  names = facts['devices']
  capability = f', compute capability {facts["capability"]}' if facts['capability'] else ''
  lines = [
    f'{versions}; {facts["system"]}, processors: {facts["processors"]}',
    f'{facts["platform"]}: {len(names)} x {names[0]}{capability}',
  ]
  lines[1] += f', {version}' if (version := facts['platform_version']) != facts['platform'] else ''
  lines += [f'{name} is not here: {why}.' for name, why in report.absent.items()]
  return '\n'.join(lines)


def _values(report: Report) -> str:
  widths, dtypes = ({getattr(x.case, name) for x in report.results} for name in ('width', 'dtype'))
  title = (
    f'Values and gradients of {cases.TOKENS} tokens, beside dense attention in float32: the '
    f'largest error, as a\nshare of what rounding allows, so that above 1 is wrong; and how many '
    f'cases were right.\nHead widths: {_listed(map(str, sorted(widths)))}; in '
    f'{_listed(sorted(dtypes))}.'
  )
  kinds = list(dict.fromkeys(x.case.kind for x in report.results))
  rows = [
    [f'{kind.title} ({kind.scheme})', *(_cell(report, name, kind) for name in report.present)]
    for kind in kinds
  ]
  return f'{title}\n\n{_table([["", *report.present], *rows])}{_notes(report)}'


def _cell(report: Report, name: str, kind: cases.Kind) -> str:
  found = [x for x in report.results if (x.implementation, x.case.kind) == (name, kind)]
  compared = [x for x in found if x.status in ('correct', 'wrong', 'ended')]
  if not compared:
    return next((x.status for x in found if x.status != 'left out'), 'left out')
  correct = sum(x.status == 'correct' for x in compared)
  counted = f'{correct}/{len(compared)}'
  if any(x.status == 'ended' for x in compared):
    return f'ended {counted}'
  share = max(x.error / x.case.bound for x in compared if x.error is not None)
  return f'{share:.2f} {counted}' if correct == len(compared) else f'WRONG {counted}'


def _notes(report: Report) -> str:
  """The meaning of the table's words, and the reasons for them."""
  notes = []
  by_status = lambda status: [x for x in report.results if x.status == status]
  if by_status('reference'):
    notes.append('reference: dense in float32 on a CPU is what the others are compared with.')
  for name in report.present:
    reasons: dict[str, list[cases.Case]] = {}
    for x in by_status('tiles'):
      if x.implementation == name:
        reasons.setdefault(x.detail, []).append(x.case)
    notes += [f'tiles: {name} leaves to blockwise {_of(each)}: {w}.' for w, each in reasons.items()]
  if missing := by_status('left out'):
    notes.append(f'left out for lack of time: {", ".join(_left_out(missing))}.')
  return ''.join(f'\n{note}' for note in ['', *notes]) if notes else ''


def _listed(words: Iterable[str]) -> str:
  *others, last = words
  return f'{", ".join(others)} and {last}' if others else last


def _of(found: Sequence[cases.Case]) -> str:
  """The kinds of some cases, and their dtype if they have one."""
  titles = dict.fromkeys(case.kind.title for case in found)
  which = 'all kinds' if len(titles) == len(cases.KINDS) else ', '.join(titles)
  dtypes = {case.dtype for case in found}
  return f'{which} in {dtypes.pop()}' if len(dtypes) == 1 else which


def _left_out(missing: Iterable[Result]) -> list[str]:
  counts = collections.Counter(x.implementation for x in missing)
  return [f'{count} cases of {name}' for name, count in counts.items()]


def _collectives(report: Report) -> str:
  if not report.collectives:
    return ''
  title = f'Collectives between {len(report.facts["devices"])} devices: what each device receives.'
  rows = [
    [x.name, f'{x.received / 2**20:,.0f} MiB', f'{x.received / x.seconds / 1e9:,.1f} GB/s']
    for x in report.collectives
  ]
  return f'{title}\n\n{_table(rows)}'


def _speeds(report: Report) -> str:
  if not report.speeds:
    return ''
  dtype = 'float32' if report.facts['platform'] == 'cpu' else 'bfloat16'
  title = (
    f'Causal attention with its gradients, 1 row, 8 heads of 64, {dtype}: the median '
    f'time, and\nthe memory held beside arguments and results.'
  )
  rows, timed = [], list(dict.fromkeys(x.implementation for x in report.speeds))
  for scheme, length in dict.fromkeys((x.scheme, x.length) for x in report.speeds):
    found = {x.implementation: x for x in report.speeds if (x.scheme, x.length) == (scheme, length)}
    cells = [_speed(found.get(name)) for name in timed]
    rows.append([scheme, f'{length:,}', *cells, _default(report, list(found.values()))])
  return f'{title}\n\n{_table([["", "tokens", *timed, "default"], *rows])}'


def _speed(speed: Speed | None) -> str:
  if speed is None:
    return '-'
  if not speed.seconds:
    return 'ended' if speed.ended else speed.why.partition(':')[0]
  milliseconds = 1000 * speed.median
  digits = 1 if milliseconds < 100 else 0
  memory = '' if speed.temporary is None else f', {speed.temporary / 2**20:,.0f} MiB'
  return f'{milliseconds:,.{digits}f} ms{memory}'


def _default(report: Report, found: Sequence[Speed]) -> str:
  """The implementation that attention takes by default, and whether that was the fastest."""
  chosen = next((x.chosen for x in found if x.chosen), '-')
  taken = next((x for x in found if x.seconds and x.implementation == chosen), None)
  if taken is None:
    return chosen
  faster = report.faster(taken)
  if faster is None:
    return f'{chosen}, the fastest'
  return f'{chosen}, {taken.median / faster.median:.1f} x {faster.implementation}'


def _closing(report: Report) -> str:
  if report.problems:
    lines = ['Problems:', *(f'- {line}' for line in report.problems), report.advice()]
  else:
    count = sum(x.status == 'correct' for x in report.results)
    lines = [f'Nothing is wrong; compared cases: {count}.', report.advice()]
  lines.append(f'{report.seconds:.0f} seconds.')
  return '\n'.join(filter(None, lines))


def _table(rows: Sequence[Sequence[str]]) -> str:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  line = lambda row: '  '.join(
    cell.ljust(width) if i == 0 or i == len(row) - 1 else cell.rjust(width)
    for i, (cell, width) in enumerate(zip(row, widths, strict=True))
  )
  return '\n'.join(line(row).rstrip() for row in rows)
