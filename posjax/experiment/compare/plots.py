"""Pictures of a comparison, as PNG and SVG: by length, by step, by seed, and against cost."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posjax.experiment import colours
from posjax.experiment.axis_range import axis_range
from posjax.experiment.compare.results import Line, judged
from posjax.experiment.compare.statistics import Interval
from posjax.experiment.compare.summary import Judged, Row, Summary
from posjax.experiment.compare.table import costs
from posjax.experiment.plain import in_picture

STYLES = ('-', '--', ':', '-.')  # of schemes that have the same colour
MARKERS = 'osD^'
WIDTH = 8.4  # inches
MANY = 8  # curves from which on each has a small plot of its own
COLUMNS = 4  # of small plots
ALIKE = 0.01  # costs that differ by a smaller share than this are not drawn
GREY = '#9a9aa2'  # of schemes of which no run has learned
COSTS = {  # by key: what is drawn along the axis, and what a unit of it is
  'parameters': ('parameters', 1.0),
  'step_bytes': ('memory of a step, MB', 1e6),
  'tokens_per_second': ('tokens per second', 1.0),
}
HOLLOW = {'marker': 'o', 'ls': '', 'color': 'gray', 'mfc': 'white', 'label': 'hollow: n = 1'}


def draw(folder: Path, summary: Summary) -> dict[str, list[Path]]:
  """Writes the pictures as .png and .svg; returns their paths by title."""
  figures = {
    'By length or evaluation': ('quality_by_length', _by_length(summary)),
    'Training loss by step': ('loss_by_step', _by_step(summary)),
    'Unseen: single seeds, mean and 95 % interval': ('quality_by_seed', _by_seed(summary)),
    'Unseen, by cost': ('quality_by_cost', _by_cost(summary)),
  }
  paths: dict[str, list[Path]] = {}
  for title, (name, figure) in figures.items():
    for axes in figure.axes:
      axes.grid(alpha=0.3)
      axes.spines[['top', 'right']].set_visible(False)
    paths[title] = [folder / f'{name}.{kind}' for kind in ('png', 'svg')]
    for path in paths[title]:
      figure.savefig(path, dpi=120)
  return paths


def panels(summary: Summary) -> dict[str, list[Row]]:
  """Rows by their axis values."""
  found = {}
  for row in summary.rows:
    found.setdefault(row.panel, []).append(row)
  return found


def mean_curve(cells: Sequence[Judged], name: str) -> list[tuple[int, float, float, float]]:
  """Points (step, mean, least, most) over seeds, where all of them have one."""
  curves = [dict(map(tuple, each.result[name])) for each in cells]
  steps = sorted(set.intersection(*map(set, curves))) if curves else []
  points = []
  for step in steps:
    values = [curve[step] for curve in curves]
    points.append((step, sum(values) / len(values), min(values), max(values)))
  return points


def trained_length(line: Line) -> int | None:
  """The length on which a run was trained; None where its evaluations have no length."""
  described = (line['evaluations'][name] for name in judged(line))
  lengths = [each['length'] for each in described if each['role'] == 'trained']
  return max((length for length in lengths if length is not None), default=None)


def cost_values(rows: Sequence[Row], key: str) -> list[float]:
  """A cost of the rows that a picture of it would show."""
  found = [costs(row) for row in rows if row.unseen is not None]
  return [cost[key] for cost in found if cost is not None]


def alike(rows: Sequence[Row], key: str) -> bool:
  """Whether a cost of the rows has no range that could be drawn."""
  values = cost_values(rows, key)
  return not values or max(values) - min(values) < ALIKE * max(values)


def _styles(summary: Summary) -> dict[str, dict]:
  """A colour and a line for each scheme, the same in all panels."""
  found = colours.styles(dict.fromkeys(row.scheme for row in summary.rows))
  return {
    scheme: {'color': style.colour, 'ls': STYLES[style.repeat % len(STYLES)]}
    for scheme, style in found.items()
  }


def _figure(heights: Sequence[float]):
  """A figure, and a part of it for each panel, one below the other."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(WIDTH, sum(heights) + 0.6), layout='constrained')
  parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
  return figure, [part for (part,) in parts]


def _curves(
  summary: Summary,
  across: str,
  curve: Callable[[Any, Row, dict[str, Any]], None],
  finish: Callable[[Any, list[Row]], None],
):
  """A figure of curves: all of a panel in one plot, or each in a small one where they are many.

  Args:
    summary: of the grid.
    across: what the horizontal axis has, in words.
    curve: draws one row, `(axes, row, style)`.
    finish: sets the axes of a panel, `(axes, rows)`.
  """
  found, styles = panels(summary), _styles(summary)
  drawn = {name: [row for row in rows if row.cells] for name, rows in found.items()}
  counts = {name: len(rows) if len(rows) >= MANY else 1 for name, rows in drawn.items()}
  lines = {name: -(-count // COLUMNS) for name, count in counts.items()}
  figure, parts = _figure([4.2 if counts[name] == 1 else 1.9 * lines[name] for name in drawn])
  for part, (name, rows) in zip(parts, drawn.items(), strict=True):
    part.suptitle(in_picture(name), fontsize=11)
    part.supxlabel(across, fontsize=10)
    if counts[name] == 1:
      axes = part.subplots()
      for row in rows:
        curve(axes, row, {**styles[row.scheme], 'label': in_picture(row.scheme)})
      finish(axes, rows)
      continue
    grid = part.subplots(lines[name], COLUMNS, sharex=True, sharey=True, squeeze=False)
    for axes, row in itertools.zip_longest(grid.flat, rows):
      if row is None:
        axes.set_axis_off()
        continue
      for other in rows:  # behind it
        curve(axes, other, {'color': '#dcdce0', 'ls': '-', 'behind': True})
      curve(axes, row, styles[row.scheme])
      axes.set_title(in_picture(row.scheme), fontsize=9)
      finish(axes, rows)
      axes.label_outer()
  _legend(figure)
  return figure


def _legend(figure) -> None:
  """One legend of all panels; what explains the others stands last."""
  known = {}
  for axes in figure.axes:
    handles, names = axes.get_legend_handles_labels()
    known |= dict(zip(names, handles, strict=True))
  if HOLLOW['label'] in known:
    known[HOLLOW['label']] = known.pop(HOLLOW['label'])
  if known:
    place = {'loc': 'outside lower center', 'ncols': 3, 'frameon': False, 'fontsize': 9}
    figure.legend(known.values(), known, **place)


def _limits(summary: Summary, intervals: Sequence[Interval | None], dots: Sequence[float | None]):
  """The range of an axis that shows intervals and single seeds; None where there are none."""
  known = [each for each in intervals if each is not None]
  sure = [each for each in known if not math.isnan(each.low)]
  ends = [each.mean for each in known] + [end for each in sure for end in (each.low, each.high)]
  ends += [value for value in dots if value is not None]
  widths = [each.high - each.low for each in sure]
  return axis_range(ends, widths, summary.measure.best) if ends else None


def _by_length(summary: Summary):
  """Quality by length; by evaluation, where evaluations have no length."""
  trained = trained_length(next(row.cells[0].result for row in summary.rows if row.cells))
  lengths = sorted({length for row in summary.rows for length in row.by_length})
  names = [name for row in summary.rows for name in row.names_by_length.values()]
  names = list(dict.fromkeys(names)) if lengths else list(summary.evaluations)

  def curve(axes, row: Row, style: dict[str, Any]) -> None:
    by_name = {name: length for length, name in row.names_by_length.items()}
    at = by_name if lengths else {name: summary.evaluations[name] for name in names}
    _quality_curve(axes, row, at, style if lengths else {**style, 'ls': ''})

  def finish(axes, rows: list[Row]) -> None:
    values = [row.shown_by_evaluation.get(name) for row in rows for name in names]
    seeds = [each.by_evaluation.get(n) for row in rows for n in names for each in row.cells]
    limits = _limits(summary, values, seeds)
    if limits:
      axes.set_ylim(*limits)
    axes.set(ylabel=in_picture(summary.unit))
    if lengths:
      axes.axvline(trained, color='gray', ls='--', lw=1)
      axes.set_xscale('log', base=2)
      axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)  # one length alone has no width
      axes.set_xticks(lengths, [str(length) for length in lengths])

  across = 'length (dashed line: trained; bands: 95 %)' if lengths else 'by evaluation'
  return _curves(summary, across, curve, finish)


def _quality_curve(axes, row: Row, at: Mapping[str, Any], style: dict[str, Any]) -> None:
  """The means of a row with their intervals, and single seeds; grey where nothing was learned."""
  behind = style.pop('behind', False)
  if row.unlearned and not behind:
    style = {**style, 'color': GREY}
  shown = {name: row.shown_by_evaluation.get(name) for name in at}
  points = [(at[name], value) for name, value in shown.items() if value is not None]
  if not points:
    return
  x, y = [place for place, _ in points], [value for _, value in points]
  axes.plot(x, [value.mean for value in y], marker='' if behind else 'o', ms=4, **style)
  if behind:
    return
  single = [(place, value.mean) for place, value in points if value.count == 1]
  if single:
    axes.plot(*zip(*single, strict=True), 'o', ms=4, color=style['color'], mfc='white')
    axes.plot([], [], **HOLLOW)
  if style['ls'] and not any(math.isnan(value.low) for value in y):
    low, high = [value.low for value in y], [value.high for value in y]
    axes.fill_between(x, low, high, color=style['color'], alpha=0.12, lw=0)
  cells = [each for each in row.cells if each.learned or row.unlearned]
  if len(cells) > 1:
    dots = [(at[n], each.by_evaluation[n]) for each in cells for n in at if n in each.by_evaluation]
    dots = [(place, value) for place, value in dots if value is not None]
    axes.plot(*zip(*dots, strict=True), '.', ms=3, alpha=0.6, color=style['color'])


def _by_step(summary: Summary):
  units = {each.result['unit'] for row in summary.rows for each in row.cells}

  def curve(axes, row: Row, style: dict[str, Any]) -> None:
    behind, points = style.pop('behind', False), mean_curve(row.cells, 'curve')
    points = points[:: 5 if behind else 1]
    if points:
      step, mean, least, most = zip(*points, strict=True)
      axes.plot(step, mean, **style)
      if not behind:
        axes.fill_between(step, least, most, color=style['color'], alpha=0.12, lw=0)

  def finish(axes, rows: list[Row]) -> None:
    axes.set(ylabel=in_picture(', '.join(sorted(units))), yscale='log')

  return _curves(summary, 'step (bands: all seeds)', curve, finish)


def _by_seed(summary: Summary):
  """The mean over unseen evaluations: a line for each scheme, with each of its seeds."""
  found, styles = panels(summary), _styles(summary)
  figure, parts = _figure([0.8 + 0.3 * len(rows) for rows in found.values()])
  for part, (name, rows) in zip(parts, found.items(), strict=True):
    part.suptitle(in_picture(name), fontsize=11)
    axes = part.subplots()
    for y, row in enumerate(rows):
      color = GREY if row.unlearned else styles[row.scheme]['color']
      for each in row.cells if len(row.cells) > 1 else ():
        if each.unseen is not None:
          filled = color if each.learned else 'white'
          axes.plot(each.unseen, y, 'o', ms=4, color=color, mfc=filled, alpha=0.6)
      if row.shown_unseen is not None:
        _point(axes, row.shown_unseen, float(y), {'fmt': 'o', 'color': color}, across=True)
    seeds = [each.unseen for row in rows for each in row.cells]
    limits = _limits(summary, [row.shown_unseen for row in rows], seeds)
    if limits:
      axes.set_xlim(*limits)
    axes.set_yticks(range(len(rows)), [in_picture(row.scheme) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel=in_picture(summary.unit))
  _legend(figure)
  return figure


def _by_cost(summary: Summary):
  """Unseen quality against each cost that differs between the schemes of a panel."""
  found, styles = panels(summary), _styles(summary)
  figure, parts = _figure([3.2] * len(found))
  for part, (name, rows) in zip(parts, found.items(), strict=True):
    part.suptitle(in_picture(name), fontsize=11)
    keys = [key for key in COSTS if not alike(rows, key)]
    grid = part.subplots(1, max(len(keys), 1), sharey=True, squeeze=False)[0]
    limits = _limits(summary, [row.unseen for row in rows], [])
    for axes, key in itertools.zip_longest(grid, keys):
      if key is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, 'no cost differs', ha='center')
        continue
      title, scale = COSTS[key]
      for row in rows:
        cost = costs(row)
        if cost is not None and row.unseen is not None:
          marker = MARKERS[STYLES.index(styles[row.scheme]['ls'])]
          style = {'fmt': marker, 'color': styles[row.scheme]['color']}
          _point(axes, row.unseen, cost[key] / scale, {**style, 'label': in_picture(row.scheme)})
      axes.set(xlabel=title)
      axes.locator_params(axis='x', nbins=4)
      if limits:
        axes.set_ylim(*limits)
    grid[0].set(ylabel=in_picture(summary.unit))
  _legend(figure)
  return figure


def _point(axes, value: Interval, at: float, style: dict[str, Any], across: bool = False) -> None:
  """A mean with its interval; hollow where there is one seed, which would look like certainty."""
  x, y = (value.mean, at) if across else (at, value.mean)
  if math.isnan(value.low):
    axes.errorbar(x, y, mfc='white', **style)
    if value.count == 1:
      axes.plot([], [], **HOLLOW)
  else:
    half = [[value.mean - value.low], [value.high - value.mean]]
    axes.errorbar(x, y, capsize=3, **{'xerr' if across else 'yerr': half}, **style)
