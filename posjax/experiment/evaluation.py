"""How good a model is at each length, and at each position."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from posjax.experiment.sharding import put_batch, put_whole
from posjax.experiment.tasks import Batch, Task


class Score(NamedTuple):
  """One length's result.

  Attributes:
    length: tokens, or as the task counts.
    loss: mean over the counted tokens, in the task's unit; NaN where a scheme has no answer.
    accuracy: share of tokens, or of whole answers for tasks that score those.
    tokens: how many were counted.
    by_position: mean loss at each position of the row, in the task's unit; NaN where none counts.
    refused: why the model takes no input of this length, where it says so; '' otherwise.
  """

  length: int
  loss: float
  accuracy: float
  tokens: int
  by_position: np.ndarray
  refused: str = ''


def evaluate(task: Task, graph: Any, state: Any, length: int, mesh, key) -> Score:
  """Scores a model at one length.

  Args:
    task: what to score.
    graph: the model's structure, of `nnx.split`.
    state: its parameters and statistics.
    length: one of the task's.
    mesh: devices.
    key: random key of place 0: equal keys draw equal ids.
  """
  batches = task.eval_batches(length)
  try:
    totals = _totals(task, graph, state, batches, mesh, key)
  except ValueError as error:  # raised while tracing: a declared length that ids do not fit in
    return Score(length, np.nan, np.nan, 0, np.full(1, np.nan), refused=str(error))
  loss, weight, right, answers = totals
  with np.errstate(invalid='ignore', divide='ignore'):
    by_position = task.per_nat * loss / weight
  mean = task.per_nat * loss.sum() / weight.sum()
  return Score(length, float(mean), float(right / answers), int(weight.sum()), by_position)


def check_first(task: Task, graph: Any, state: Any, batch: Batch, mesh) -> None:
  """What a scheme refuses, and positions beyond its table, before anything is trained.

  Raises:
    ValueError: if an untrained model has no loss for a training batch.
  """
  key = jax.random.key(0)
  loss, *_ = _scorer(task.losses, task.exact)(graph, state, put_batch(batch, mesh), key)
  if not np.isfinite(loss).all():
    raise ValueError(
      'An untrained model has a loss that is not a number: rows of the training length hold '
      'positions beyond a table of the scheme.'
    )


def _totals(task: Task, graph, state, batches: Iterable[Batch], mesh, key):
  score = _scorer(task.losses, task.exact)
  sums = (np.zeros(()),) * 4
  for i, batch in enumerate(batches):
    new = score(graph, state, put_whole(batch, mesh), jax.random.fold_in(key, i))
    sums = tuple(a + np.asarray(b, np.float64) for a, b in zip(sums, new, strict=True))
  return sums


@functools.cache
def _scorer(losses, exact: bool):
  """A jitted function to sums over a batch: loss and weight by position, right, and answers."""

  @functools.partial(jax.jit, static_argnames='graph')
  def score(graph, state, batch, key):
    loss, weights, correct = losses(nnx.merge(graph, state), batch, key, None)
    sums = (loss * weights).sum(0), weights.sum(0)
    if exact:
      answered = weights.sum(1) > 0
      right = (correct * weights).sum(1) == weights.sum(1)
      return (*sums, (right & answered).sum(), answered.sum())
    return (*sums, (correct * weights).sum(), weights.sum())

  return score
