import math

import numpy as np
import pytest

from posjax.math.extension import mixed_frequencies, ntk_frequencies, share_by_turns


@pytest.mark.parametrize('width', [2, 4, 64, 128])
@pytest.mark.parametrize(('base', 'factor'), [(1e4, 1.0), (1e4, 4.0), (5e5, 3.7)])
def test_ntk_frequencies_are_those_of_the_rescaled_base(width, base, factor):
  rescaled = base * factor ** (width / (width - 2)) if width > 2 else base
  expected = [rescaled ** (-2 * k / width) for k in range(width // 2)]
  np.testing.assert_allclose(ntk_frequencies(width, base, factor), expected, rtol=1e-12)


def test_ntk_keeps_the_first_frequency_and_divides_the_last_by_the_whole_factor():
  found, trained = ntk_frequencies(64, 1e4, 8.0), ntk_frequencies(64, 1e4, 1.0)
  assert found[0] == trained[0] == 1
  np.testing.assert_allclose(trained[-1] / found[-1], 8, rtol=1e-14)
  assert (np.diff(trained / found) > 0).all()


def test_the_share_that_a_pair_keeps_is_linear_in_its_turns_between_the_bounds():
  frequencies = np.array([10000 ** (-2 * k / 64) for k in range(32)])
  expected = []
  for frequency in frequencies:
    wavelength = 2 * math.pi / frequency
    turns = 2048 / wavelength
    expected.append(0.0 if turns < 2 else 1.0 if turns > 20 else (turns - 2) / 18)
  found = share_by_turns(frequencies, 2048, beta_fast=20.0, beta_slow=2.0)
  np.testing.assert_allclose(found, expected, atol=1e-12)
  assert {0.0, 1.0} < set(found)


def test_kept_frequencies_stay_and_the_others_are_divided():
  frequencies, kept = np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.25, 0.0])
  expected = [3.0, 0.75 * 2.0 / 8 + 0.25 * 2.0, 1 / 8]
  np.testing.assert_allclose(mixed_frequencies(frequencies, kept, 8.0), expected, rtol=1e-14)
