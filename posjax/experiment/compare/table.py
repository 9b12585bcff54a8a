"""The tables that a comparison prints."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.table import Table

from posjax.experiment.compare.statistics import EQUAL_LEVEL, LEVEL, Interval
from posjax.experiment.compare.summary import Row, Summary
from posjax.experiment.plain import console


def shown(value: Interval | None, signed: bool = False, unlearned: bool = False) -> str:
  """A mean with its interval, as '93.1 [90.0, 96.2]', or '93.1 (n = 1)' of one seed."""
  if value is None:
    return '-'
  sign = '+' if signed else ''
  mean = f'{value.mean:{sign}.{_digits(value)}f}'
  if unlearned:
    return f'{mean}*'
  if math.isnan(value.low):
    return f'{mean} (n = 1)'
  return f'{mean} [{value.low:{sign}.{_digits(value)}f}, {value.high:{sign}.{_digits(value)}f}]'


def _digits(value: Interval) -> int:
  return 1 if abs(value.mean) >= 10 else 2


class Sheet(NamedTuple):
  """A table, as a terminal and the page show it; the first column is the scheme."""

  title: str
  headings: list[str]
  rows: list[list[str]]


def print_tables(summary: Summary, more: Sequence[Sheet] = ()) -> None:
  """Prints the tables of a comparison, and a line for each run that failed."""
  terminal = console()
  if not terminal.is_terminal:
    terminal = console(width=200)  # a file has no width, and a cut table no use
  for sheet in (*sheets(summary), *more):
    table = Table(title=sheet.title, title_justify='left')
    for heading in sheet.headings:
      table.add_column(heading, justify='left' if heading in ('scheme', 'note') else 'right')
    for row in sheet.rows:
      table.add_row(*row)
    terminal.print(table)
  for line in captions(summary):
    terminal.print(line)
  for row in summary.rows:
    for seed, error in row.failed.items():
      terminal.print(f'failed: {row.label}, seed {seed}: {error}')


def captions(summary: Summary) -> list[str]:
  """How the numbers are to be read, in sentences."""
  better = 'higher' if summary.measure.higher else 'lower'
  return [
    f'Quality is {summary.unit}, {better} is better; unseen: the mean over evaluations beyond the '
    f'training data, such as longer ones. Brackets: {100 * LEVEL:g} % intervals over seeds '
    '(Student), no narrower than a spread of one answer allows, and of means and differences also '
    'over the held-out examples, where the lines say what leaving some out changes'
    f'{", and cut where such numbers end" if summary.measure.best is not None else ""}.',
    f'Learned: {summary.learned}. Runs that have not are marked *, and enter only the column '
    '"trained"; a number with * is the mean of the runs of a scheme of which none has learned.',
    f'Differences are to {summary.baseline}, over equal seeds. The verdict is better or worse '
    f'where the whole interval lies on that side of 0 ({better} is better), and unresolved where '
    f'it holds 0, or where one seed (n = 1) has no interval.{equal(summary)}',
    *([uncorrected(summary.uncorrected)] if summary.uncorrected else []),
    *filter(None, [summary.data]),
  ]


def equal(summary: Summary) -> str:
  """A sentence, with a space before it, about what counts as equal; '' without a margin."""
  if not summary.margin:
    return ''
  return (
    f' It is equal where the {100 * EQUAL_LEVEL:g} % interval lies between -{summary.margin:g} and '
    f'{summary.margin:g} (two one-sided tests).'
  )


def uncorrected(count: int) -> str:
  """A sentence about intervals of differences that are read together."""
  chance = 1 - LEVEL
  return (
    f'Intervals of differences that stand beside each other, uncorrected: {count}. Each misses the '
    f'truth with a chance of {100 * chance:.0f} %, so {chance * count:.2g} of them do on average.'
  )


def seeds(row: Row) -> str:
  """How many runs learned, of those that finished; and what is missing."""
  text = f'{row.learned}/{len(row.cells)}' + ('*' if row.learned < len(row.cells) else '')
  for count, word in ((len(row.failed), 'failed'), (row.missing, 'to do')):
    text += f', {count} {word}' if count else ''
  return text


def costs(row: Row) -> Mapping[str, float] | None:
  """Mean parameters, bytes of a step, tokens per second and seconds of a row; None if none ran."""
  names = ('parameters', 'step_bytes', 'tokens_per_second', 'seconds')
  count = len(row.cells)
  if not count:
    return None
  return {name: sum(each.result[name] for each in row.cells) / count for name in names}


def sheets(summary: Summary) -> list[Sheet]:
  """Quality and verdicts, quality by length or evaluation, and costs."""
  first = ['scheme', *summary.rows[0].axes]
  quality = ['learned', 'trained', 'unseen', f'minus {summary.baseline}', 'verdict', 'note']
  cost = ['parameters', 'memory of a step, MB', 'tokens/s', 's per run']
  by_evaluation = [*first, *summary.evaluations.values()]
  start = lambda row: [row.scheme, *(str(value) for value in row.axes.values())]
  return [
    Sheet(
      f'Quality: {summary.unit}',
      [*first, *quality],
      [[*start(row), *_quality(row, summary)] for row in summary.rows],
    ),
    Sheet(
      'By length or evaluation',
      by_evaluation,
      [
        [
          *start(row),
          *(
            shown(row.shown_by_evaluation.get(name), unlearned=row.unlearned)
            for name in summary.evaluations
          ),
        ]
        for row in summary.rows
      ],
    ),
    Sheet(
      'Cost of training', [*first, *cost], [[*start(row), *_costs(row)] for row in summary.rows]
    ),
  ]


def _quality(row: Row, summary: Summary) -> list[str]:
  difference = shown(row.difference, signed=True)
  return [
    seeds(row),
    shown(row.trained),
    shown(row.shown_unseen, unlearned=row.unlearned),
    'baseline' if row.scheme == summary.baseline else difference,
    row.verdict or '-',
    row.note[:80],
  ]


def _costs(row: Row) -> list[str]:
  cost = costs(row)
  if not cost:
    return ['-'] * 4
  return [
    f'{cost["parameters"]:,.0f}',
    f'{cost["step_bytes"] / 1e6:,.1f}',
    f'{cost["tokens_per_second"]:,.0f}',
    f'{cost["seconds"]:,.0f}',
  ]
