"""The end of a run: a table by length for the terminal, and report.png."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from posjax.experiment.evaluation import MEANS, Score, unseen
from posjax.experiment.tasks import Task

FILES = {
  'report.png': 'pictures',
  'results.json': 'scores',
  'metrics.jsonl': 'losses',
  'tensorboard': 'TensorBoard',
  'checkpoints': 'checkpoints',
  'config.json': 'config',
}


def results(scores: Sequence[Score], sample: str) -> dict[str, Any]:
  """The end of a run, for results.json; a number that there is not is null."""
  rows = [_finite(_plain(score)) for score in scores]
  mean = unseen(scores)
  means = {} if mean is None else {name: getattr(mean, name) for name in MEANS}
  return {'scores': rows, 'unseen': _finite(means), 'sample': sample}


def _plain(score: Score) -> dict[str, Any]:
  windowed = None if score.windowed is None else _plain(score.windowed)
  plain = {'by_position': score.by_position.tolist(), 'restated': dict(score.restated)}
  return {**score._asdict(), **plain, 'windowed': windowed}


def _finite(value: Any) -> Any:
  if isinstance(value, dict):
    return {name: _finite(each) for name, each in value.items()}
  if isinstance(value, list):
    return [_finite(each) for each in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def introduce(task: Task, scheme: str, params: Any, workdir: Path) -> None:
  """Says what is about to be trained, and on what."""
  size = sum(leaf.size for leaf in jax.tree.leaves(params))
  facts = {'scheme': scheme, 'parameters': f'{size:,}', **task.facts, 'work folder': workdir}
  for name, value in facts.items():
    print(f'{name:>16}  {value}')


def stated(task: Task, loss: float) -> str:
  """A mean loss in the task's unit, and in its others."""
  others = [f'{other(loss):.3f} {name}' for name, other in task.restated.items()]
  return f'{loss:.3f} {task.unit}' + (f' ({", ".join(others)})' if others else '')


def print_table(task: Task, scores: Sequence[Score], title: str) -> None:
  """Prints loss and accuracy at each evaluation length and their means, and why there is none."""
  columns = _columns(task)
  table = Table(title=title, title_justify='left')
  for name in ('length', 'x trained', *columns):
    table.add_column(name, justify='right')
  for score in scores:
    cells = ['-' if comment(score) else show(score) for show in columns.values()]
    cells[0] = comment(score) or cells[0]
    table.add_row(f'{score.length}', f'{score.length / task.lengths[0]:g}x', *cells)
  mean = unseen(scores)
  if task.exact and mean is not None:
    table.add_row('unseen', 'mean', *(show(mean) for show in columns.values()))
  console = Console()
  console.print(table)
  for refused in dict.fromkeys(score.refused for score in scores if score.refused):
    console.print(f'refused: {refused}', markup=False, highlight=False)


def _columns(task: Task) -> dict[str, Callable[[Score], str]]:
  """What is shown of a score, by the name of its column."""

  def share(name: str) -> Callable[[Score], str]:
    return lambda score: f'{100 * getattr(score, name):.1f} %'

  columns: dict[str, Callable[[Score], str]] = {task.unit: lambda score: f'{score.loss:.3f}'}
  for name in task.restated:
    columns[name] = lambda score, name=name: f'{score.restated[name]:.3f}'
  columns['right answers' if task.exact else 'right'] = share('accuracy')
  if task.learned_batches is not None:  # one answer a row
    columns['right in training'] = share('training_accuracy')
  elif task.exact:
    columns['right tokens'] = share('token_accuracy')
  if task.continued is not None:
    columns['greedy tokens'] = share('greedy_token_accuracy')
  if task.windowed is not None:
    columns['windowed'] = _windowed
  return columns


def _windowed(score: Score) -> str:
  other = score.windowed
  return '-' if other is None else comment(other) or f'{other.loss:.3f}'


def comment(score: Score) -> str:
  """Why a length has no number, in words; '' where it has one."""
  if score.refused:
    return 'refused'
  return 'beyond its table' if math.isnan(score.loss) else ''


def draw(
  path: Path, task: Task, rows: Sequence[dict[str, Any]], scores: Sequence[Score], title: str
) -> None:
  """Draws the loss by step, by length and by position.

  Args:
    path: a .png to write.
    task: whose unit the axes have.
    rows: metrics.jsonl.
    scores: the final evaluation.
    title: the run.
  """
  from matplotlib.figure import Figure

  figure = Figure(figsize=(13, 4), layout='constrained')
  figure.suptitle(title)
  steps, lengths, positions = figure.subplots(1, 3)
  _draw_steps(steps, task, rows, scores)
  _draw_lengths(lengths, task, scores)
  _draw_positions(positions, task, scores)
  for axes in (steps, lengths, positions):
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
  figure.savefig(path, dpi=120)


def _draw_steps(axes, task: Task, rows, scores: Sequence[Score]) -> None:
  train = [(row['step'], row['loss']) for row in rows if row.get('loss') is not None]
  held_out = [(row['step'], row['eval_loss']) for row in rows if row.get('eval_loss') is not None]
  if train and math.isfinite(scores[0].loss):
    held_out.append((train[-1][0], scores[0].loss))
  if train:
    axes.plot(*zip(*train, strict=True), label='training', alpha=0.7)
  if held_out:
    axes.plot(*zip(*held_out, strict=True), 'o-', ms=4, label='held out, training length')
  axes.set(title='learning', xlabel='step', ylabel=task.unit)
  if train or held_out:
    axes.legend(frameon=False)


def _draw_lengths(axes, task: Task, scores: Sequence[Score]) -> None:
  value = [100 * score.accuracy if task.exact else score.loss for score in scores]
  axes.plot([score.length for score in scores], value, 'o-', color='C1')
  if task.windowed is not None:
    windowed = [(each.length, each.windowed.loss) for each in scores if each.windowed is not None]
    axes.plot(*zip(*windowed, strict=True), 's:', color='C2', label='windowed')
    axes.legend(frameon=False)
  axes.axvline(task.lengths[0], color='gray', ls='--', lw=1)
  axes.set_xscale('log', base=2)
  axes.set_xlim(min(task.lengths) / 1.2, max(task.lengths) * 1.2)  # one length alone has no width
  ticks = task.lengths[:: -(-len(task.lengths) // 12)]
  axes.set_xticks(ticks, [str(length) for length in ticks])
  ylabel = 'right answers, %' if task.exact else task.unit
  axes.set(title='by length (dashed: trained)', xlabel='length', ylabel=ylabel)
  for score in scores:
    if comment(score):
      axes.annotate(
        comment(score),
        (score.length, 0.5),
        xycoords=('data', 'axes fraction'),
        rotation=90,
        ha='center',
        va='center',
      )


def _draw_positions(axes, task: Task, scores: Sequence[Score]) -> None:
  for score in scores[:: -(-len(scores) // 12)]:
    width = max(1, len(score.by_position) // 16)
    whole = score.by_position[: len(score.by_position) // width * width].reshape(-1, width)
    axes.plot([width * (i + 0.5) for i in range(len(whole))], whole.mean(1), label=score.length)
  axes.axvline(task.lengths[0], color='gray', ls='--', lw=1)
  axes.set(title='by position', xlabel='position in the row', ylabel=task.unit)
  axes.legend(title='length', frameon=False)
