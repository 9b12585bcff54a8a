"""Means with their uncertainty, and what may be said of two schemes.

Intervals are Student's, over seeds: mean +- t(n - 1) * s / sqrt(n) for n numbers of standard
deviation s. Schemes are compared by the differences of runs with equal seeds, which see equal data.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

LEVEL = 0.95


class Interval(NamedTuple):
  """A mean over seeds.

  Attributes:
    mean: of the numbers.
    low: lower end of the interval, NaN where one number is all there is.
    high: upper end.
    count: of the numbers.
  """

  mean: float
  low: float
  high: float
  count: int


def interval(values: Sequence[float], resolution: float = 0.0, level: float = LEVEL) -> Interval:
  """Student's confidence interval of the mean.

  Args:
    values: one or more finite numbers.
    resolution: the least standard deviation that is believed, 0 or more. A share of n answers
      moves in steps of 1 / n: a few seeds that agree to the last answer say no more than that.
    level: its confidence, in (0, 1).

  Raises:
    ValueError: if there is no number, or a number is out of its range.

  Example:
    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.48..., high=4.48..., count=3)
  """
  from scipy.special import stdtrit

  count = len(values)
  if not count or not all(map(math.isfinite, values)):
    raise ValueError(f'An interval needs finite numbers, but got {list(values)}.')
  if resolution < 0 or not 0 < level < 1:
    raise ValueError(
      f'resolution must be 0 or more and level in (0, 1), but got {resolution} and {level}.'
    )
  mean = math.fsum(values) / count
  if count == 1:
    return Interval(mean, math.nan, math.nan, 1)
  spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
  quantile = float(stdtrit(count - 1, (1 + level) / 2))
  half = quantile * max(spread, resolution) / math.sqrt(count)
  return Interval(mean, mean - half, mean + half, count)


def verdict(difference: Interval, higher_is_better: bool) -> str:
  """Says in one word whether a scheme is better or worse than the baseline.

  Args:
    difference: scheme - baseline.
    higher_is_better: as shares of right answers are, and losses are not.

  Returns:
    'better' or 'worse', where the whole interval lies on that side of 0, whatever its sign is;
    'unresolved', where the interval holds 0, or one seed has no interval.
  """
  if not (difference.low > 0 or difference.high < 0):  # NaN is neither
    return 'unresolved'
  return 'better' if (difference.low > 0) == higher_is_better else 'worse'
