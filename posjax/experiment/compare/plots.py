"""Pictures of a comparison, as PNG and SVG: by length, by step, and against cost."""

import math
from collections.abc import Sequence
from pathlib import Path

from posjax.experiment.compare.summary import Judged, Row, Summary
from posjax.experiment.compare.table import costs

STYLES = ('-', '--', ':', '-.')  # for more rows than colours
NAMES = ('quality_by_length', 'loss_by_step', 'quality_by_cost')


def draw(folder: Path, summary: Summary) -> list[Path]:
  """Writes the three pictures, each as .png and .svg.

  Args:
    folder: to write to.
    summary: of the grid.
  """
  figures = (_lengths(summary), _steps(summary), _cost(summary))
  paths = []
  for name, figure in zip(NAMES, figures, strict=True):
    for axes in figure.axes:
      axes.grid(alpha=0.3)
      axes.spines[['top', 'right']].set_visible(False)
    for kind in ('png', 'svg'):
      paths.append(folder / f'{name}.{kind}')
      figure.savefig(paths[-1], dpi=120)
  return paths


def mean_curve(cells: Sequence[Judged], name: str) -> list[tuple[int, float, float, float]]:
  """Points (step, mean, least, most) over seeds, where all of them have one."""
  curves = [dict(map(tuple, each.result[name])) for each in cells]
  steps = sorted(set.intersection(*map(set, curves))) if curves else []
  points = []
  for step in steps:
    values = [curve[step] for curve in curves]
    points.append((step, sum(values) / len(values), min(values), max(values)))
  return points


def _figure(columns: int, width: float):
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, 4.5), layout='constrained')
  return figure, figure.subplots(1, columns)


def _style(index: int) -> dict:
  return {'color': f'C{index % 10}', 'ls': STYLES[index // 10 % len(STYLES)]}


def _lengths(summary: Summary):
  figure, axes = _figure(1, 8.0)
  for index, row in enumerate(summary.rows):
    points = [(length, value) for length, value in row.by_length.items() if value is not None]
    if not points:
      continue
    x, y = [length for length, _ in points], [value for _, value in points]
    means = [value.mean for value in y]
    axes.plot(x, means, 'o', ms=4, label=row.label, **_style(index))
    if not any(math.isnan(value.low) for value in y):
      low, high = [value.low for value in y], [value.high for value in y]
      axes.fill_between(x, low, high, color=f'C{index % 10}', alpha=0.12, lw=0)
  longest = next(row.cells[0].result['scores'][0]['length'] for row in summary.rows if row.cells)
  axes.axvline(longest, color='gray', ls='--', lw=1)
  lengths = sorted({length for row in summary.rows for length in row.by_length})
  axes.set_xscale('log', base=2)
  axes.set_xticks(lengths, [str(length) for length in lengths])
  title = 'by length (dashed line: trained; bands: 95 %)'
  axes.set(title=title, xlabel='length', ylabel=summary.unit)
  if summary.exact:
    axes.set_ylim(-3, 103)
  _legend(axes)
  return figure


def _steps(summary: Summary):
  figure, axes = _figure(1, 8.0)
  for index, row in enumerate(summary.rows):
    points = mean_curve(row.cells, 'curve')
    if points:
      step, mean, least, most = zip(*points, strict=True)
      axes.plot(step, mean, label=row.label, **_style(index))
      axes.fill_between(step, least, most, color=f'C{index % 10}', alpha=0.12, lw=0)
  units = {each.result['unit'] for row in summary.rows for each in row.cells}
  axes.set(title='training (bands: all seeds)', xlabel='step', ylabel=', '.join(sorted(units)))
  axes.set_yscale('log')
  _legend(axes)
  return figure


def _cost(summary: Summary):
  figure, columns = _figure(3, 13.0)
  names = {'parameters': 1.0, 'step_bytes': 1e6, 'tokens_per_second': 1.0}
  labels = ('parameters', 'memory of a step, MB', 'tokens per second')
  for axes, (name, scale), label in zip(columns, names.items(), labels, strict=True):
    for index, row in enumerate(summary.rows):
      _point(axes, row, name, scale, index)
    axes.set(xlabel=label, title='unseen lengths')
    axes.locator_params(axis='x', nbins=4)
    if summary.exact:
      axes.set_ylim(-3, 103)
  columns[0].set_ylabel(summary.unit)
  figure.legend(
    *columns[0].get_legend_handles_labels(),
    loc='outside lower center',
    ncols=4,
    frameon=False,
    fontsize=8,
  )
  return figure


def _point(axes, row: Row, name: str, scale: float, index: int) -> None:
  cost = costs(row)
  if cost is None or row.unseen is None:
    return
  x, mean = cost[name] / scale, row.unseen.mean
  half = 0.0 if math.isnan(row.unseen.low) else row.unseen.high - mean
  marker = 'osD^'[index // 10 % 4]
  axes.errorbar(x, mean, yerr=half, fmt=marker, label=row.label, color=f'C{index % 10}', capsize=3)


def _legend(axes) -> None:
  if axes.get_legend_handles_labels()[0]:
    axes.legend(frameon=False, fontsize=8)
