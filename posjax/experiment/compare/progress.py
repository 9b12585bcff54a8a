"""How far a whole grid is, and how long it will still take."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from posjax.experiment.compare.cell import steps_done
from posjax.experiment.compare.grid import Cell
from posjax.experiment.compare.pool import Ended
from posjax.experiment.compare.summary import judge, measure
from posjax.experiment.plain import console
from posjax.experiment.settings import Rules


class Grid:
  """A bar over the steps of all cells; plain lines, one for each cell that ends, elsewhere."""

  def __init__(self, cells: Sequence[Cell], folder: Path, before: int, rules: Rules):
    self.folder, self.before, self.count = folder, before, before + len(cells)
    self.rules = rules
    self.left = {cell.id: cell for cell in cells}
    self.total = sum(cell.config.steps for cell in cells)
    # Steps that earlier processes made are no work of ours.
    self.given = {cell.id: self._steps(cell) for cell in cells}
    self.done, self.begun = 0, time.monotonic()
    self.bar = Progress(
      TextColumn('{task.description}'),
      BarColumn(),
      TextColumn('{task.fields[state]}', markup=False),
      console=console(),
    )
    self.task = self.bar.add_task('comparing', total=max(self.total, 1), state='starting')
    self.lively = self.bar.console.is_terminal

  def __enter__(self):
    if self.lively:
      self.bar.start()
    return self

  def __exit__(self, *error):
    self.bar.stop()

  def tick(self, running: Sequence[Cell]) -> None:
    """Shows how far the running cells are."""
    if self.lively:
      steps = self._now(running)
      names = '; '.join(map(_named, running))
      state = f'{self.count - len(self.left)}/{self.count} runs, {self.remaining(steps)}: {names}'
      self.bar.update(self.task, completed=steps, state=state)

  def ended(self, end: Ended, running: Sequence[Cell]) -> None:
    """Says that a cell ended, and how long the others will take."""
    cell = self.left.pop(end.cell.id)
    self.done += cell.config.steps
    at = f'[{self.count - len(self.left)}/{self.count}]'
    how = outcome(end.row, cell.seed, self.rules)
    self.say(f'{at} {_named(cell)}: {how}; {self.remaining(self._now(running))}')

  def remaining(self, steps: int) -> str:
    """Time left, at the pace so far."""
    ours = steps - sum(self.given.values())
    if not self.left:
      return 'done'
    if ours <= 0:
      return 'no estimate yet'
    seconds = (time.monotonic() - self.begun) * (self.total - steps) / ours
    if seconds < 120:
      return f'{seconds:.0f} s left'
    return f'{seconds / 60:.0f} min left' if seconds < 7200 else f'{seconds / 3600:.1f} h left'

  def say(self, line: str) -> None:
    """Prints a line above the bar."""
    self.bar.console.print(line, soft_wrap=True)

  def _now(self, running: Sequence[Cell]) -> int:
    going = sum(self._steps(cell) for cell in running if cell.id in self.left)
    waiting = {cell.id for cell in running}
    earlier = sum(self.given[name] for name in self.left if name not in waiting)
    return self.done + going + earlier

  def _steps(self, cell: Cell) -> int:
    return steps_done(self.folder / 'cells' / cell.id)


def _named(cell: Cell) -> str:
  axes = ''.join(f', {key}={value}' for key, value in cell.axes.items())
  return f'{cell.scheme}{axes}, seed {cell.seed}'


def outcome(row: Mapping[str, Any], seed: int, rules: Rules) -> str:
  """How a run ended, with the number that is compared: its mean over what is unseen."""
  if 'error' in row:
    return f'failed: {row["error"]}'
  try:
    what, found = measure(row, rules), judge(row, seed, rules)
  except ValueError as error:  # it is kept nevertheless, and the report refuses it
    return f'ended in {row["seconds"]:.0f} s, and cannot be judged: {error}'
  digits = 3 if what.best is None else 1
  shown = lambda value: 'no number' if value is None else f'{value:.{digits}f} {what.unit}'
  text = f'{shown(found.unseen)} unseen, {shown(found.trained)} trained'
  if not any(each['role'] == 'unseen' for each in row['evaluations'].values()):
    text = shown(found.trained)
  learned = '' if found.learned else ', has not learned what it was trained on'
  return f'{text}{learned}, in {row["seconds"]:.0f} s'
