"""Pictures of a comparison, as PNG and SVG: by length, by step, and against cost."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posjax.experiment import colours
from posjax.experiment.compare.lines import Line, judged
from posjax.experiment.compare.statistics import Interval
from posjax.experiment.compare.summary import Judged, Row, Summary
from posjax.experiment.compare.table import costs
from posjax.experiment.plain import in_picture

STYLES = ('-', '--', ':', '-.')  # of schemes that have the same colour
MARKERS = 'osD^'
NAMES = ('quality_by_length', 'loss_by_step', 'quality_by_cost')
HOLLOW = {'marker': 'o', 'ls': '', 'color': 'gray', 'mfc': 'white', 'label': 'hollow: n = 1'}


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


def _panels(summary: Summary) -> dict[str, list[Row]]:
  """Rows by their axis values."""
  panels = {}
  for row in summary.rows:
    panels.setdefault(row.panel, []).append(row)
  return panels


def _styles(summary: Summary) -> dict[str, dict]:
  """A colour and a line for each scheme, the same in all panels."""
  found = colours.styles(dict.fromkeys(row.scheme for row in summary.rows))
  return {
    scheme: {'color': style.colour, 'ls': STYLES[style.repeat % len(STYLES)]}
    for scheme, style in found.items()
  }


def _figure(rows: int, columns: int, width: float, height: float):
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width * columns, height * rows), layout='constrained')
  return figure, figure.subplots(rows, columns, squeeze=False)


def _grid(panels: Mapping[str, list[Row]]):
  """A figure with axes for each panel, three in a row."""
  if len(panels) == 1:
    figure, axes = _figure(1, 1, 8.0, 4.5)
  else:
    columns = min(3, len(panels))
    figure, axes = _figure(-(-len(panels) // columns), columns, 4.4, 3.4)
  for spare in axes.flat[len(panels) :]:
    spare.set_axis_off()
  return figure, dict(zip(panels, axes.flat, strict=False))


def trained_length(line: Line) -> int | None:
  """The length on which a run was trained; None where its evaluations have no length."""
  described = (line['evaluations'][name] for name in judged(line))
  lengths = [each['length'] for each in described if each['role'] == 'trained']
  return max((length for length in lengths if length is not None), default=None)


def _lengths(summary: Summary):
  """Quality by length; by evaluation, where evaluations have no length."""
  panels, styles = _panels(summary), _styles(summary)
  figure, places = _grid(panels)
  trained = trained_length(next(row.cells[0].result for row in summary.rows if row.cells))
  lengths = sorted({length for row in summary.rows for length in row.by_length})
  for panel, axes in places.items():
    for row in panels[panel]:
      if lengths:
        _length_curve(axes, row.by_length, row, styles[row.scheme])
      else:
        heads = {heading: row.by_evaluation.get(n) for n, heading in summary.evaluations.items()}
        _length_curve(axes, heads, row, {**styles[row.scheme], 'ls': ''})
    if lengths:
      axes.axvline(trained, color='gray', ls='--', lw=1)
      axes.set_xscale('log', base=2)
      axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)  # one length alone has no width
      axes.set_xticks(lengths, [str(length) for length in lengths])
      axes.set(xlabel='length')
    axes.set(title=in_picture(panel), ylabel=in_picture(summary.unit))
    _limit(axes, summary)
  told = 'by length (dashed line: trained; bands: 95 %)' if lengths else 'by evaluation'
  _finish(figure, told)
  return figure


def _limit(axes, summary: Summary) -> None:
  """From 0 to the best number, where there is one; what lies on an end is drawn whole."""
  best = summary.measure.best
  if best is not None:
    axes.set_ylim(0, best)
    for line in axes.lines:
      if len(line.get_xdata()):  # a line of the legend alone has no extent
        line.set_clip_on(False)


def _length_curve(
  axes, values: Mapping[Any, Interval | None], row: Row, style: dict[str, Any]
) -> None:
  points = [(length, value) for length, value in values.items() if value is not None]
  if not points:
    return
  x, y = [length for length, _ in points], [value for _, value in points]
  axes.plot(x, [value.mean for value in y], 'o', ms=4, label=in_picture(row.scheme), **style)
  single = [(length, value.mean) for length, value in points if value.count == 1]
  if single:
    axes.plot(*zip(*single, strict=True), 'o', ms=4, color=style['color'], mfc='white')
    axes.plot([], [], **HOLLOW)
  if style['ls'] and not any(math.isnan(value.low) for value in y):
    low, high = [value.low for value in y], [value.high for value in y]
    axes.fill_between(x, low, high, color=style['color'], alpha=0.12, lw=0)


def _steps(summary: Summary):
  panels, styles = _panels(summary), _styles(summary)
  figure, places = _grid(panels)
  units = {each.result['unit'] for row in summary.rows for each in row.cells}
  for panel, axes in places.items():
    for row in panels[panel]:
      points = mean_curve(row.cells, 'curve')
      if points:
        step, mean, least, most = zip(*points, strict=True)
        style = styles[row.scheme]
        axes.plot(step, mean, label=in_picture(row.scheme), **style)
        axes.fill_between(step, least, most, color=style['color'], alpha=0.12, lw=0)
    unit = in_picture(', '.join(sorted(units)))
    axes.set(title=in_picture(panel), xlabel='step', ylabel=unit, yscale='log')
  _finish(figure, 'training (bands: all seeds)')
  return figure


def _cost(summary: Summary):
  panels, styles = _panels(summary), _styles(summary)
  names = {'parameters': 1.0, 'step_bytes': 1e6, 'tokens_per_second': 1.0}
  labels = ('parameters', 'memory of a step, MB', 'tokens per second')
  figure, grid = _figure(len(panels), 3, 4.4, 4.5 if len(panels) == 1 else 3.4)
  for line, (panel, rows) in zip(grid, panels.items(), strict=True):
    for axes, (name, scale), label in zip(line, names.items(), labels, strict=True):
      for row in rows:
        _point(axes, row, name, scale, styles[row.scheme])
      axes.set(xlabel=label)
      axes.locator_params(axis='x', nbins=4)
      _limit(axes, summary)
    line[0].set(title=in_picture(panel), ylabel=in_picture(summary.unit))
  _finish(figure, 'unseen')
  return figure


def _point(axes, row: Row, name: str, scale: float, style: dict) -> None:
  cost = costs(row)
  if cost is None or row.unseen is None:
    return
  x, mean = cost[name] / scale, row.unseen.mean
  marker = MARKERS[STYLES.index(style['ls'])]
  style = {'fmt': marker, 'label': in_picture(row.scheme), 'color': style['color']}
  if row.unseen.count == 1:  # a bar of no length would look like certainty
    axes.errorbar(x, mean, mfc='white', **style)
    axes.plot([], [], **HOLLOW)
  else:
    half = [[mean - row.unseen.low], [row.unseen.high - mean]]
    axes.errorbar(x, mean, yerr=half, capsize=3, **style)


def _finish(figure, title: str) -> None:
  """A title, and one legend of all panels."""
  figure.suptitle(title, fontsize=11)
  known = {}
  for axes in figure.axes:
    handles, names = axes.get_legend_handles_labels()
    known |= dict(zip(names, handles, strict=True))
  single = HOLLOW['label']
  if single in known:  # what explains the others stands last
    known[single] = known.pop(single)
  if known:
    figure.legend(
      known.values(), known, loc='outside lower center', ncols=3, frameon=False, fontsize=8
    )
