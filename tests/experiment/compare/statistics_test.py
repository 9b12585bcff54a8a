"""Intervals against printed tables, scipy and chance; verdicts against their definition."""

import math

import numpy as np
import pytest
import scipy.stats

from posjax.experiment.compare.statistics import Interval, interval, verdict


@pytest.mark.parametrize(
  ('values', 'quantile'),
  [  # the 97.5 % points of any printed table of Student's distribution
    ([1.0, 3.0], 12.706),
    ([1.0, 2.0, 6.0], 4.303),
    ([0.0, 1.0, 5.0, 2.0], 3.182),
    ([7.0, 1.0, 3.0, 3.0, 1.5], 2.776),
  ],
)
def test_the_half_width_is_students_quantile_times_the_standard_error(values, quantile):
  found = interval(values)
  half = quantile * np.std(values, ddof=1) / math.sqrt(len(values))
  assert found.mean == pytest.approx(np.mean(values))
  assert found.high - found.mean == pytest.approx(half, rel=3e-4)
  assert found.mean - found.low == pytest.approx(half, rel=3e-4)
  assert found.count == len(values)


def test_it_is_scipys_interval():
  random = np.random.default_rng(0)
  for count in (2, 3, 5, 20):
    for level in (0.5, 0.95, 0.99):
      values = random.normal(3, 2, count)
      theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(level)
      ours = interval(values.tolist(), level=level)
      np.testing.assert_allclose([ours.low, ours.high], [theirs.low, theirs.high], rtol=1e-9)


def test_it_covers_the_truth_as_often_as_it_says():
  random = np.random.default_rng(1)
  hits = 0
  for values in random.normal(10.0, 3.0, (4000, 3)).tolist():
    found = interval(values)
    hits += found.low <= 10.0 <= found.high
  assert abs(hits / 4000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


def test_one_number_has_a_mean_and_no_interval():
  found = interval([4.0])
  assert found.mean == 4.0
  assert math.isnan(found.low)
  assert math.isnan(found.high)


def test_seeds_that_agree_to_the_last_answer_are_no_surer_than_one_answer():
  found = interval([50.0, 50.0, 50.0], resolution=2.0)
  assert found.high - found.mean == pytest.approx(4.303 * 2 / math.sqrt(3), rel=3e-4)
  wide = [40.0, 50.0, 60.0]
  assert interval(wide, resolution=2.0) == interval(wide)


@pytest.mark.parametrize('values', [[], [1.0, math.nan], [math.inf]])
def test_what_is_no_number_has_no_interval(values):
  with pytest.raises(ValueError, match='needs finite numbers'):
    interval(values)


@pytest.mark.parametrize(('resolution', 'level'), [(-1.0, 0.95), (0.0, 0.0), (0.0, 1.0)])
def test_a_level_or_a_resolution_out_of_range_is_refused(resolution, level):
  with pytest.raises(ValueError, match='must be'):
    interval([1.0, 2.0], resolution, level)


@pytest.mark.parametrize(
  ('low', 'high', 'higher', 'lower'),
  [
    (0.1, 2.0, 'better', 'worse'),
    (-2.0, -0.1, 'worse', 'better'),
    (-0.1, 2.0, 'unresolved', 'unresolved'),
    (0.0, 2.0, 'unresolved', 'unresolved'),
    (math.nan, math.nan, 'unresolved', 'unresolved'),
  ],
)
def test_a_verdict_needs_an_interval_without_0_and_the_metrics_direction(low, high, higher, lower):
  difference = Interval((low + high) / 2, low, high, 3)
  assert verdict(difference, higher_is_better=True) == higher
  assert verdict(difference, higher_is_better=False) == lower
