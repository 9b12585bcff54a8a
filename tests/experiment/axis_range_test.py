"""Axes that do not make a cliff of noise."""

import pytest

from posjax.experiment.axis_range import axis_range


def test_an_axis_never_spans_less_than_twice_the_widest_interval():
  low, high = axis_range([2.1, 2.3], widths=[0.2, 0.5])
  assert high - low == pytest.approx(1.0)
  assert low < 2.1 < 2.3 < high


def test_a_difference_of_a_hundredth_is_no_cliff():
  low, high = axis_range([2.202, 2.231])
  assert (2.231 - 2.202) / (high - low) < 0.15
  assert (low + high) / 2 == pytest.approx((2.202 + 2.231) / 2)


@pytest.mark.parametrize(
  ('ends', 'widths', 'best', 'expected'),
  [
    ([5.0, 97.0], [], 100.0, (0, 100)),  # spread over half: the whole axis
    ([99.0, 100.0], [40.0], 100.0, (20, 100)),
    ([0.5, 1.0], [20.0], 100.0, (0, 40)),
    ([50.0, 50.0], [300.0], 100.0, (0, 100)),
    ([30.0, 32.0], [], 100.0, (26, 36)),
    ([0.0, 0.0], [], 1.0, (0, 0.1)),
  ],
)
def test_a_share_stays_within_0_and_the_best(ends, widths, best, expected):
  assert axis_range(ends, widths, best) == pytest.approx(expected)


def test_a_number_beyond_the_best_is_shown_nevertheless():
  low, high = axis_range([-30.0, 120.0], best=100.0)
  assert low < -30
  assert high > 120


def test_one_number_has_an_axis_around_it_and_none_has_none():
  assert axis_range([0.0])[0] < axis_range([0.0])[1]
  with pytest.raises(ValueError, match='needs a number to show, but got none'):
    axis_range([])
