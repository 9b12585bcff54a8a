"""report.html: one page with everything in it, which needs no network."""

import json
import math
import os
from importlib import resources
from pathlib import Path
from typing import Any

from posjax.experiment.compare.plots import mean_curve, trained_length
from posjax.experiment.compare.statistics import Interval
from posjax.experiment.compare.summary import Row, Summary
from posjax.experiment.compare.table import captions, costs, seeds


def write(path: Path, summary: Summary) -> None:
  """Writes the page, whole or not at all.

  Args:
    path: of the page.
    summary: of the grid.
  """
  template = resources.files('posjax.experiment.compare').joinpath('page.html').read_text('utf-8')
  # A scheme's line could hold '</script>'.
  data = json.dumps(content(summary), allow_nan=False).replace('<', '\\u003c')
  partial = path.with_name(path.name + '.partial')
  partial.write_text(template.replace('"DATA"', data), encoding='utf-8')
  os.replace(partial, path)


def content(summary: Summary) -> dict[str, Any]:
  """The content of the page as JSON; a number that there is not is null."""
  some = next(row.cells[0].result for row in summary.rows if row.cells)
  return {
    'facts': _facts(summary),
    'rows': [_row(row, summary.baseline) for row in summary.rows],
    'captions': captions(summary),
    'unit': summary.unit,
    'best': summary.measure.best,
    'baseline': summary.baseline,
    'trained': trained_length(some),
    'evaluations': [
      {'name': name, 'label': heading} for name, heading in summary.evaluations.items()
    ],
    'lengths': sorted({length for row in summary.rows for length in row.by_length}),
    'lossUnit': some['unit'],
    'device': some['device'],
    'versions': some['versions'],
  }


def _facts(summary: Summary) -> dict[str, str]:
  """The facts on which all runs agree."""
  every = [each.result['facts'].items() for row in summary.rows for each in row.cells]
  return {name: value for name, value in every[0] if all((name, value) in one for one in every)}


def _row(row: Row, baseline: str) -> dict[str, Any]:
  return {
    'label': row.label,
    'panel': row.panel,
    'scheme': row.scheme,
    'axes': {key: str(value) for key, value in row.axes.items()},
    'seeds': seeds(row),
    'learned': row.learned == len(row.cells) > 0,
    'trained': _plain_numbers(row.trained),
    'unseen': _plain_numbers(row.unseen),
    'difference': _plain_numbers(row.difference),
    'verdict': 'baseline' if row.scheme == baseline else row.verdict,
    'note': row.note,
    'byEvaluation': {name: _plain_numbers(value) for name, value in row.by_evaluation.items()},
    'byLength': {length: _plain_numbers(value) for length, value in row.by_length.items()},
    'curve': [[step, *map(_rounded, values)] for step, *values in mean_curve(row.cells, 'curve')],
    'cost': costs(row),
  }


def _plain_numbers(value: Interval | None) -> list[float | None] | None:
  if value is None:
    return None
  return [None if math.isnan(number) else number for number in value[:3]]


def _rounded(value: float) -> float:
  return float(f'{value:.5g}')
