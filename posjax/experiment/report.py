"""The end of a run: a table of its evaluations for the terminal, results.json and report.png."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from posjax.experiment.axis_range import axis_range
from posjax.experiment.colours import colour
from posjax.experiment.evaluation import BEYOND, Score, described, finite, plain, unseen
from posjax.experiment.metrics import windows
from posjax.experiment.plain import console, in_picture
from posjax.experiment.task import Evaluation, Metric, Task

FILES = {
  'report.png': 'pictures',
  'results.json': 'scores',
  'metrics.jsonl': 'losses',
  'tensorboard': 'TensorBoard',
  'checkpoints': 'checkpoints',
  'config.json': 'config',
}
CURVES = 12  # at most in a picture, and ticks of an axis
NORMAL = 1.96  # standard errors to either side of a 95 % interval


def results(task: Task, scores: Mapping[str, Score], sample: str) -> dict[str, Any]:
  """The end of a run, for results.json; non-finite values become null."""
  arrays = {
    name: {metric: finite(array.tolist()) for metric, array in score.arrays.items()}
    for name, score in scores.items()
  }
  return {
    'evaluations': described(task),
    'scores': {name: plain(score) for name, score in scores.items()},
    'unseen': finite(unseen(task.evaluations, scores)),
    'arrays': arrays,
    'sample': sample,
  }


def computed(computing: Mapping[str, Any]) -> str:
  """The dtype and the attention of a run, as of `run.computing`, in a few words.

  Example:
    >>> computed({'dtype': 'bfloat16', 'attention': {'asked': None, 'chosen': ['dense']}})
    'bfloat16, dense attention'
  """
  chosen, asked = computing['attention']['chosen'], computing['attention']['asked']
  words = f'{" and ".join(chosen)} attention' if chosen else ''
  words += f' for {asked}' if asked is not None and chosen != [asked] else ''
  return ', '.join(filter(None, (computing['dtype'], words)))


def introduce(
  task: Task, scheme: str, params: Any, computing: Mapping[str, Any], workdir: Path
) -> None:
  """Says what is about to be trained, on what, and how, as of `run.computing`."""
  size = sum(leaf.size for leaf in jax.tree.leaves(params))
  facts = {'scheme': scheme, 'parameters': f'{size:,}', 'computed in': computed(computing)}
  facts |= {**task.facts, 'work folder': workdir}
  for name, value in facts.items():
    print(f'{name:>16}  {value}')


def shown(metric: Metric, value: float) -> str:
  """A number as tables have it, without its unit."""
  return f'{metric.scale * value:.{metric.digits}f}'


def stated(evaluation: Evaluation, score: Score) -> str:
  """A score in one line, as 'length 8: 2.000 bits per byte, 48.0 % of tokens right'."""
  numbers = [
    f'{shown(evaluation.metrics[name], value)} {evaluation.metrics[name].unit}'
    for name, value in score.values.items()
  ]
  return f'{evaluation.name}: {score.why or ", ".join(numbers)}'


def print_table(task: Task, scores: Mapping[str, Score], title: str) -> None:
  """Prints the numbers of each evaluation and the means of the unseen ones."""
  columns = _columns(task)
  first = task.evaluations[0].length
  table = Table(title=title, title_justify='left')
  table.add_column('evaluation')
  for heading in (*(['x trained'] if first else []), *columns.values()):
    table.add_column(heading, justify='right')

  def add(name: str, times: str, evaluation: Evaluation, score: Score) -> None:
    table.add_row(name, *([times] if first else []), *_cells(columns, evaluation, score))

  for each in task.evaluations:
    times = f'{each.length / first:g}x' if first and each.length else ''
    add(each.name, times, each, scores[each.name])
  if sum(each.role == 'unseen' for each in task.evaluations) > 1:
    means = Score(unseen(task.evaluations, scores))
    add('unseen, mean', '', task.evaluations[0], means)
  terminal = console()
  terminal.print(table)
  for why in dict.fromkeys(score.why for score in scores.values()):
    if why not in ('', BEYOND):
      terminal.print(f'refused: {why}')


def _columns(task: Task) -> dict[tuple[str, str], str]:
  """The heading of each metric that is a number, by its name and unit."""
  keys = {
    (name, metric.unit): metric.unit
    for each in task.evaluations
    for name, metric in each.metrics.items()
    if not metric.array
  }
  units = list(keys.values())
  return {key: unit if units.count(unit) == 1 else ', '.join(key) for key, unit in keys.items()}


def _cells(
  columns: Mapping[tuple[str, str], str], evaluation: Evaluation, score: Score
) -> list[str]:
  """A score's numbers below their headings; the reason below the first where there are none."""
  metrics = {(name, evaluation.metrics[name].unit): name for name in score.values}
  cells = {
    key: '-' if score.why else shown(evaluation.metrics[name], score.values[name])
    for key, name in metrics.items()
  }
  if score.why:
    cells[next(iter(cells))] = comment(score)
  return [cells.get(key, '') for key in columns]


def comment(score: Score) -> str:
  """Why a score has no number, in a word or three; '' where it has one."""
  return score.why if score.why in ('', BEYOND) else 'refused'


def draw(
  path: Path,
  task: Task,
  rows: Sequence[dict[str, Any]],
  scores: Mapping[str, Score],
  title: str,
  scheme: str = '',
) -> None:
  """Draws the loss by step, the headline metric of each evaluation, and metrics that are arrays."""
  from matplotlib.figure import Figure

  ink = colour(scheme)
  arrays = {name: None for each in _main(task) for name in scores[each.name].arrays}
  count = 2 + len(arrays)
  rows_of_two = -(-count // 2)
  figure = Figure(figsize=(8.8, 0.4 + 3.6 * rows_of_two), layout='constrained')
  figure.suptitle(in_picture(title))
  # Two beside each other, so that letters can be read where the picture is as wide as a page.
  places = figure.add_gridspec(rows_of_two, 2)
  pairs = [places[i // 2, i % 2] for i in range(count)]
  if count % 2:
    pairs[-1] = places[rows_of_two - 1, :]
  steps, lengths, *others = map(figure.add_subplot, pairs)
  _draw_steps(steps, task, rows, scores, ink)
  if task.evaluations[0].length is None:
    _draw_names(lengths, task, scores, ink)
  else:
    _draw_lengths(lengths, task, scores, ink)
  for axes, name in zip(others, arrays, strict=True):
    _draw_array(axes, task, scores, name, ink)
  for axes in (steps, lengths, *others):
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
  figure.savefig(path, dpi=120)


def _draw_steps(axes, task: Task, rows, scores: Mapping[str, Score], ink: str) -> None:
  """The training loss, and the headline evaluation where a metric of it has the same unit.

  A point of the training loss is one batch, of another text than what is held out: with
  configs/default.py at step 20, 3.7 to 4.1 bits by batch, 3.8 on training text that is judged as
  held-out text is, and 4.1 on the held-out modules, which are harder from the first letter on.
  """
  train = [(row['step'], row['loss']) for row in rows if row.get('loss') is not None]
  if train:
    axes.plot(*zip(*train, strict=True), label='training, single batches', color='gray', alpha=0.7)
  headline = task.evaluations[0]
  same = [name for name, metric in headline.metrics.items() if metric.unit == task.unit.name]
  for name in same[:1]:
    key = f'eval_{name}'
    held_out = [(row['step'], row[key]) for row in rows if row.get(key) is not None]
    if train and math.isfinite(scores[headline.name].values[name]):
      held_out.append((train[-1][0], scores[headline.name].values[name]))
    if held_out:
      style = {'ms': 4, 'color': ink, 'label': in_picture(headline.name)}
      axes.plot(*zip(*held_out, strict=True), 'o-', **style)
  axes.set(title='learning', xlabel='step', ylabel=in_picture(task.unit.name))
  if axes.get_legend_handles_labels()[0]:
    axes.legend(frameon=False)


def _main(task: Task) -> list[Evaluation]:
  """The evaluations of the main series, whose arrays are drawn."""
  return [evaluation for evaluation in task.evaluations if not evaluation.series]


def _headline(task: Task) -> tuple[str, Metric]:
  return next(iter(task.evaluations[0].metrics.items()))


def _bars(
  members: Sequence[Evaluation], scores: Mapping[str, Score], name: str, metric: Metric
) -> tuple[np.ndarray, np.ndarray]:
  """A metric of some evaluations, and half the width of each 95 % interval, as they are shown."""
  values = [scores[each.name].values[name] for each in members]
  errors = [float(scores[each.name].errors.get(name, math.nan)) for each in members]
  return metric.scale * np.array(values), metric.scale * NORMAL * np.array(errors)


def _limits(
  bars: Iterable[tuple[np.ndarray, np.ndarray]], metric: Metric
) -> tuple[float, float] | None:
  """The range of an axis for these numbers and their intervals; None where there are none."""
  number, half = np.concatenate([np.stack(each) for each in bars], axis=1)
  number, half = number[np.isfinite(number)], np.nan_to_num(half[np.isfinite(number)])
  if not len(number):
    return None
  best = None if metric.best is None else metric.scale * metric.best
  low, high = number - half, number + half
  if best is not None and number.min() >= 0 and number.max() <= best:
    low, high = low.clip(0, best), high.clip(0, best)  # an interval of shares ends where they do
  return axis_range([*low.tolist(), *high.tolist()], (high - low).tolist(), best)


def _draw_lengths(axes, task: Task, scores: Mapping[str, Score], ink: str) -> None:
  """The headline metric by length with its uncertainty, a curve for each series."""
  name, metric = _headline(task)
  series = {}
  for evaluation in task.evaluations:
    if evaluation.length is not None and name in evaluation.metrics:
      series.setdefault(evaluation.series, []).append(evaluation)
  found = {label: _bars(members, scores, name, metric) for label, members in series.items()}
  for i, (label, (values, halves)) in enumerate(found.items()):
    shade = str(min(0.3 + 0.2 * (i - 1), 0.8)) if i else ink  # others are shades of grey
    style = {'fmt': 'os^D'[i % 4] + '-', 'color': shade, 'capsize': 3, 'elinewidth': 1}
    axes.errorbar(
      [each.length for each in series[label]],
      values,
      yerr=halves,
      label=in_picture(label) or 'whole context',
      **style,
    )
  limits = _limits(found.values(), metric)
  if limits:
    axes.set_ylim(*limits)
  if len(series) > 1:
    axes.legend(frameon=False)
  known = (each.length for members in series.values() for each in members)
  lengths = sorted({length for length in known if length is not None})
  axes.axvline(task.evaluations[0].length, color='gray', ls='--', lw=1)
  axes.set_xscale('log', base=2)
  axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)  # one length alone has no width
  ticks = lengths[:: -(-len(lengths) // CURVES)]
  axes.set_xticks(ticks, [str(length) for length in ticks])
  title = 'by length (dashed: trained)' + _bars_note(halves for _, halves in found.values())
  axes.set(title=title, xlabel='length', ylabel=in_picture(metric.unit))
  for each in next(iter(series.values())):
    axes.annotate(
      comment(scores[each.name]),
      (each.length, 0.5),
      xycoords=('data', 'axes fraction'),
      rotation=90,
      ha='center',
      va='center',
    )


def _bars_note(halves: Iterable[np.ndarray]) -> str:
  """A line that explains the bars, where there are some."""
  return '\nbars: 95 %, over rows' if any(np.isfinite(each).any() for each in halves) else ''


def _draw_names(axes, task: Task, scores: Mapping[str, Score], ink: str) -> None:
  """The headline metric of each evaluation that has it, a point for each."""
  name, metric = _headline(task)
  members = [each for each in task.evaluations if name in each.metrics]
  values, halves = _bars(members, scores, name, metric)
  axes.errorbar(values, range(len(members)), xerr=halves, fmt='o', color=ink, capsize=3)
  limits = _limits([(values, halves)], metric)
  if limits:
    axes.set_xlim(*limits)
  axes.set_yticks(range(len(members)), [in_picture(each.name) for each in members])
  axes.set_ylim(len(members) - 0.5, -0.5)
  axes.set(title=f'by evaluation{_bars_note([halves])}', xlabel=in_picture(metric.unit))


def _draw_array(axes, task: Task, scores: Mapping[str, Score], name: str, ink: str) -> None:
  """A metric that is an array, a curve for each evaluation: means over windows, with a band."""
  having = [each for each in _main(task) if name in scores[each.name].arrays]
  shown = having[:: -(-len(having) // CURVES)]
  drawn = []
  for i, each in enumerate(shown):
    metric, score = each.metrics[name], scores[each.name]
    values, places = _windowed(metric.scale * np.asarray(score.arrays[name]))
    errors = np.asarray(score.errors.get(name, np.full(len(values), np.nan)))
    half = metric.scale * NORMAL * errors if len(errors) == len(values) else 0 * values
    shade = _paler(ink, 0.65 * (len(shown) - 1 - i) / max(1, len(shown) - 1))
    style = {'color': shade, 'ms': 3, 'label': in_picture(each.name)}
    axes.plot(places, values, 'o-', **style)
    axes.fill_between(places, values - half, values + half, color=shade, alpha=0.1, lw=0)
    drawn.append((values, half))
  limits = _limits(drawn, having[0].metrics[name])
  if limits:
    axes.set_ylim(*limits)
  title, unit = in_picture(name.replace('_', ' ')), in_picture(having[0].metrics[name].unit)
  axes.set_xscale('log', base=2)
  axes.xaxis.set_major_formatter('{x:g}')
  heading = f'{title}\nmeans over windows; bands: 95 %'
  axes.set(title=heading, xlabel=title.rpartition(' ')[2], ylabel=unit)
  axes.legend(frameon=False)


def _windowed(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The means of an array over windows, and where they are drawn: amid the window, from 1 on."""
  ends = windows(len(values))
  means = [values[first:last].mean() for first, last in ends]
  return np.array(means), np.array([(first + last + 1) / 2 for first, last in ends])


def _paler(ink: str, share: float) -> tuple[float, ...]:
  """A colour, mixed with this share of white."""
  from matplotlib.colors import to_rgb

  return tuple((1 - share) * part + share for part in to_rgb(ink))
