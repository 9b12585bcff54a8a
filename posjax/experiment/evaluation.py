"""Runs a task's evaluations: predictions on the devices, metrics on the host.

A score is numbers by the metric's name, and what stands beside them. Scores as JSON, with the
description of their evaluations, are all that reports and comparisons read.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posjax.experiment.sharding import put_batch, put_state, put_whole, seen
from posjax.experiment.task import Arrays, Batch, Evaluation, Role, Task

BEYOND = 'beyond its table'
RESERVED = ('counted', 'why', 'constant', 'left_out')  # stored beside the metrics of a score
GROUPS = 20  # of rows, one of which is left out at a time; intervals follow from what it changes


class Score(NamedTuple):
  """The result of one evaluation.

  Attributes:
    values: by metric, a number each; NaN where there is none.
    arrays: by metric, those that are arrays for a picture; none where nothing was computed.
    counted: how many tokens or answers the first metric is a mean over.
    why: why there are no numbers: `BEYOND` where the model's output is NaN, or what the model said
      when it refused the input; '' where there are numbers.
    errors: by metric, the standard errors of its number or array, where they are known.
    constant: by metric, the number of the best constant answer, where it is known.
    left_out: by metric, its number without one of `GROUPS` groups of rows each, in their order; of
      as many as there are rows where these are fewer. Nothing where it was not asked for.
  """

  values: Mapping[str, float]
  arrays: Mapping[str, np.ndarray] = MappingProxyType({})
  counted: int = 0
  why: str = ''
  errors: Mapping[str, Any] = MappingProxyType({})
  constant: Mapping[str, float] = MappingProxyType({})
  left_out: Mapping[str, Sequence[float]] = MappingProxyType({})


class Refused(Exception):
  """A model takes no batch of an evaluation; the message is its own."""


def check(task: Task) -> None:
  """Checks what a task says of its evaluations."""
  names = [evaluation.name for evaluation in task.evaluations]
  twice = [name for name in names if names.count(name) > 1]
  if not names or twice:
    got = f'{twice[0]!r} twice' if twice else 'none'
    raise ValueError(f'A task should have evaluations with different names, but got {got}.')
  if task.evaluations[0].role != 'trained':
    raise ValueError(
      f"The first evaluation should have the role 'trained', but {names[0]!r} has "
      f'{task.evaluations[0].role!r}.'
    )
  for evaluation in task.evaluations:
    if evaluation.role not in get_args(Role):
      known = ', '.join(get_args(Role))
      raise ValueError(
        f'The role of {evaluation.name!r} should be one of {known}, but is {evaluation.role!r}.'
      )
    if not evaluation.metrics or next(iter(evaluation.metrics.values())).array:
      raise ValueError(
        f'The first metric of {evaluation.name!r} should be a number, but got '
        f'{next(iter(evaluation.metrics), "none")!r}.'
      )
    reserved = [name for name in evaluation.metrics if name in RESERVED or '/' in name]
    if reserved:
      raise ValueError(
        f'A metric should not be called {", ".join(RESERVED)}, nor have a slash in its name, but '
        f'{evaluation.name!r} has {reserved[0]!r}.'
      )


def evaluate(
  evaluation: Evaluation, graph: Any, state: Any, mesh: Mesh, key, leave_out: bool = False
) -> Score:
  """Scores a model; with `leave_out`, also without one group of its rows at a time."""
  numbers = [name for name, metric in evaluation.metrics.items() if not metric.array]
  nothing = dict.fromkeys(numbers, math.nan)
  sums, counted, beyond = None, 0, False
  groups = Groups(evaluation) if leave_out else None
  try:
    for batch, arrays in predictions(evaluation, graph, state, mesh, key):
      new = {name: metric.update(arrays, batch) for name, metric in evaluation.metrics.items()}
      sums = new if sums is None else add(sums, new)
      if groups is not None:
        groups.update(arrays, batch)
      counted += evaluation.counted(arrays, batch)
      beyond = beyond or any(map(_has_nan, jax.tree.leaves(arrays)))
  except Refused as refusal:
    return Score(nothing, why=str(refusal))
  if sums is None:
    raise ValueError(f'The evaluation {evaluation.name!r} should have batches, but has none.')
  found = {name: metric.finish(sums[name]) for name, metric in evaluation.metrics.items()}
  arrays = {name: np.asarray(found[name]) for name in found if name not in nothing}
  if beyond:
    return Score(nothing, arrays, counted, BEYOND)
  measured = evaluation.metrics.items()
  return Score(
    {name: float(found[name]) for name in numbers},
    arrays,
    counted,
    errors={name: each.error(sums[name]) for name, each in measured if each.error is not None},
    constant={
      name: each.constant(sums[name]) for name, each in measured if each.constant is not None
    },
    left_out={} if groups is None else groups.left_out(),
  )


class Groups:
  """The sums of an evaluation's metrics over groups of neighbouring rows, about as many in each.

  Neighbours stay together, since windows of one text are not drawn alone. Rows that only fill up a
  batch, in which nothing is counted, join the group of the row before them.
  """

  def __init__(self, evaluation: Evaluation):
    self.counted = evaluation.counted
    self.metrics = {name: each for name, each in evaluation.metrics.items() if not each.array}
    self.rows: list[dict[str, Any]] = []  # the sums of each
    self.full: list[bool] = []  # whether something is counted in it

  def update(self, arrays: Arrays, batch: Batch) -> None:
    """Adds the rows of the next batch."""
    for row in range(_rows(batch)):
      part = jax.tree.map(lambda x, at=row: x[at : at + 1], (arrays, batch))
      self.rows.append({name: metric.update(*part) for name, metric in self.metrics.items()})
      self.full.append(self.counted(*part) > 0)

  def left_out(self) -> dict[str, list[float]]:
    """By metric, the numbers without each group; nothing where there is but one."""
    total = sum(self.full)
    count = min(GROUPS, total)
    if count < 2:
      return {}
    group = np.maximum(np.cumsum(self.full) - 1, 0) * count // total
    ends = np.searchsorted(group, np.arange(count + 1))
    sums = [functools.reduce(add, self.rows[a:b]) for a, b in itertools.pairwise(ends)]
    without = [functools.reduce(add, sums[:left] + sums[left + 1 :]) for left in range(count)]
    return {
      name: [float(metric.finish(each[name])) for each in without]
      for name, metric in self.metrics.items()
    }


def predictions(
  evaluation: Evaluation, graph: Any, state: Any, mesh: Mesh, key
) -> Iterator[tuple[Batch, Arrays]]:
  """Each batch of an evaluation with what the model predicts for it; arguments as of `evaluate`.

  What the model remembers goes from each batch to the next.

  Raises:
    Refused: if the model raises ValueError when its prediction is traced: an evaluation may be
      longer than the length that a scheme declares.
    ValueError: if a prediction has another number of rows than its batch.
  """
  if evaluation.model is not None:
    graph = _structure(evaluation.model)
  predict = _compiled(evaluation.predict, mesh)
  carried = None
  for i, whole in enumerate(evaluation.batches()):
    batch = put_whole(whole, mesh)
    rows, padded = _rows(whole), _rows(batch)
    try:
      if i == 0 and evaluation.start is not None:
        carried = put_state(functools.partial(evaluation.start, padded), mesh)
      arrays, carried = predict(graph, state, batch, carried, jax.random.fold_in(key, i))
    except ValueError as error:
      raise Refused(str(error)) from error
    yield whole, jax.tree.map(functools.partial(_cut, rows, padded), arrays)


def add(one: Any, other: Any) -> Any:
  """The sum of two sums: tuples and dictionaries part by part, everything else with `+`.

  Example:
    >>> add((1, ['a b']), (2, ['c']))
    (3, ['a b', 'c'])
  """
  if isinstance(one, tuple):
    parts = [add(*pair) for pair in zip(one, other, strict=True)]
    return type(one)(*parts) if hasattr(one, '_fields') else tuple(parts)
  if isinstance(one, Mapping) and not hasattr(one, '__add__'):  # a Counter has an addition
    return {name: add(one[name], other[name]) for name in one}
  return one + other


def unseen(evaluations: Sequence[Evaluation], scores: Mapping[str, Score]) -> dict[str, float]:
  """The mean of each of the headline's metrics over the unseen evaluations, each weighing alike.

  Returns:
    By metric, NaN where one of the evaluations has no number; metrics that one of them does not
    have are left out. Nothing where no evaluation is unseen.
  """
  beyond = [scores[each.name].values for each in evaluations if each.role == 'unseen']
  shared = [name for name in scores[evaluations[0].name].values if all(name in b for b in beyond)]
  return {name: float(np.mean([b[name] for b in beyond])) for name in shared} if beyond else {}


def higher(task: Task) -> dict[str, bool]:
  """Whether higher is better, of each metric measured during training; the headline's come first.

  Returns:
    By name, as of `measured`; nothing where all evaluations run at the end alone.
  """
  return {
    _named(task, evaluation, name): metric.higher
    for evaluation in task.evaluations
    for name, metric in evaluation.metrics.items()
    if evaluation.during and not metric.array
  }


def measured(task: Task, scores: Mapping[str, Score]) -> dict[str, float]:
  """The numbers of scores: 'loss' of the headline, 'EVALUATION/loss' of the others."""
  return {
    _named(task, evaluation, name): value
    for evaluation in task.evaluations
    if evaluation.name in scores
    for name, value in scores[evaluation.name].values.items()
  }


def _named(task: Task, evaluation: Evaluation, metric: str) -> str:
  headline = evaluation.name == task.evaluations[0].name
  return metric if headline else f'{evaluation.name}/{metric}'


def check_first(task: Task, graph: Any, state: Any, batch: Batch, mesh: Mesh) -> None:
  """Checks that an untrained model takes the first batch, and the furthest one, as in training."""

  @functools.partial(jax.jit, static_argnames='graph')
  def loss(graph, state, batch, carried, key):
    with seen(mesh):
      return task.loss(nnx.merge(graph, state), batch, carried, *jax.random.split(key))[0]

  batches, carried, what = [batch], None, 'rows of the training length'
  if task.memory is not None:
    batches, what = [batch, task.memory.furthest(batch)], 'streams'
    carried = put_state(task.memory.start, mesh)
  for each in batches:
    if not np.isfinite(loss(graph, state, put_batch(each, mesh), carried, jax.random.key(0))):
      raise ValueError(
        f'An untrained model has a loss that is not a number: {what} hold positions beyond a table '
        'of the scheme.'
      )


def described(task: Task) -> dict[str, Any]:
  """Describes the evaluations of a task as JSON, so that scores can be read without the task."""
  return {
    evaluation.name: {
      'role': evaluation.role,
      'length': evaluation.length,
      'metrics': {
        name: {
          'unit': metric.unit,
          'higher': metric.higher,
          'best': metric.best,
          'scale': metric.scale,
        }
        for name, metric in evaluation.metrics.items()
        if not metric.array
      },
    }
    for evaluation in task.evaluations
  }


def plain(score: Score) -> dict[str, Any]:
  """A score as JSON, without its arrays; non-finite values become null.

  Its numbers are whole; those that `left_out` and `constant` have are rounded to eight digits.
  """
  rounded = lambda value: float(f'{value:.8g}')
  others = {
    'constant': {name: rounded(value) for name, value in score.constant.items()},
    'left_out': {name: list(map(rounded, values)) for name, values in score.left_out.items()},
  }
  numbers = {**finite(dict(score.values)), 'counted': score.counted, 'why': score.why}
  return numbers | finite({name: value for name, value in others.items() if value})


def finite(value: Any) -> Any:
  """JSON values, with None for each number that is not finite."""
  if isinstance(value, dict):
    return {name: finite(each) for name, each in value.items()}
  if isinstance(value, list):
    return [finite(each) for each in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


@functools.cache
def _compiled(predict: Callable[..., Any], mesh: Mesh):
  """A jitted function `(graph, state, batch, carried, key) -> (arrays, carried)`.

  Every host gets the arrays whole; what is remembered stays where it is.
  """
  everywhere = NamedSharding(mesh, PartitionSpec())

  @functools.partial(jax.jit, static_argnames='graph')
  def run(graph, state, batch, carried, key):
    with seen(mesh):
      arrays, carried = predict(nnx.merge(graph, state), batch, carried, key)
    return jax.lax.with_sharding_constraint(arrays, everywhere), carried

  return run


@functools.cache
def _structure(make: Callable[[nnx.Rngs], nnx.Module]) -> Any:
  """A model's structure, without its arrays."""
  kept = {}

  def split():
    kept['graph'], state = nnx.split(make(nnx.Rngs(0)))
    return state

  jax.eval_shape(split)
  return kept['graph']


def _rows(batch: Batch) -> int:
  return len(next(iter(batch.values())))


def _cut(rows: int, padded: int, array: jax.Array) -> np.ndarray:
  """An array on the host, without the rows that fill up the devices."""
  if array.ndim == 0 or len(array) != padded:
    raise ValueError(
      f'A prediction should have a row for each of the {padded} rows of its batch, but got an '
      f'array of shape {array.shape}.'
    )
  return np.asarray(array)[:rows]


def _has_nan(array: np.ndarray) -> bool:
  return np.issubdtype(array.dtype, np.floating) and bool(np.isnan(array).any())
