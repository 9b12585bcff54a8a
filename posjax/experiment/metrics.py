"""Metrics of arrays `loss`, `weights` and `correct` [B, T], which several tasks share.

They are what `losses.Losses` holds: a loss in nats, 1 where a token counts, and 1 where the most
likely token is right. Where a row has one answer, T is 1.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from posjax.experiment.task import Arrays, Batch, Metric

FIRST = 4  # positions in the first window; each further one ends at twice the position


class Rows(NamedTuple):
  """Sums over rows, from which a mean over tokens and its standard error follow.

  Rows are drawn alone, and the tokens of one row go together: so the error is that of a ratio of
  sums over rows, (sum of values) / (sum of weights), whose rows may have several weights.

  Attributes:
    values: of all tokens that count.
    weights: of all tokens.
    squares: of the sums of each row.
    products: of the sums of each row and its weight.
    weights_squared: of each row.
    rows: how many have a token that counts.
  """

  values: Any
  weights: Any
  squares: Any
  products: Any
  weights_squared: Any
  rows: Any

  def mean(self) -> Any:
    """The mean over tokens; NaN where none counts."""
    with np.errstate(invalid='ignore', divide='ignore'):
      return np.asarray(self.values, np.float64) / self.weights

  def error(self) -> Any:
    """The standard error of the mean; NaN where fewer than two rows count."""
    mean = self.mean()
    spread = self.squares - 2 * mean * self.products + mean**2 * self.weights_squared
    rows = np.asarray(self.rows, np.float64)
    with np.errstate(invalid='ignore', divide='ignore'):
      # Rounding may leave a little less than nothing.
      variance = np.maximum(spread, 0.0) * (rows / (rows - 1)) / np.square(self.weights)
      return np.where(rows > 1, np.sqrt(variance), np.nan)


def sums_of_rows(values: np.ndarray, weights: np.ndarray) -> Rows:
  """The sums of a batch.

  Args:
    values: of the tokens, [B, T].
    weights: 1 where a token counts, 0 where it does not, [B, T].
  """
  counts = weights.astype(np.float64)
  by_row, weight = (values * counts).sum(1), counts.sum(1)
  return Rows(
    by_row.sum(),
    weight.sum(),
    (by_row**2).sum(),
    (by_row * weight).sum(),
    (weight**2).sum(),
    int((weight > 0).sum()),
  )


def windows(length: int) -> list[tuple[int, int]]:
  """Windows of positions, from first to last, over which a loss by position is averaged.

  They end at 4, 8, 16 and so on: the first tokens of a text change fast, those far on slowly.

  Args:
    length: of the rows, 1 or more.

  Example:
    >>> windows(20)
    [(0, 4), (4, 8), (8, 16), (16, 20)]
  """
  ends = [0, FIRST]
  while ends[-1] < length:
    ends.append(2 * ends[-1])
  ends[-1] = length
  return list(itertools.pairwise(ends))


def count_weights(arrays: Arrays, batch: Batch) -> int:
  """How many tokens count, as `Evaluation.counted`."""
  return int(arrays['weights'].sum())


def count_answers(arrays: Arrays, batch: Batch) -> int:
  """How many rows have a token that counts, as `Evaluation.counted`."""
  return int((arrays['weights'] > 0).any(1).sum())


def mean_loss(
  unit: str,
  factor: float = 1.0,
  restate: Callable[[float], float] | None = None,
  targets: str | None = None,
) -> Metric:
  """The mean loss over the tokens that count.

  Args:
    unit: its name.
    factor: what one nat is in that unit.
    restate: a function of the mean that is to be reported in its place, such as perplexity.
    targets: the entry of a batch with the right tokens, [B, T], where the loss is their
      cross-entropy: the best constant answer then is known.
  """

  def update(arrays: Arrays, batch: Batch) -> tuple[Rows, Counter[int]]:
    ids = [] if targets is None else np.asarray(batch[targets])[arrays['weights'] > 0].tolist()
    return sums_of_rows(arrays['loss'], arrays['weights']), Counter(ids)

  def stated(nats: float) -> float:
    return factor * nats if restate is None else restate(factor * nats)

  def finish(sums: tuple[Rows, Counter[int]]) -> float:
    return stated(float(sums[0].mean()))

  def error(sums: tuple[Rows, Counter[int]]) -> float:
    mean, half = float(sums[0].mean()), float(sums[0].error())
    if math.isnan(half):
      return half
    return abs(stated(mean + half) - stated(mean - half)) / 2

  def constant(sums: tuple[Rows, Counter[int]]) -> float:
    counts = np.array(list(sums[1].values()), np.float64)
    shares = counts / counts.sum()
    return stated(float(-(shares * np.log(shares)).sum()))

  known = None if targets is None else constant
  return Metric(update, finish, unit, higher=False, error=error, constant=known)


def token_accuracy(unit: str = '% of tokens right') -> Metric:
  """The share of tokens that are right."""

  def update(arrays: Arrays, batch: Batch) -> Rows:
    return sums_of_rows(arrays['correct'], arrays['weights'])

  finish, error = lambda sums: float(sums.mean()), lambda sums: float(sums.error())
  return _percent(update, finish, unit, error)


def answer_accuracy(unit: str = '% of answers right') -> Metric:
  """The share of rows in which every token that counts is right."""

  def update(arrays: Arrays, batch: Batch) -> tuple[int, int]:
    counts = arrays['weights'] > 0
    right = ((arrays['correct'] > 0) | ~counts).all(1) & counts.any(1)
    return int(right.sum()), int(counts.any(1).sum())

  return _percent(update, _share, unit, error=lambda sums: _error_of_share(*sums))


def share(update: Callable[[Arrays, Batch], tuple[int | float, int | float]], unit: str) -> Metric:
  """A share in percent of what `update` counts: how many are right, and how many there are."""
  return _percent(update, _share, unit)


def _percent(
  update: Callable[[Arrays, Batch], Any],
  finish: Callable[[Any], float],
  unit: str,
  error: Callable[[Any], float] | None = None,
) -> Metric:
  return Metric(update, finish, unit, True, best=1.0, scale=100.0, digits=1, error=error)


def loss_by_position(unit: str, factor: float = 1.0) -> Metric:
  """The mean loss at each position of a row; NaN where no token counts. For rows of one length."""

  def update(arrays: Arrays, batch: Batch) -> tuple[np.ndarray, np.ndarray, Rows]:
    loss, weights = arrays['loss'], arrays['weights'].astype(np.float64)
    parts = [sums_of_rows(loss[:, a:b], weights[:, a:b]) for a, b in windows(loss.shape[1])]
    joined = Rows(*(np.array(each) for each in zip(*parts, strict=True)))
    return (loss * weights).sum(0), weights.sum(0), joined

  def finish(sums: tuple[np.ndarray, np.ndarray, Rows]) -> np.ndarray:
    with np.errstate(invalid='ignore', divide='ignore'):
      return factor * sums[0] / sums[1]

  def error(sums: tuple[np.ndarray, np.ndarray, Rows]) -> np.ndarray:
    return factor * sums[2].error()

  return Metric(update, finish, unit, higher=False, array=True, error=error)


def _error_of_share(part: int, whole: int) -> float:
  """The standard error of a share, with Agresti and Coull's two more right and two more wrong.

  So that a share of 0 or of 1 is not taken to be exact.
  """
  share = (part + 2) / (whole + 4)
  return math.sqrt(share * (1 - share) / (whole + 4)) if whole else math.nan


def _share(sums: tuple[int | float, int | float]) -> float:
  part, whole = sums
  return float(part / whole) if whole else float('nan')
