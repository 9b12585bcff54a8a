"""Metrics of arrays `loss`, `weights` and `correct` [B, T], which several tasks share.

They are what `losses.Losses` holds: a loss in nats, 1 where a token counts, and 1 where the most
likely token is right. Where a row has one answer, T is 1.
"""

from collections.abc import Callable

import numpy as np

from posjax.experiment.tasks import Arrays, Batch, Metric


def count_weights(arrays: Arrays, batch: Batch) -> int:
  """How many tokens count, as `Evaluation.counted`."""
  return int(arrays['weights'].sum())


def count_answers(arrays: Arrays, batch: Batch) -> int:
  """How many rows have a token that counts, as `Evaluation.counted`."""
  return int((arrays['weights'] > 0).any(1).sum())


def mean_loss(
  unit: str, factor: float = 1.0, restate: Callable[[float], float] | None = None
) -> Metric:
  """The mean loss over the tokens that count.

  Args:
    unit: its name.
    factor: what one nat is in that unit.
    restate: a function of the mean that is to be reported in its place, such as perplexity.
  """

  def finish(sums: tuple[float, float]) -> float:
    mean = factor * _ratio(*sums)
    return mean if restate is None else restate(mean)

  return Metric(_losses, finish, unit, higher=False)


def token_accuracy(unit: str = '% of tokens right') -> Metric:
  """The share of tokens that are right."""

  def update(arrays: Arrays, batch: Batch) -> tuple[float, float]:
    return float((arrays['correct'] * arrays['weights']).sum()), float(arrays['weights'].sum())

  return share(update, unit)


def answer_accuracy(unit: str = '% of answers right') -> Metric:
  """The share of rows in which every token that counts is right."""

  def update(arrays: Arrays, batch: Batch) -> tuple[int, int]:
    counts = arrays['weights'] > 0
    right = ((arrays['correct'] > 0) | ~counts).all(1) & counts.any(1)
    return int(right.sum()), int(counts.any(1).sum())

  return share(update, unit)


def share(update: Callable[[Arrays, Batch], tuple[int | float, int | float]], unit: str) -> Metric:
  """A share in percent of what `update` counts: how many are right, and how many there are."""
  finish = lambda sums: _ratio(*sums)
  return Metric(update, finish, unit, higher=True, best=1.0, scale=100.0, digits=1)


def loss_by_position(unit: str, factor: float = 1.0) -> Metric:
  """The mean loss at each position of a row; NaN where no token counts. For rows of one length."""

  def update(arrays: Arrays, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    weights = arrays['weights'].astype(np.float64)
    return (arrays['loss'] * weights).sum(0), weights.sum(0)

  def finish(sums: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    with np.errstate(invalid='ignore', divide='ignore'):
      return factor * sums[0] / sums[1]

  return Metric(update, finish, unit, higher=False, array=True)


def _losses(arrays: Arrays, batch: Batch) -> tuple[float, float]:
  weights = arrays['weights'].astype(np.float64)
  return float((arrays['loss'] * weights).sum()), float(weights.sum())


def _ratio(part: int | float, whole: int | float) -> float:
  return float(part / whole) if whole else float('nan')
