"""Means with their uncertainty, and what may be said of two schemes.

Intervals are Student's, over seeds: mean +- t(n - 1) * s / sqrt(n) for n numbers of standard
deviation s. Schemes are compared by the differences of runs with equal seeds, which see equal data.
Where it is known what each number becomes without a part of the held-out examples, the interval is
one over seeds and examples: it also says how far the mean would move with other examples.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
EQUAL_LEVEL = 0.9  # two one-sided tests at 5 % each ask for the interval of 90 %


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


def interval(
  values: Sequence[float],
  resolution: float = 0.0,
  level: float = LEVEL,
  left_out: Sequence[Sequence[float]] | None = None,
) -> Interval:
  """Student's confidence interval of the mean.

  With `left_out`, seeds and examples are both drawn, and every seed is judged on the same examples,
  as several readers judge the same cases (Obuchowski and Rockette 1995,
  https://doi.org/10.1080/03610919508813243). The half width over seeds and that over examples, by
  the jackknife, are joined as the root of their squares' sum (Zou and Donner 2008,
  https://doi.org/10.1002/sim.3095): it is never narrower than over seeds alone, and with few seeds
  it covers the truth no more rarely than it says.

  Args:
    values: one or more finite numbers, one for each seed.
    resolution: the least standard deviation that is believed, 0 or more. A share of n answers
      moves in steps of 1 / n: a few seeds that agree to the last answer say no more than that.
    level: its confidence, in (0, 1).
    left_out: [seeds, groups], each number without one group of the held-out examples; the groups
      hold about as many examples each, and are the same for every seed. None is over seeds alone.

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
  quantile = lambda freedom: float(stdtrit(freedom, (1 + level) / 2))
  half = quantile(count - 1) * max(spread, resolution) / math.sqrt(count)
  if left_out is not None:
    half = math.hypot(half, quantile(len(left_out[0]) - 1) * _over_examples(values, left_out))
  return Interval(mean, mean - half, mean + half, count)


def _over_examples(values: Sequence[float], left_out: Sequence[Sequence[float]]) -> float:
  """The standard error of the mean over examples, less what seeds and examples have together.

  The spread over seeds holds that part, too.
  """
  numbers, without = np.asarray(values)[:, None], np.asarray(left_out)
  seeds, groups = without.shape
  pseudo = groups * numbers - (groups - 1) * without  # of the jackknife
  by_group = pseudo.mean(0)
  both = pseudo - pseudo.mean(1, keepdims=True) - by_group + pseudo.mean()
  together = (both**2).sum() / ((seeds - 1) * (groups - 1))
  return math.sqrt(max(by_group.var(ddof=1) - together / seeds, 0.0) / groups)


def ratio_interval(
  numerators: Sequence[float | int] | np.ndarray,
  denominators: Sequence[float | int] | np.ndarray,
  level: float = LEVEL,
) -> Interval:
  """The ratio of two sums over parts of a text, as of losses and tokens, with its interval.

  The parts are drawn, and the larger ones count more: sum(numerators) / sum(denominators). Its
  standard error is that of the jackknife that deletes one part: for the ratios r_1 .. r_n of the
  sums without one part each, with their mean m, it is the root of (n - 1) / n sum (r_i - m)^2. The
  interval is Student's with n - 1 degrees of freedom, to both sides of the ratio of all parts.

  Args:
    numerators: of each part.
    denominators: of each part, all above 0.
    level: its confidence, in (0, 1).

  Returns:
    The ratio, with NaN as its ends where there is one part alone.

  Raises:
    ValueError: if there is no part, or one has no denominator.

  Example:
    >>> ratio_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    Interval(mean=2.0, low=2.0, high=2.0, count=3)
  """
  from scipy.special import stdtrit

  upper, lower = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
  if not upper.size or upper.shape != lower.shape or not (lower > 0).all():
    raise ValueError(
      f'A ratio needs parts with denominators above 0, but got {upper.size} and {lower.size}.'
    )
  count, mean = upper.size, float(upper.sum() / lower.sum())
  if count == 1:
    return Interval(mean, math.nan, math.nan, 1)
  without = (upper.sum() - upper) / (lower.sum() - lower)
  error = math.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum())
  half = float(stdtrit(count - 1, (1 + level) / 2)) * error
  return Interval(mean, mean - half, mean + half, count)


def verdict(
  difference: Interval,
  higher_is_better: bool,
  margin: float = 0.0,
  narrower: Interval | None = None,
) -> str:
  """Says whether a scheme is better or worse than the baseline, or equal to it within a margin.

  Args:
    difference: scheme - baseline.
    higher_is_better: as shares of right answers are, and losses are not.
    margin: the largest difference that does not matter, fixed before the runs; 0 is none.
    narrower: the same difference with its interval at `EQUAL_LEVEL`.

  Returns:
    'equal within M', where the narrower interval lies between -margin and margin, on whichever side
    of 0 (two one-sided tests: Schuirmann 1987, https://doi.org/10.1007/BF01068419); else 'better'
    or 'worse', where the whole interval lies on that side of 0, whatever its sign is; else
    'unresolved', as where one seed has no interval.
  """
  if narrower is not None and -margin < narrower.low <= narrower.high < margin:
    return f'equal within {margin:g}'
  if not (difference.low > 0 or difference.high < 0):  # NaN is neither
    return 'unresolved'
  return 'better' if (difference.low > 0) == higher_is_better else 'worse'
