"""`compare --tune`: for each scheme, the best values of a few config keys, found before comparing.

A learning rate that was chosen with one scheme favours that one. Here each scheme gets its own,
from the same values, by one run each on `tune:DATA`: a part of the training data is held out, and
what the comparison reports stays unread. No seed of the comparison is used.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from posjax.experiment.compare.grid import Axis, Cell, cells
from posjax.experiment.compare.results import Line
from posjax.experiment.compare.summary import Measure, judge, measure
from posjax.experiment.compare.table import Sheet
from posjax.experiment.data.expression import TUNE
from posjax.experiment.settings import Rules

SEED = 10_000  # how far the seed of the search is from the first one of the comparison
DATA = 'task.data'


class Tried(NamedTuple):
  """One run of a search.

  Attributes:
    scheme: as on the command line.
    axes: of the comparison, value by config key.
    values: of the search, value by config key.
    quality: on the held-out part of the training data, as it is shown; None if there is none.
    chosen: whether the comparison takes these values.
    note: why there is no quality, or what a reader should know of the choice.
  """

  scheme: str
  axes: Mapping[str, Any]
  values: Mapping[str, Any]
  quality: float | None
  chosen: bool
  note: str


def search_cells(
  config: ConfigDict, schemes: Sequence[str], axes: Sequence[Axis], tune: Sequence[Axis]
) -> list[Cell]:
  """The runs by which --tune searches: every scheme with every value of `axes` and of `tune`.

  Raises:
    ValueError: if the data of the config cannot be read in part, or are that part already.
  """
  config = config.copy_and_resolve_references()
  config.seed += SEED
  config.task.data = _part(config.task.data)
  axes = [(key, [_part(x) for x in values] if key == DATA else values) for key, values in axes]
  return cells(config, schemes, [*axes, *tune], seeds=1)


def _part(data: str) -> str:
  if data.startswith(TUNE):
    raise ValueError(f"--tune needs data without '{TUNE}', which it adds itself, but got {data!r}.")
  return TUNE + data


def choose(
  search: Sequence[Cell], results: Mapping[str, Line], tune: Sequence[Axis], rules: Rules
) -> list[Tried]:
  """Finds the best values for each scheme, from the runs of `search_cells`.

  Raises:
    ValueError: if of some scheme none has a quality.
  """
  keys = dict(tune)
  lines = [results[cell.id] for cell in search if 'scores' in results[cell.id]]
  if not lines:
    raise ValueError(f'No run of --tune has a result: {results[search[0].id]["error"]}')
  what = measure(lines[0], rules)
  tried: list[Tried] = []
  groups: dict[tuple[str, str], list[int]] = {}
  for i, cell in enumerate(search):
    line = results[cell.id]
    quality = None if 'error' in line else judge(line, cell.seed, rules).trained
    values = {key: cell.axes[key] for key in keys}
    axes = {key: _whole(key, x) for key, x in cell.axes.items() if key not in keys}
    note = str(line.get('error', ''))
    tried.append(Tried(cell.scheme, axes, values, quality, False, note))
    groups.setdefault((cell.scheme, str(axes)), []).append(i)
  for scheme, axes in groups:
    known = [i for i in groups[scheme, axes] if tried[i].quality is not None]
    if not known:
      why = tried[groups[scheme, axes][0]].note or 'its quality is no number'
      raise ValueError(f'No run of --tune with {scheme} has a result: {why}')
    best = (max if what.higher else min)(known, key=lambda i: tried[i].quality or 0.0)
    ends = [key for key, x in tried[best].values.items() if _is_end(x, keys[key])]
    note = f'at the end of what was tried of {" and ".join(ends)}' if ends else ''
    tried[best] = tried[best]._replace(chosen=True, note=note)
  return tried


def _whole(key: str, value: Any) -> Any:
  return value.removeprefix(TUNE) if key == DATA else value


def _is_end(value: Any, values: Sequence[Any]) -> bool:
  """Whether the best value is the smallest or largest of three or more that were tried.

  A better one may then lie beyond.
  """
  numbers = sorted(x for x in values if isinstance(x, int | float) and not isinstance(x, bool))
  return len(numbers) > 2 and value in (numbers[0], numbers[-1])


def chosen(tried: Sequence[Tried]) -> dict[tuple[str, str], Mapping[str, Any]]:
  """The chosen values, by scheme and by axes as text; `grid.cells` takes them so."""
  return {(each.scheme, str(each.axes)): each.values for each in tried if each.chosen}


def sheet(tried: Sequence[Tried], what: Measure, seed: int) -> Sheet:
  """All that was tried, as a table."""
  shown = lambda x: '-' if x is None else f'{x:.{3 if what.best is None else 1}f}'
  return Sheet(
    f'Tuned on a part of the training data, by one run each (seed {seed}): {what.unit}',
    ['scheme', *tried[0].axes, *tried[0].values, 'quality', 'chosen', 'note'],
    [
      [
        each.scheme,
        *map(str, (*each.axes.values(), *each.values.values())),
        shown(each.quality),
        'chosen' if each.chosen else '',
        each.note[:80],
      ]
      for each in tried
    ],
  )
