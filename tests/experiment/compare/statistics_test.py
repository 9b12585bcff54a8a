"""Intervals against printed tables, scipy and chance; verdicts against their definition."""

import math

import numpy as np
import pytest
import scipy.stats

from posjax.experiment.compare.statistics import EQUAL_LEVEL, Interval, interval, verdict


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


def test_a_difference_within_the_margin_on_both_sides_is_equal():
  wide, narrow = interval([0.1, 0.2, 0.3]), interval([0.1, 0.2, 0.3], level=EQUAL_LEVEL)
  half = 2.920 * 0.1 / math.sqrt(3)  # the 95 % point of Student's distribution with 2 degrees
  assert narrow.high == pytest.approx(0.2 + half, rel=1e-3)
  assert verdict(wide, True, 0.37, narrow) == 'equal within 0.37'  # though it is above 0.36
  assert verdict(wide, True, 0.36, narrow) == 'unresolved'
  assert verdict(wide, True, 0.0, narrow) == 'unresolved'
  sure = interval([0.2, 0.2, 0.21])
  assert verdict(sure, True, 0.3, interval([0.2, 0.2, 0.21], level=EQUAL_LEVEL))[:5] == 'equal'
  assert verdict(sure, True, 0.1, interval([0.2, 0.2, 0.21], level=EQUAL_LEVEL)) == 'better'
  assert verdict(interval([0.0]), True, 9.0, interval([0.0])) == 'unresolved'


def drawn(random, *, seeds, examples, of_seed, of_example, of_both, groups=20):
  """Seeds that are all judged on the same examples: each one's mean, and without each group."""
  scores = (
    of_seed * random.normal(size=(seeds, 1))
    + of_example * random.normal(size=(1, examples))
    + of_both * random.normal(size=(seeds, examples))
  )
  part = np.arange(examples) * groups // examples
  without = np.stack([scores[:, part != group].mean(1) for group in range(groups)], 1)
  return scores.mean(1).tolist(), without.tolist()


@pytest.mark.parametrize(
  ('of_seed', 'of_example', 'of_both'),
  [(0.1, 0.0, 1.0), (0.1, 1.0, 1.0), (0.0, 1.0, 0.1), (0.02, 1.0, 3.0)],
)
@pytest.mark.parametrize('seeds', [3, 5])
def test_over_examples_and_seeds_it_covers_the_truth_as_often_as_it_says(
  seeds, of_seed, of_example, of_both
):
  """0 is the truth over all seeds and all examples."""
  random = np.random.default_rng(2)
  sizes = {'seeds': seeds, 'of_seed': of_seed, 'of_example': of_example, 'of_both': of_both}
  draws = [drawn(random, examples=200, **sizes) for _ in range(1000)]
  hits = lambda found: sum(each.low <= 0 <= each.high for each in found) / len(found)
  both = hits([interval(values, left_out=without) for values, without in draws])
  alone = hits([interval(values) for values, _ in draws])
  assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 1000) < both
  assert both < 0.99
  if of_example > of_both:
    assert alone < 0.75  # over seeds alone, it knows nothing of other examples


def test_without_effects_of_examples_the_interval_is_that_over_seeds():
  values, without = [1.0, 2.0, 4.0], [[1.0] * 20, [2.0] * 20, [4.0] * 20]
  assert interval(values, left_out=without) == pytest.approx(interval(values))


def test_the_variance_over_examples_is_the_jackknifes():
  """Where all seeds are alike, that of the mean of the examples is all there is."""
  examples = np.random.default_rng(3).normal(size=20)
  without = [((examples.sum() - examples) / 19).tolist()] * 4
  found = interval([examples.mean()] * 4, left_out=without)
  half = 2.093 * examples.std(ddof=1) / math.sqrt(20)
  assert (found.high - found.low) / 2 == pytest.approx(half, rel=1e-3)
