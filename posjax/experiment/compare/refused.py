"""Grids of which no run can begin: they end with one sentence, and leave no result."""

from collections.abc import Sequence

from posjax.experiment import optimizer, settings
from posjax.experiment.compare.grid import Cell
from posjax.experiment.compare.pool import Ended


def check_each(grid: Sequence[Cell]) -> None:
  """Refuses a grid of which no run could begin, as far as the keys of its configs tell.

  A grid of which some runs could begin is worked on, and tells of the others as they fail.

  Raises:
    TypeError: if a key of the first run has another type, and each other run is refused, too.
    ValueError: the same of a value.
  """
  first: Exception | None = None
  points: dict[tuple[str, str], Cell] = {}
  for cell in grid:
    points.setdefault(_point(cell), cell)
  for cell in points.values():
    try:
      settings.check(cell.config)
      optimizer.make(cell.config.steps, **cell.config.optimizer)
      return
    except (TypeError, ValueError) as error:
      first = first or error
  if first is not None:
    raise first


def _point(cell: Cell) -> tuple[str, str]:
  """The part of a run that its other seeds have, too."""
  return cell.scheme, str(cell.axes)


class Ends:
  """The runs of a grid as they end, of which those that could not begin wait for one that could.

  Where every run is refused, there is one sentence to say, and no result.

  Args:
    left: the runs that are to be done.
    begun: whether an earlier command has finished a run of the grid.
  """

  def __init__(self, left: Sequence[Cell], begun: bool):
    self.points, self.begun = {_point(cell) for cell in left}, begun
    self.waiting: list[Ended] = []

  def of(self, end: Ended) -> list[Ended]:
    """The runs to be told now that another one has ended.

    Raises:
      ValueError: if no run of the grid can begin.
    """
    self.waiting.append(end)
    self.begun = self.begun or not end.row.get('refused') or end.row.get('full', False)
    if self.begun:
      return self.rest()
    if {_point(each.cell) for each in self.waiting} == self.points:
      errors = list(dict.fromkeys(each.row['error'] for each in self.waiting))
      others = f' ({len(errors) - 1} other runs are refused, too.)' if errors[1:] else ''
      raise ValueError(errors[0] + others)
    return []

  def rest(self) -> list[Ended]:
    """The runs that have waited."""
    told, self.waiting = self.waiting, []
    return told
