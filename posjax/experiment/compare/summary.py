"""The summary of a grid: a row for each scheme and axis value, over its seeds."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from posjax.experiment.compare.grid import Cell
from posjax.experiment.compare.results import (
  EXAMPLES,
  Line,
  hashes,
  headline,
  judged,
  label,
  other_data,
)
from posjax.experiment.compare.statistics import (
  EQUAL_LEVEL,
  LEVEL,
  Interval,
  interval,
  verdict,
)
from posjax.experiment.settings import Rules


class Measure(NamedTuple):
  """The metric of a comparison; its numbers are as shown, multiplied by `scale`.

  Attributes:
    name: of the metric.
    unit: as it is shown.
    higher: whether higher numbers are better.
    best: the best number, as shown; None for a loss.
    scale: of the numbers in a line.
  """

  name: str
  unit: str
  higher: bool
  best: float | None
  scale: float


def measure(line: Line, rules: Rules) -> Measure:
  """The metric by which a line is judged."""
  metrics = next(iter(line['evaluations'].values()))['metrics']
  first, _ = headline(line)
  name = rules.quality or first
  if name not in metrics:
    raise ValueError(
      f'compare.quality must be one of {", ".join(metrics)}, or nothing, but got {rules.quality!r}.'
    )
  unit, higher, best, scale = (metrics[name][key] for key in ('unit', 'higher', 'best', 'scale'))
  return Measure(name, unit, higher, None if best is None else scale * best, scale)


class Judged(NamedTuple):
  """The judgement of one finished cell.

  Attributes:
    seed: of the run.
    learned: whether it has learned what it was trained on.
    trained: quality there.
    unseen: mean quality of the unseen evaluations; None if one of them has none.
    left_out: `unseen` without each group of the held-out examples; () where that is not known.
    by_evaluation: quality of each evaluation; None where there is none.
    why: why there is none, by evaluation.
    result: its line.
  """

  seed: int
  learned: bool
  trained: float | None
  unseen: float | None
  left_out: tuple[float, ...]
  by_evaluation: dict[str, float | None]
  why: dict[str, str]
  result: Line


class Row(NamedTuple):
  """A scheme with its axis values, over seeds; means are over the runs that have learned.

  Attributes:
    scheme: as on the command line.
    axes: value by config key.
    cells: those that finished.
    failed: error by seed.
    missing: how many have not ended.
    learned: how many of the finished ones have learned what they were trained on.
    trained: quality there, of all that finished.
    unseen: mean quality over the unseen evaluations.
    step: what one answer is worth in that mean; 0 for a loss.
    by_evaluation: quality by evaluation.
    difference: to the baseline in `unseen`, over seeds that learned in both.
    verdict: as of `statistics.verdict`; '' where nothing is compared.
    note: why there is no number, or no comparison.
  """

  scheme: str
  axes: dict[str, Any]
  cells: tuple[Judged, ...]
  failed: dict[int, str]
  missing: int
  learned: int
  trained: Interval | None
  unseen: Interval | None
  step: float
  by_evaluation: dict[str, Interval | None]
  difference: Interval | None
  verdict: str
  note: str

  @property
  def panel(self) -> str:
    """Where it is drawn: the last word of each axis with its value; '' without axes."""
    return ', '.join(f'{key.rpartition(".")[2]}={value}' for key, value in self.axes.items())

  @property
  def label(self) -> str:
    """The scheme, and its axis values."""
    return ', '.join(filter(None, (self.scheme, self.panel)))

  @property
  def unlearned(self) -> bool:
    """Whether some runs have finished, of which none has learned what it was trained on."""
    return bool(self.cells) and not self.learned

  @property
  def shown_unseen(self) -> Interval | None:
    """`unseen`; where nothing was learned, the bare mean of all runs, which says nothing more."""
    return _bare([each.unseen for each in self.cells]) if self.unlearned else self.unseen

  @property
  def shown_by_evaluation(self) -> dict[str, Interval | None]:
    """`by_evaluation`; where nothing was learned, the bare means of all runs."""
    if not self.unlearned:
      return self.by_evaluation
    return {
      name: _bare([each.by_evaluation.get(name) for each in self.cells])
      for name in self.by_evaluation
    }

  @property
  def by_length(self) -> dict[int, Interval | None]:
    """Quality by length, of the evaluations that have one."""
    return {n: self.by_evaluation[name] for n, name in self.names_by_length.items()}

  @property
  def names_by_length(self) -> dict[int, str]:
    """The evaluation of each length."""
    described = {n: each for cell in self.cells for n, each in cell.result['evaluations'].items()}
    lengths = {name: described[name]['length'] for name in self.by_evaluation}
    return {length: name for name, length in lengths.items() if length is not None}


def _bare(values: Sequence[float | None]) -> Interval | None:
  """The mean without an interval; None where a run has no number."""
  mean = _mean(values)
  return None if mean is None else Interval(mean, math.nan, math.nan, len(values))


class Summary(NamedTuple):
  """All rows, and how to read them.

  Attributes:
    rows: in the grid's order.
    baseline: the scheme that the others are compared with.
    measure: what quality is.
    learned: what it takes to have learned, in words.
    margin: the difference within which two schemes are equal; 0 is none.
    evaluations: those that enter the means, by name, each with the heading of its column.
    data: a sentence that the runs did not all see the same data; '' where they did.
  """

  rows: tuple[Row, ...]
  baseline: str
  measure: Measure
  learned: str
  margin: float
  evaluations: dict[str, str]
  data: str = ''

  @property
  def unit(self) -> str:
    """The unit of quality."""
    return self.measure.unit

  @property
  def uncorrected(self) -> int:
    """How many intervals of differences stand beside each other; one seed alone has none."""
    return sum(row.difference is not None and row.difference.count > 1 for row in self.rows)


def summarize(
  cells: Sequence[Cell],
  results: Mapping[str, Line],
  baseline: str,
  rules: Rules,
  allow_changed_data: bool = False,
) -> Summary | None:
  """Gathers the seeds of each scheme. None if no cell has finished.

  Raises:
    ValueError: if the runs have no metric of that name, or they saw different data.
  """
  ended = [(cell, results[cell.id]) for cell in cells if 'scores' in results.get(cell.id, ())]
  finished = [line for _, line in ended]
  if not finished:
    return None
  different = different_data(ended)
  if different and not allow_changed_data:
    raise ValueError(
      f'{different} Take the lines of one of them out of results.jsonl to have them run again, or '
      'go on nevertheless with --allow_changed_data.'
    )
  groups = {}
  for cell in cells:
    groups.setdefault((cell.scheme, str(cell.axes)), []).append(cell)
  what = measure(finished[0], rules)
  rows = {key: _row(group, results, rules) for key, group in groups.items()}
  rows = [
    _compared(row, rows[baseline, str(row.axes)], baseline, what.higher, rules.margin)
    for row in rows.values()
  ]
  found = _evaluations(finished, what.name)
  learned = stated_rule(finished[0], rules)
  return Summary(tuple(rows), baseline, what, learned, rules.margin, found, different)


Known = Mapping[tuple[str, ...], str]  # of `data_of`


def data_of(ended: Iterable[tuple[Cell, Line]]) -> Known:
  """The hashes of what runs that ended have read; the first where they differ.

  Lines that do not say are left out.
  """
  known: dict[tuple[str, ...], str] = {}
  for cell, line in ended:
    for name, sha256 in hashes(line).items():
      known.setdefault(_key(cell, name), sha256)
  return known


def expected_data(known: Known, cell: Cell) -> dict[str, str]:
  """By name, those of the hashes that the run of a cell should have, too."""
  return {key[0]: sha256 for key, sha256 in known.items() if key == _key(cell, key[0])}


def _key(cell: Cell, name: str) -> tuple[str, ...]:
  """A hash's name, with what decides the data it is of: the axes and, for batches, the seed."""
  return (name, str(cell.axes), *([str(cell.seed)] if name == EXAMPLES else []))


def different_data(ended: Sequence[tuple[Cell, Line]]) -> str:
  """A sentence about runs that are compared and did not see the same data; '' if all did."""
  known, parts = data_of(ended), []
  for cell, line in ended:
    where = f'{cell.scheme}, seed {cell.seed}'
    other = other_data(expected_data(known, cell), hashes(line))
    if other:
      parts.append(f'{where} had {other}')
    elif 'changed' in line:
      parts.append(f'{where}: {line["changed"].rstrip(".")}')
  if not parts:
    return ''
  return f'These runs did not see the same data, by their sha256: {"; ".join(parts)}.'


def summarize_lines(results: Mapping[str, Line], baseline: str, rules: Rules) -> Summary | None:
  """As `summarize`, of all runs in a results.jsonl, whatever commands they came from.

  Args:
    results: of `results.read`.
    baseline: a scheme among them, with every axis value.
    rules: what quality is, and when a run has learned.
  """
  cells = [
    Cell(name, row['scheme'], row['axes'], row['seed'], ConfigDict())
    for name, row in results.items()
  ]
  return summarize(cells, results, baseline, rules)


def _evaluations(lines: Sequence[Line], metric: str) -> dict[str, str]:
  """The evaluations of all lines that have the metric, by length where they have one."""
  found = {
    name: (line['evaluations'][name]['length'], label(line, name))
    for line in lines
    for name in judged(line)
    if metric in line['scores'][name]
  }
  order = sorted(found, key=lambda name: (found[name][0] is None, found[name][0] or 0))
  return {name: found[name][1] for name in order}


def stated_rule(line: Line, rules: Rules) -> str:
  """The rule by which a run has learned, in words."""
  name, where = learned_by(line, rules)
  metric = line['evaluations'][where[0]]['metrics'][name]
  places = {
    'training rows': 'in rows of the training data',
    'trained': 'in evaluations like the training data',
  }
  place = places.get(line['evaluations'][where[0]]['role'], f"in '{where[0]}'")
  if metric['best'] is not None:
    return f'at least {rules.learned * metric["best"] * metric["scale"]:g} {metric["unit"]} {place}'
  if _constant(line, name, where) is None:
    return f'every run, since {name!r} has no best number, and that of no constant answer is known'
  share = f'{100 * rules.learned:g} %'
  return f'at least {share} of the {name} of the best constant answer gone {place}'


def _constant(line: Line, name: str, where: Sequence[str]) -> float | None:
  """The number of the best constant answer, the mean over evaluations; None if it is not known."""
  return _mean([line['scores'][each].get('constant', {}).get(name) for each in where])


def learned_by(line: Line, rules: Rules) -> tuple[str, list[str]]:
  """The metric by which a line has learned, and the evaluations that have it.

  They are those of training rows, if there are any; else those like the training data; else the
  first one of the others, as that of the right next token is of a translation.

  Raises:
    ValueError: if no evaluation has the metric.
  """
  name = rules.learned_by or measure(line, rules).name
  having = {
    role: [
      evaluation
      for evaluation, each in line['evaluations'].items()
      if each['role'] == role and name in each['metrics']
    ]
    for role in ('training rows', 'trained', 'other')
  }
  where = having['training rows'] or having['trained'] or having['other'][:1]
  if not where:
    known = {metric for each in line['evaluations'].values() for metric in each['metrics']}
    raise ValueError(
      f'compare.learned_by must be one of {", ".join(sorted(known))}, or nothing, but got {name!r}.'
    )
  return name, where


def judge(line: Line, seed: int, rules: Rules) -> Judged:
  """Reads a line of results.jsonl."""
  what = measure(line, rules)
  quality = {
    name: value
    for role in ('trained', 'unseen')
    for name, value in _values(line, what, role).items()
  }
  trained = _values(line, what, 'trained')
  unseen = _values(line, what, 'unseen') or trained
  why = {name: line['scores'][name]['why'] for name in quality if line['scores'][name]['why']}
  return Judged(
    seed,
    _mean(list(trained.values())) is not None and _learned(line, rules),
    _mean(list(trained.values())),
    _mean(list(unseen.values())),
    _left_out(line, what, list(unseen)),
    quality,
    why,
    line,
  )


def _left_out(line: Line, what: Measure, names: Sequence[str]) -> tuple[float, ...]:
  """The mean of evaluations without each group of their rows, where all have as many groups."""
  without = [line['scores'][name].get('left_out', {}).get(what.name) for name in names]
  if not all(without) or len({len(each) for each in without}) > 1:
    return ()
  means = [_mean(values) for values in zip(*without, strict=True)]
  known = [what.scale * mean for mean in means if mean is not None]
  return tuple(known) if len(known) == len(means) else ()


def _values(line: Line, what: Measure, role: str) -> dict[str, float | None]:
  """The metric, as shown, of the evaluations with a role that have it."""
  return {
    name: None if scores[what.name] is None else what.scale * scores[what.name]
    for name, scores in line['scores'].items()
    if line['evaluations'][name]['role'] == role and what.name in scores
  }


def _learned(line: Line, rules: Rules) -> bool:
  name, where = learned_by(line, rules)
  value = _mean([line['scores'][each][name] for each in where])
  if value is None:
    return False
  best = line['evaluations'][where[0]]['metrics'][name]['best']
  if best is not None:
    return value >= best * rules.learned
  constant = _constant(line, name, where)
  return constant is None or 1 - value / constant >= rules.learned


def _mean(values: Sequence[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return sum(known) / len(known) if values and len(known) == len(values) else None


def _row(group: Sequence[Cell], results: Mapping[str, Line], rules: Rules) -> Row:
  ended = {cell.seed: results[cell.id] for cell in group if cell.id in results}
  failed = {seed: row['error'] for seed, row in ended.items() if 'error' in row}
  cells = tuple(judge(row, seed, rules) for seed, row in ended.items() if seed not in failed)
  good = [each for each in cells if each.learned]
  names = dict.fromkeys(name for each in cells for name in each.by_evaluation)
  step = functools.partial(_step, rules=rules)
  best = measure(cells[0].result, rules).best if cells else None
  over = functools.partial(_over, best=best)
  return Row(
    scheme=group[0].scheme,
    axes=group[0].axes,
    cells=cells,
    failed=failed,
    missing=len(group) - len(ended),
    learned=len(good),
    trained=over([each.trained for each in cells], step(cells, role='trained')),
    unseen=over(
      [each.unseen for each in good], step(good, role='unseen'), [x.left_out for x in good]
    ),
    step=step(cells, role='unseen'),
    by_evaluation={
      name: over([each.by_evaluation.get(name) for each in good], step(good, name=name))
      for name in names
    },
    difference=None,
    verdict='',
    note=_note(cells, good, failed),
  )


def _note(cells, good, failed) -> str:
  if failed:
    return f'failed: {next(iter(failed.values()))}'
  if cells and not good:
    return 'has not learned what it was trained on'
  why = {label(each.result, name): word for each in good for name, word in each.why.items()}
  if why:
    return f'no answer at {", ".join(why)}: {next(iter(why.values()))}'
  return ''


def _step(
  cells: Sequence[Judged], *, rules: Rules, role: str | None = None, name: str | None = None
) -> float:
  """How much one answer moves one evaluation, or the mean over those with a role.

  0 for a loss.
  """
  cell = next((each for each in cells if name in (None, *each.by_evaluation)), None)
  best = None if cell is None else measure(cell.result, rules).best
  if cell is None or best is None:
    return 0.0
  line = cell.result
  chosen = [name] if name else list(cell.by_evaluation)
  there = [one for one in chosen if role in (None, line['evaluations'][one]['role'])]
  counted = sum(line['scores'][one]['counted'] for one in there or chosen)
  return best / counted if counted else 0.0


def _known_of_all(left_out: Sequence[tuple[float, ...]]) -> bool:
  """Whether all runs say what leaving examples out does to them, in as many groups."""
  return all(left_out) and len({len(each) for each in left_out}) == 1


def _over(
  values: Sequence[float | None],
  step: float,
  left_out: Sequence[tuple[float, ...]] = (),
  *,
  best: float | None,
) -> Interval | None:
  """The mean with its interval, which ends where such numbers do: at 0 and at the best."""
  known = [value for value in values if value is not None]
  if not values or len(known) < len(values):
    return None
  found = interval(known, step, left_out=left_out if _known_of_all(left_out) else None)
  if best is None or min(known) < 0 or max(known) > best:
    return found
  return found._replace(low=max(found.low, 0.0), high=min(found.high, best))


def _compared(row: Row, base: Row, baseline: str, higher: bool, margin: float) -> Row:
  """A row with its difference to the baseline's, over seeds that learned in both."""
  if row.scheme == baseline:
    return row
  theirs, mine = (
    {
      each.seed: (each.unseen, each.left_out)
      for each in cells
      if each.learned and each.unseen is not None
    }
    for cells in (base.cells, row.cells)
  )
  pairs = [(one, theirs[seed]) for seed, one in mine.items() if seed in theirs]
  if not pairs:
    return row._replace(note=row.note or 'the baseline has no run of the same seed to compare with')
  values = [one[0] - other[0] for one, other in pairs]
  without = None
  if _known_of_all([each[1] for pair in pairs for each in pair]):
    without = [np.subtract(one[1], other[1]).tolist() for one, other in pairs]
  difference, narrower = (
    interval(values, row.step, level, without) for level in (LEVEL, EQUAL_LEVEL)
  )
  word = verdict(difference, higher, margin, narrower)
  return row._replace(difference=difference, verdict=word)
