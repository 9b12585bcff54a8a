"""How good a model is at each length, and at each position."""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from flax import nnx

from posjax.experiment.sharding import put_batch, put_state, put_whole
from posjax.experiment.tasks import Batch, Task

MEANS = ('loss', 'accuracy', 'token_accuracy', 'greedy_accuracy', 'greedy_token_accuracy')


def higher(task: Task) -> dict[str, bool]:
  """The metrics that a run measures while it trains, and whether higher is better; headline first.

  Args:
    task: of the run.
  """
  known = {'accuracy': True, 'token_accuracy': True}
  return {**known, 'loss': False} if task.exact else {'loss': False, **known}


class Score(NamedTuple):
  """One length's result.

  Attributes:
    length: tokens, or as the task counts.
    loss: mean over the counted tokens, in the task's unit; NaN where a scheme has no answer.
    accuracy: share of tokens, or of whole answers for tasks that score those.
    tokens: how many were counted.
    by_position: mean loss at each position of the row, in the task's unit; NaN where none counts.
    refused: why the model takes no input of this length, where it says so; '' otherwise.
    token_accuracy: share of tokens that are right, a decoder's each after the right ones before it
      (teacher forcing).
    greedy_accuracy: share of whole answers that are right where the model goes on from its own
      tokens; NaN where the task does not ask for it.
    greedy_token_accuracy: share of tokens that are right then; none is, after an end said too soon.
    windowed: the score where every layer attends to the last tokens only, as many as a training row
      has; None where the task does not ask for it.
    restated: the loss in the task's other units, by name.
    training_accuracy: share of right answers to training rows, as the task chose them; NaN where it
      does not ask for it.
  """

  length: int
  loss: float
  accuracy: float
  tokens: int
  by_position: np.ndarray
  refused: str = ''
  token_accuracy: float = math.nan
  greedy_accuracy: float = math.nan
  greedy_token_accuracy: float = math.nan
  windowed: Self | None = None
  restated: Mapping[str, float] = MappingProxyType({})
  training_accuracy: float = math.nan


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
  score = _scored(task, graph, state, length, mesh, key)
  if task.windowed is not None:
    windowed = _scored(task, _structure(task.windowed), state, length, mesh, key)
    score = score._replace(windowed=windowed)
  if task.learned_batches is not None and not score.refused:
    again = task._replace(eval_batches=lambda _: task.learned_batches())
    learned = _scored(again, graph, state, length, mesh, key)
    score = score._replace(training_accuracy=learned.accuracy)
  if task.continued is not None and not score.refused:
    batches = task.eval_batches(length)
    answers, tokens = _greedy(task.continued, nnx.merge(graph, state), batches, key)
    score = score._replace(greedy_accuracy=answers, greedy_token_accuracy=tokens)
  return score


def unseen(scores: Sequence[Score]) -> Score | None:
  """Means over the lengths beyond the trained one, each length alike; None where there is none.

  Args:
    scores: the training length's first.

  Returns:
    A score whose `MEANS` are means, NaN where one of the lengths has no number; its length is the
    longest, its tokens are those of all, and it has no positions.
  """
  beyond = [score for score in scores if score.length > scores[0].length]
  if not beyond:
    return None
  mean = lambda name: float(np.mean([getattr(score, name) for score in beyond]))
  return Score(
    length=max(score.length for score in beyond),
    loss=mean('loss'),
    accuracy=mean('accuracy'),
    tokens=sum(score.tokens for score in beyond),
    by_position=np.full(1, np.nan),
    token_accuracy=mean('token_accuracy'),
    greedy_accuracy=mean('greedy_accuracy'),
    greedy_token_accuracy=mean('greedy_token_accuracy'),
  )


def _scored(task: Task, graph: Any, state: Any, length: int, mesh, key) -> Score:
  try:
    totals = _totals(task, graph, state, length, mesh, key)
  except ValueError as error:  # raised while tracing: a declared length that ids do not fit in
    return Score(length, np.nan, np.nan, 0, np.full(1, np.nan), refused=str(error))
  loss, weight, right, right_answers, answers = totals
  with np.errstate(invalid='ignore', divide='ignore'):
    by_position = task.per_nat * loss / weight
  mean = float(task.per_nat * loss.sum() / weight.sum())
  tokens = float(right / weight.sum())
  accuracy = float(right_answers / answers) if task.exact else tokens
  score = Score(length, mean, accuracy, int(weight.sum()), by_position, token_accuracy=tokens)
  return score._replace(restated={name: other(mean) for name, other in task.restated.items()})


def _structure(make) -> Any:
  """A model's structure, without its arrays."""
  kept = {}

  def split():
    kept['graph'], state = nnx.split(make(nnx.Rngs(0)))
    return state

  jax.eval_shape(split)
  return kept['graph']


def _greedy(continued, model, batches: Iterable[Batch], key) -> tuple[float, float]:
  """Shares of right answers and of right tokens, where the model goes on from its own."""
  right_answers = answers = right = tokens = 0
  for i, batch in enumerate(batches):
    said = continued(model, batch, jax.random.fold_in(key, i))
    counts = batch['weights'] > 0
    last = counts.shape[1] - 1 - counts[:, ::-1].argmax(1)  # the place of the right end
    ends = np.take_along_axis(batch['targets'], last[:, None], axis=1)
    too_soon = np.cumsum((said == ends) & counts, axis=1) - ((said == ends) & counts) > 0
    same = counts & (said == batch['targets']) & ~too_soon
    right, tokens = right + same.sum(), tokens + counts.sum()
    asked = counts.any(1)
    right_answers += (asked & (same == counts).all(1)).sum()
    answers += asked.sum()
  return float(right_answers / answers), float(right / tokens)


def check_first(task: Task, graph: Any, state: Any, batch: Batch, mesh) -> None:
  """What a scheme refuses, and positions beyond its table, before anything is trained.

  Raises:
    ValueError: if an untrained model has no loss for a training batch.
  """
  key = jax.random.key(0)
  score = _scorer(task.losses, task.exact)
  batches, what = [put_batch(batch, mesh)], 'rows of the training length'
  if task.recurrence is not None:
    past, what = put_state(task.recurrence.start, mesh), 'streams'
    last = batches[0]['positions'] + (task.recurrence.furthest - batches[0]['positions'].max())
    batches = [
      {**batches[0], 'positions': pos, 'past': past} for pos in (batches[0]['positions'], last)
    ]
  for each in batches:
    if not np.isfinite(score(graph, state, each, key)[0][0]).all():
      raise ValueError(
        f'An untrained model has a loss that is not a number: {what} hold positions beyond a table '
        'of the scheme.'
      )


def token_losses(
  task: Task, graph: Any, state: Any, length: int, mesh, key
) -> tuple[np.ndarray, np.ndarray]:
  """The loss of every token that counts, in nats, and the tokens, both [N]: in the data's order.

  Args:
    task: whose answers are tokens; the same ones are counted at each of its lengths.
    graph: the model's structure, of `nnx.split`.
    state: its parameters and statistics.
    length: one of the task's.
    mesh: devices.
    key: random key of place 0.
  """
  losses, tokens = [], []
  for batch, (loss, weights) in _each(_losses(task.losses), task, graph, state, length, mesh, key):
    rows = len(batch['targets'])  # without those that fill up the devices
    counts = np.asarray(weights)[:rows] > 0
    losses.append(np.asarray(loss, np.float64)[:rows][counts])
    tokens.append(batch['targets'][counts])
  return np.concatenate(losses), np.concatenate(tokens)


def _totals(task: Task, graph, state, length: int, mesh, key):
  sums = (np.zeros(()),) * 5
  for _, new in _each(_scorer(task.losses, task.exact), task, graph, state, length, mesh, key):
    sums = tuple(a + np.asarray(b, np.float64) for a, b in zip(sums, new, strict=True))
  return sums


def _each(score, task: Task, graph, state, length: int, mesh, key) -> Iterator[tuple[Batch, Any]]:
  """The batches of a length, each with what `score` says of it; memories go from one to the next.

  Args:
    score: `(graph, state, batch, key) -> (said, what is remembered)`.
  """
  past, memory = {}, task.recurrence
  for i, whole in enumerate(task.eval_batches(length)):
    batch = put_whole(whole, mesh)
    if memory is not None and not past:
      graph, rows = _structure(memory.model_at(length)), len(batch['inputs'])
      past = {'past': put_state(lambda rows=rows: memory.start_at(rows, length), mesh)}
    said, after = score(graph, state, {**batch, **past}, jax.random.fold_in(key, i))
    past = past and {'past': after}
    yield whole, said


@functools.cache
def _losses(losses):
  """A jitted function to the loss and the weight of each token, and what is remembered."""

  @functools.partial(jax.jit, static_argnames='graph')
  def score(graph, state, batch, key):
    loss, weights, _, past = losses(nnx.merge(graph, state), batch, key, None)
    return (loss, weights), past

  return score


@functools.cache
def _scorer(losses, exact: bool):
  """A jitted function to sums over a batch, and to what is remembered after it.

  Loss and weight by position, right tokens, right answers, and answers (if those are scored).
  """

  @functools.partial(jax.jit, static_argnames='graph')
  def score(graph, state, batch, key):
    loss, weights, correct, past = losses(nnx.merge(graph, state), batch, key, None)
    sums = (loss * weights).sum(0), weights.sum(0), (correct * weights).sum()
    if not exact:
      return (*sums, 0.0, 0.0), past
    answered = weights.sum(1) > 0
    right = (correct * weights).sum(1) == weights.sum(1)
    return (*sums, (right & answered).sum(), answered.sum()), past

  return score
