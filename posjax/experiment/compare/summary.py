"""What a grid says: a row for each scheme and axis value, over its seeds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from posjax.experiment.compare.grid import Cell
from posjax.experiment.compare.statistics import Interval, interval, verdict

Result = Mapping[str, Any]  # a line of results.jsonl


QUALITIES = {'answers': 'accuracy', 'tokens': 'token_accuracy'}  # the number of a score


class Rules(NamedTuple):
  """How runs are judged: the section `compare` of a config.

  Attributes:
    quality: of tasks of whole answers: 'answers', the share of whole answers that are right, or
      'tokens', that of their tokens. Other tasks are judged by their loss.
    learned_accuracy: of the quality, in (0, 1]: such tasks are learned from there on.
    learned_share: of an untrained model's loss, in (0, 1]: other tasks are learned once it is gone.
  """

  quality: str
  learned_accuracy: float
  learned_share: float

  def check(self) -> 'Rules':
    """These rules.

    Raises:
      ValueError: if one is out of its range.
    """
    if self.quality not in QUALITIES:
      raise ValueError(
        f'compare.quality must be one of {", ".join(QUALITIES)}, but got {self.quality!r}.'
      )
    for name in ('learned_accuracy', 'learned_share'):
      if not 0 < getattr(self, name) <= 1:
        raise ValueError(f'compare.{name} must be in (0, 1], but got {getattr(self, name)}.')
    return self


class Judged(NamedTuple):
  """What one finished cell says.

  Attributes:
    seed: of the run.
    learned: whether it has learned its own training lengths.
    trained: quality there.
    unseen: mean quality over longer lengths; None if there is none at some length.
    by_length: quality by length; None where there is none.
    why: why there is none, by length.
    result: its line.
  """

  seed: int
  learned: bool
  trained: float | None
  unseen: float | None
  by_length: dict[int, float | None]
  why: dict[int, str]
  result: Result


class Row(NamedTuple):
  """A scheme with its axis values, over seeds; means are over the runs that have learned.

  Attributes:
    scheme: as on the command line.
    axes: value by config key.
    cells: those that finished.
    failed: error by seed.
    missing: how many have not ended.
    learned: how many of the finished ones have learned their training lengths.
    trained: quality at the training lengths, of all that finished.
    unseen: mean quality over longer lengths.
    by_length: quality by length.
    difference: to the baseline in `unseen`, over seeds that learned in both.
    verdict: 'above', 'below' or 'unresolved'; '' where nothing is compared.
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
  by_length: dict[int, Interval | None]
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


class Summary(NamedTuple):
  """All rows, and how to read them.

  Attributes:
    rows: in the grid's order.
    baseline: the scheme that the others are compared with.
    exact: whether quality is a percentage of what is right; a loss in `unit` otherwise.
    unit: of quality.
    learned: what it takes to have learned, in words.
  """

  rows: tuple[Row, ...]
  baseline: str
  exact: bool
  unit: str
  learned: str


def summarize(
  cells: Sequence[Cell],
  results: Mapping[str, Result],
  baseline: str,
  rules: Rules,
) -> Summary | None:
  """Gathers the seeds of each scheme. None if no cell has finished.

  Args:
    cells: the grid.
    results: what ended, by cell.
    baseline: a scheme of the grid.
    rules: what quality is, and when a run has learned.
  """
  finished = [results[cell.id] for cell in cells if 'scores' in results.get(cell.id, ())]
  if not finished:
    return None
  groups = {}
  for cell in cells:
    groups.setdefault((cell.scheme, str(cell.axes)), []).append(cell)
  exact = finished[0]['exact']
  rows = {key: _row(group, results, rules) for key, group in groups.items()}
  rows = [_compared(row, rows[baseline, str(row.axes)], baseline, exact) for row in rows.values()]
  unit = f'% of {rules.quality} right' if exact else finished[0]['unit']
  return Summary(tuple(rows), baseline, exact, unit, _threshold(finished[0], rules))


def summarize_lines(results: Mapping[str, Result], baseline: str, rules: Rules) -> Summary | None:
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


def _threshold(result: Result, rules: Rules) -> str:
  if result['exact']:
    where = 'of training length' if _in_training(result) is None else 'to training texts'
    return f'at least {100 * rules.learned_accuracy:g} % of the {rules.quality} {where}'
  return f'at least {100 * rules.learned_share:g} % of the untrained loss gone at training length'


def judge(result: Result, seed: int, rules: Rules) -> Judged:
  """Reads a line of results.jsonl. The first length is the longest trained one."""
  exact, scores = result['exact'], result['scores']
  quality = {score['length']: _quality(score, exact, rules) for score in scores}
  longest = scores[0]['length']
  trained = _mean([quality[length] for length in quality if length <= longest])
  unseen = [quality[length] for length in quality if length > longest]
  if trained is None:
    learned = False
  elif exact:
    known = _in_training(result)
    learned = (trained if known is None else known) >= 100 * rules.learned_accuracy
  else:
    learned = 1 - trained / result['untrained'] >= rules.learned_share
  why = {score['length']: score['why'] for score in scores if score['why']}
  return Judged(seed, learned, trained, _mean(unseen or [trained]), quality, why, result)


def _in_training(result: Result) -> float | None:
  """Right answers to rows of the training itself, in percent; None where those are not asked."""
  share = result['scores'][0].get('training_accuracy')
  return None if share is None else 100 * share


def _quality(score: Mapping[str, Any], exact: bool, rules: Rules) -> float | None:
  value = score[QUALITIES[rules.quality] if exact else 'loss']
  return None if value is None else 100 * value if exact else value


def _mean(values: Sequence[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return sum(known) / len(known) if values and len(known) == len(values) else None


def _row(group: Sequence[Cell], results: Mapping[str, Result], rules: Rules) -> Row:
  ended = {cell.seed: results[cell.id] for cell in group if cell.id in results}
  failed = {seed: row['error'] for seed, row in ended.items() if 'error' in row}
  judged = tuple(judge(row, seed, rules) for seed, row in ended.items() if seed not in failed)
  good = [each for each in judged if each.learned]
  lengths = judged[0].by_length if judged else ()
  return Row(
    scheme=group[0].scheme,
    axes=group[0].axes,
    cells=judged,
    failed=failed,
    missing=len(group) - len(ended),
    learned=len(good),
    trained=_over([each.trained for each in judged], _step(judged, unseen=False)),
    unseen=_over([each.unseen for each in good], _step(good, unseen=True)),
    by_length={
      length: _over([each.by_length[length] for each in good], _step(good, length=length))
      for length in lengths
    },
    difference=None,
    verdict='',
    note=_note(judged, good, failed),
  )


def _note(judged, good, failed) -> str:
  if failed:
    return f'failed: {next(iter(failed.values()))}'
  if judged and not good:
    return 'has not learned its training lengths'
  why = {length: word for each in good for length, word in each.why.items()}
  if why:
    return f'no answer at {", ".join(map(str, why))}: {next(iter(why.values()))}'
  return ''


def _step(judged: Sequence[Judged], *, unseen: bool = False, length: int | None = None) -> float:
  """What one answer is worth, in percent; 0 for a loss."""
  if not judged or not judged[0].result['exact']:
    return 0.0
  scores = judged[0].result['scores']
  longest = scores[0]['length']
  chosen = [s for s in scores if (s['length'] > longest) == unseen] or scores
  if length is not None:
    chosen = [s for s in scores if s['length'] == length]
  return 100 / sum(score['answers'] for score in chosen)


def _over(values: Sequence[float | None], step: float) -> Interval | None:
  known = [value for value in values if value is not None]
  return interval(known, step) if values and len(known) == len(values) else None


def _compared(row: Row, base: Row, baseline: str, exact: bool) -> Row:
  """A row with its difference to the baseline's, over seeds that learned in both."""
  if row.scheme == baseline:
    return row
  theirs, mine = (
    {each.seed: each.unseen for each in cells if each.learned and each.unseen is not None}
    for cells in (base.cells, row.cells)
  )
  pairs = [value - theirs[seed] for seed, value in mine.items() if seed in theirs]
  if not pairs:
    return row._replace(note=row.note or 'the baseline has no run of the same seed to compare with')
  difference = interval(pairs, _step(row.cells, unseen=True))
  return row._replace(difference=difference, verdict=verdict(difference, exact))
