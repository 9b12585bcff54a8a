"""report.html: one page with everything in it, which needs no network."""

import json
import math
import os
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from posjax.experiment import colours
from posjax.experiment.axis_range import axis_range
from posjax.experiment.compare.origin import Origin, short, told
from posjax.experiment.compare.plots import mean_curve, trained_length
from posjax.experiment.compare.statistics import Interval
from posjax.experiment.compare.summary import Judged, Row, Summary
from posjax.experiment.compare.table import captions, costs, seeds

MANY = 8  # curves from which on each has a small plot of its own
ALIKE = 0.01  # costs that differ by a smaller share than this are not drawn
COSTS = {  # by key: the name of the axis, the title of the plot, and what a unit is
  'parameters': ('parameters', 'Unseen, by parameters', 1),
  'step_bytes': ('MB', 'Unseen, by memory of a step', 1e6),
  'tokens_per_second': ('tokens/s', 'Unseen, by speed', 1),
}


def write(path: Path, summary: Summary, made: Origin | None = None) -> None:
  """Writes the page, whole or not at all.

  Args:
    path: of the page.
    summary: of the grid.
    made: the command that made it, and what it shares; None where there is none.
  """
  template = resources.files('posjax.experiment.compare').joinpath('page.html').read_text('utf-8')
  # A scheme's line could hold '</script>'.
  data = json.dumps(content(summary, made), allow_nan=False).replace('<', '\\u003c')
  partial = path.with_name(path.name + '.partial')
  partial.write_text(template.replace('"DATA"', data), encoding='utf-8')
  os.replace(partial, path)


def content(summary: Summary, made: Origin | None = None) -> dict[str, Any]:
  """The content of the page as JSON; a number that there is not is null."""
  some = next(row.cells[0].result for row in summary.rows if row.cells)
  styles = colours.styles(dict.fromkeys(row.scheme for row in summary.rows))
  return {
    'short': short(summary, made),
    'made': told(summary, made),
    'rows': [_row(row, summary.baseline, styles[row.scheme]) for row in summary.rows],
    'panels': [_panel(name, summary, made) for name in _panel_names(summary)],
    'captions': captions(summary),
    'unit': summary.unit,
    'baseline': summary.baseline,
    'trained': trained_length(some),
    'evaluations': [
      {'name': name, 'label': heading} for name, heading in summary.evaluations.items()
    ],
    'lengths': sorted({length for row in summary.rows for length in row.by_length}),
    'lossUnit': some['unit'],
  }


def _row(row: Row, baseline: str, style: colours.Style) -> dict[str, Any]:
  return {
    'label': row.label,
    'panel': row.panel,
    'scheme': row.scheme,
    'colour': style.colour,
    'repeat': style.repeat,
    'axes': {key: str(value) for key, value in row.axes.items()},
    'seeds': seeds(row),
    'learned': row.learned == len(row.cells) > 0,
    'grey': row.unlearned,
    'trained': _plain_numbers(row.trained),
    'unseen': _plain_numbers(row.shown_unseen),
    'difference': _plain_numbers(row.difference),
    'verdict': 'baseline' if row.scheme == baseline else row.verdict,
    'note': row.note,
    'byEvaluation': {n: _plain_numbers(value) for n, value in row.shown_by_evaluation.items()},
    'byLength': {length: _plain_numbers(value) for length, value in _lengths(row).items()},
    'runs': [_run(row, each) for each in row.cells],
    'curve': [[step, *map(_rounded, values)] for step, *values in mean_curve(row.cells, 'curve')],
    'cost': costs(row),
  }


def _run(row: Row, each: Judged) -> dict[str, Any]:
  """One seed, for a dot of its own."""
  return {
    'seed': each.seed,
    'learned': each.learned,
    'unseen': each.unseen,
    'byLength': {length: each.by_evaluation.get(n) for length, n in row.names_by_length.items()},
  }


def _lengths(row: Row) -> dict[int, Interval | None]:
  """Quality by length; where nothing was learned, the bare means of all runs, to be drawn grey."""
  found = row.shown_by_evaluation
  return {length: found[name] for length, name in row.names_by_length.items()}


def _panel_names(summary: Summary) -> list[str]:
  return list(dict.fromkeys(row.panel for row in summary.rows))


def _panel(name: str, summary: Summary, made: Origin | None) -> dict[str, Any]:
  """How the rows with one set of axis values are drawn."""
  rows = [row for row in summary.rows if row.panel == name]
  best = summary.measure.best
  drawn = [key for key in COSTS if not _alike(_cost_values(rows, key))]
  return {
    'name': name,
    'many': sum(bool(row.cells) for row in rows) >= MANY,
    'byLength': _range([v for row in rows for v in _lengths(row).values()], _dots(rows), best),
    'unseen': _range([row.unseen for row in rows], [e.unseen for r in rows for e in r.cells], best),
    'costs': [
      {'key': key, 'name': COSTS[key][0], 'title': COSTS[key][1], 'scale': COSTS[key][2]}
      for key in drawn
    ],
    'alike': _told_alike(rows, [key for key in COSTS if key not in drawn]),
    'advice': advice(rows, summary, made),
  }


def _dots(rows: Sequence[Row]) -> list[float | None]:
  return [
    each.by_evaluation.get(name)
    for row in rows
    for name in row.names_by_length.values()
    for each in row.cells
  ]


def _range(
  intervals: Iterable[Interval | None], dots: Iterable[float | None], best: float | None
) -> tuple[float, float] | None:
  """The range of an axis that shows intervals and single seeds; None where there are none."""
  known = [each for each in intervals if each is not None]
  sure = [each for each in known if not math.isnan(each.low)]
  ends = [each.mean for each in known] + [end for each in sure for end in (each.low, each.high)]
  ends += [value for value in dots if value is not None]
  return axis_range(ends, [each.high - each.low for each in sure], best) if ends else None


def _cost_values(rows: Sequence[Row], key: str) -> list[float]:
  """A cost of the rows that a picture of it would show."""
  found = [costs(row) for row in rows if row.unseen is not None]
  return [cost[key] for cost in found if cost is not None]


def _alike(values: Sequence[float]) -> bool:
  """Whether costs have no range that could be drawn."""
  return not values or max(values) - min(values) < ALIKE * max(values)


def _told_alike(rows: Sequence[Row], keys: Iterable[str]) -> list[str]:
  """Sentences about costs that are not drawn."""
  told = []
  for key in keys:
    values, (unit, title, scale) = _cost_values(rows, key), COSTS[key]
    if values:
      middle = sum(values) / len(values) / scale
      shown = f'{middle:,.0f}' if middle >= 10 else f'{middle:.2g}'
      told.append(f'{title}: not drawn, as all have {shown} {unit}, to within 1 %.')
  return told


def advice(rows: Sequence[Row], summary: Summary, made: Origin | None = None) -> str:
  """A few sentences about the schemes of which no run has learned; '' where there is none.

  Args:
    rows: those that are drawn together.
    summary: of the grid, which says what it takes to have learned.
    made: where it comes from.
  """
  grey = [row for row in rows if row.unlearned]
  if not grey:
    return ''
  names = ', '.join(row.scheme for row in grey)
  everything = len(grey) == sum(bool(row.cells) for row in rows)
  whose = 'any scheme' if everything else names
  means = [row.trained.mean for row in grey if row.trained is not None]
  nearest = (max if summary.measure.higher else min)(means) if means else None
  reached = '' if nearest is None else f' The nearest mean of a scheme is {nearest:.4g}.'
  steps = None if made is None else made.config.get('steps')
  longer = '--config.steps' if steps is None else f'--config.steps={2 * steps} (it was {steps})'
  share = 'accuracy' if summary.measure.best is not None else 'share'
  return (
    f'No run of {whose} has learned what it was trained on ({summary.learned}), so the curves in '
    f'grey say nothing about positions.{reached} Train longer with {longer}, try another '
    f'--config.optimizer.learning_rate, or say with --config.compare.learned_{share} what is '
    'enough for you.'
  )


def _plain_numbers(value: Interval | None) -> list[float | None] | None:
  if value is None:
    return None
  return [None if math.isnan(number) else number for number in value[:3]]


def _rounded(value: float) -> float:
  return float(f'{value:.5g}')
