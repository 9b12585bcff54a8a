"""Compares positional schemes over seeds, and says with error bars how far each one reaches.

  python -m posjax.experiment.compare --config=configs/algorithmic.py --workdir=runs/copy \
    --schemes='none,alibi,randomized(max_length=2048)+rope' --seeds=3 --axes=model.num_layers=2,4

Every run is one of train.py, in cells/ of the work folder. Lines of results.jsonl are what is kept:
the same command again goes on where it stopped, and one with more schemes or seeds adds them. The
work folder gets results.jsonl, report.html, and pictures as PNG and SVG.

  --tune=optimizer.learning_rate=5e-4,1e-3,2e-3

first finds the best of these values for each scheme, on a part of the training data.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from absl import app, flags
from ml_collections import ConfigDict

from posjax.experiment import optimizer, record, settings
from posjax.experiment.compare import page, results, tuning
from posjax.experiment.compare.grid import Axis, Cell, cells, read_axis, read_schemes
from posjax.experiment.compare.origin import origin
from posjax.experiment.compare.pool import Ended, run_all
from posjax.experiment.compare.progress import Grid
from posjax.experiment.compare.summary import data_of, expected_data, summarize
from posjax.experiment.compare.table import print_tables
from posjax.experiment.flags import Command, parse
from posjax.experiment.interrupt import interrupts, leave_quietly
from posjax.experiment.locks import Busy, check_held, lock
from posjax.experiment.settings import Rules

DEFAULT = Path('configs', 'default.py')


class Plan(NamedTuple):
  """A comparison that is possible.

  Attributes:
    cells: the whole grid.
    mine: those of this host.
    baseline: a scheme of it.
    rules: how runs are judged.
    folder: to work in.
    path: where this host's results go.
    processes: how many at once.
    allow_changed_data: whether runs on different data are averaged.
    search: runs on a part of the training data, by which values of `tune` are chosen.
    tune: config keys and their values; none where there is no search.
  """

  cells: list[Cell]
  mine: list[Cell]
  baseline: str
  rules: Rules
  folder: Path
  path: Path
  processes: int
  allow_changed_data: bool
  search: Sequence[Cell] = ()
  tune: Sequence[Axis] = ()


class Full(Exception):
  """There is no room on the disk."""


def plan(
  config: ConfigDict,
  folder: Path,
  values: flags.FlagValues,
  chosen: Mapping[tuple[str, str], Mapping[str, Any]] = MappingProxyType({}),
) -> Plan:
  """The comparison that a command line asks for.

  Args:
    config: of its config file.
    folder: to work in.
    values: its flags.
    chosen: by scheme and axes, the values that the search of --tune found best.

  Raises:
    ValueError: if a flag is missing, out of range, or contradicts another.
  """
  if not values.schemes:
    raise ValueError("--schemes is missing; it should read like --schemes='a,b(x=1)+c'.")
  if values.processes < 1:
    raise ValueError(f'--processes must be at least 1, but got {values.processes}.')
  if not 0 <= values.host < values.hosts:
    raise ValueError(f'--host must be in [0, {values.hosts}), but got {values.host}.')
  schemes = read_schemes(values.schemes)
  baseline = values.baseline or schemes[0]
  if baseline not in schemes:
    raise ValueError(f'--baseline must be one of {", ".join(schemes)}, but got {baseline}.')
  config = config.copy_and_resolve_references()
  settings.check(config)
  rules = Rules(**config.compare)  # of the report, not of any run
  with config.unlocked():
    del config['compare']
  axes = [read_axis(axis, config) for axis in values.axes]
  tune = [read_axis(axis, config) for axis in values.tune]
  check_tune(tune, axes, values)
  grid = cells(config, schemes, axes, values.seeds, chosen)
  search = tuning.search_cells(config, schemes, axes, tune) if tune else []
  name = f'results-{values.host}-of-{values.hosts}.jsonl' if values.hosts > 1 else 'results.jsonl'
  check_each(grid)
  mine = grid[values.host :: values.hosts]
  path, allowed = folder / name, values.allow_changed_data
  return Plan(grid, mine, baseline, rules, folder, path, values.processes, allowed, search, tune)


def check_tune(tune: Sequence[Axis], axes: Sequence[Axis], values: flags.FlagValues) -> None:
  """Refuses --tune where a key is in --axes as well, or where several hosts share the grid."""
  both = {key for key, _ in tune} & {key for key, _ in axes}
  if both:
    raise ValueError(f'{min(both)} is a key of --axes and of --tune; it can be one of them.')
  if tune and values.hosts > 1:
    raise ValueError('--tune is for one host: run it there, and give the others what it chose.')


def check_each(grid: Sequence[Cell]) -> None:
  """Refuses a grid of which no run could begin, as far as the keys of its configs tell.

  A grid of which some runs could begin is worked on, and reports the others as they fail.
  """
  first: Exception | None = None
  for cell in {_point(cell): cell for cell in reversed(grid)}.values():
    try:
      settings.check(cell.config)
      optimizer.make(cell.config.steps, **cell.config.optimizer)
      return
    except (TypeError, ValueError) as error:
      first = error  # the last one here is that of the first run
  if first is not None:
    raise first


def _point(cell: Cell) -> tuple[str, str]:
  """The part of a run that its other seeds have, too."""
  return cell.scheme, str(cell.axes)


def in_order(ends: Iterable[Ended], left: Sequence[Cell], begun: bool) -> Iterator[Ended]:
  """Runs as they end; those that could not begin are held back until one could.

  Where every run is refused, there is one sentence to say, and no result.

  Raises:
    ValueError: if no run of the grid can begin.
  """
  points, held = {_point(cell) for cell in left}, []
  for end in ends:
    held.append(end)
    begun = begun or not end.row.get('refused') or end.row.get('full', False)
    if begun:
      yield from held
      held.clear()
    elif {_point(each.cell) for each in held} == points:
      errors = list(dict.fromkeys(each.row['error'] for each in held))
      others = f' ({len(errors) - 1} other runs are refused, too.)' if errors[1:] else ''
      raise ValueError(errors[0] + others)
  yield from held


def work(todo: Plan) -> None:
  """Runs what has not finished yet, until it ends or is interrupted."""
  todo.folder.mkdir(parents=True, exist_ok=True)
  path = todo.folder / ('.lock' if todo.path.name == 'results.jsonl' else f'.lock-{todo.path.stem}')
  with lock(path) as held, interrupts() as stopped:
    there = results.read(todo.folder)
    left = [cell for cell in todo.mine if 'scores' not in there.get(cell.id, ())]
    with Grid(left, todo.folder, len(todo.mine) - len(left), todo.rules) as grid:
      if len(left) < len(todo.mine):
        grid.say(f'{len(todo.mine) - len(left)} of {len(todo.mine)} runs had finished before')
      running = []
      known = data_of((cell, there[cell.id]) for cell in todo.mine if cell.id in there)

      def options(cell):
        data = {} if todo.allow_changed_data else expected_data(known, cell)
        return {'data': data, 'allow_changed_data': todo.allow_changed_data}

      def tick(now):
        running[:] = now
        grid.tick(now)

      ended = 0
      with contextlib.closing(
        run_all(left, todo.folder, todo.processes, stopped, tick, options)
      ) as ends:
        done = (end for end in ends if 'stopped' not in end.row)
        begun = any('scores' in there.get(cell.id, ()) for cell in todo.cells)
        for end in in_order(done, left, begun):
          check_held(held, path)
          keep(todo, end)
          known = {**data_of([(end.cell, end.row)]), **known}
          ended += 1
          grid.ended(end, [cell for cell in running if cell.id != end.cell.id])
      if ended < len(left):
        grid.say('stopped, and saved: the same command resumes')


def searched(todo: Plan) -> list[tuning.Tried] | None:
  """Trains the runs of --tune, and marks the best values; None if it was interrupted."""
  work(todo._replace(cells=list(todo.search), mine=list(todo.search)))
  there = results.read(todo.folder)
  if any(cell.id not in there for cell in todo.search):
    return None
  return tuning.choose(todo.search, there, todo.tune, todo.rules)


def keep(todo: Plan, end: Ended) -> None:
  """Writes the line of a cell that ended."""
  cell = end.cell
  row = {'id': cell.id, 'scheme': cell.scheme, 'axes': cell.axes, 'seed': cell.seed, **end.row}
  lost = 'what results.jsonl holds is kept: make room, and the same command goes on.'
  row.pop('refused', None)
  if row.pop('full', False):
    raise Full(f'{cell.scheme}, seed {cell.seed}, had no room on the disk ({row["error"]}); {lost}')
  try:
    record.append(todo.path, row, durable=True)
  except OSError as error:
    raise Full(f'{todo.path} cannot be written ({error.strerror}); {lost}') from error


def tell(todo: Plan, tried: Sequence[tuning.Tried] = ()) -> bool:
  """Prints and draws what the grid says so far; False if a cell failed."""
  there = results.read(todo.folder)
  ours = {cell.id for cell in (*todo.cells, *todo.search)}
  others = [there[name] for name in there.keys() - ours]
  if others:
    print(left_out(others))
  failed = [there[cell.id] for cell in todo.cells if 'error' in there.get(cell.id, ())]
  allowed = todo.allow_changed_data
  summary = summarize(todo.cells, there, todo.baseline, todo.rules, allow_changed_data=allowed)
  if summary is None:
    for row in failed:
      print(f'failed: {row["scheme"]}, seed {row["seed"]}: {row["error"]}')
    print('no run has finished, so there is nothing to show')
    return not failed
  more = [tuning.sheet(tried, summary.measure, todo.search[0].seed)] if tried else []
  print_tables(summary, more)
  try:
    made = origin(sys.argv[1:], todo.cells)
    pictures = page.write(todo.folder / 'report.html', summary, made, more)
  except OSError as error:
    raise Full(f'The pictures cannot be written ({error.strerror}); the results are.') from error
  for path in (todo.folder / 'report.html', todo.path, *pictures):
    print(f'  {path}')
  return not failed


def left_out(others: Sequence[Mapping[str, Any]]) -> str:
  """A sentence about runs with other configs than those of the grid."""
  failed = sum('error' in row for row in others)
  kinds = {'finished': len(others) - failed, 'failed': failed}
  counts = ' and '.join(f'{count} {kind}' for kind, count in kinds.items() if count)
  runs = 'run' if len(others) == 1 else 'runs'
  return (
    f'results.jsonl has {counts} {runs} with other config keys, schemes or seeds than this '
    'command; they are left out here'
  )


def read(argv: Sequence[str]) -> Command:
  """Defines and reads the command line."""
  own = [
    flags.DEFINE_string('schemes', None, 'What to compare, with commas: lines of posjax.get.'),
    flags.DEFINE_integer('seeds', 3, "Runs of each, with seeds that count up from the config's."),
    flags.DEFINE_multi_string('axes', [], 'KEY=VALUE,VALUE: a config key to vary.'),
    flags.DEFINE_multi_string(
      'tune', [], 'KEY=VALUE,VALUE: a config key whose best value is first found for each scheme.'
    ),
    flags.DEFINE_string('baseline', None, 'What others are compared with; by default the first.'),
    flags.DEFINE_integer('processes', 1, 'Runs at a time, each in a process of its own.'),
    flags.DEFINE_integer('hosts', 1, 'How many hosts share the grid, and a work folder.'),
    flags.DEFINE_integer('host', 0, 'Which of them this one is, from 0.'),
  ]
  return parse(['compare', *argv[1:]], DEFAULT, own)


def main(command: Command) -> None:
  """Runs, and tells; the exit status is 1 if a cell failed, or with one sentence otherwise."""
  leave_quietly()
  jax.config.update('jax_platforms', 'cpu')  # this process only leads; the accelerator is theirs
  folder = Path(flags.FLAGS.workdir or Path('runs', f'{command.name}-compare'))
  try:
    todo, tried = plan(command.config, folder, flags.FLAGS), []
    if todo.tune:
      tried = searched(todo)
      if tried is None:
        sys.exit(0)
      todo = plan(command.config, folder, flags.FLAGS, tuning.chosen(tried))
    work(todo)
    sys.exit(0 if tell(todo, tried) else 1)
  except (ValueError, TypeError, AttributeError, OSError, Full, Busy) as error:
    sys.exit(f'compare: error: {" ".join(str(error).split())}')


if __name__ == '__main__':
  app.run(main, flags_parser=read)
