"""Differences of ids, against Python's own integers, which have no end."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math.differences import count_up, is_below, saturating_subtract

MOST = 2**31 - 1
IDS = [-(2**31), 1 - 2**31, -5, -1, 0, 1, 7, 2**30, MOST - 1, MOST]


def pairs(f):
  ids = jnp.array(IDS, jnp.int32)
  return np.asarray(f(ids[:, None], ids[None]))


def test_differences_of_any_int32_saturate():
  exact = [[max(-MOST, min(MOST, one - other)) for other in IDS] for one in IDS]
  np.testing.assert_array_equal(pairs(saturating_subtract), exact)


@pytest.mark.parametrize('limit', [1, 3, 2**30, MOST, 2**31])
def test_limits_hold_for_any_int32(limit):
  exact = [[one - other < limit for other in IDS] for one in IDS]
  np.testing.assert_array_equal(pairs(lambda one, other: is_below(one, other, limit)), exact)


def test_floats_are_subtracted_as_they_are():
  one, other = jnp.array([3e38, 0.5]), jnp.array([-3e38, 2.0])
  assert saturating_subtract(one, other).tolist() == [np.inf, -1.5]
  assert is_below(one, other, 1).tolist() == [False, True]


@pytest.mark.parametrize(('ids', 'counts'), [
  ([4, 5, 6], True), ([MOST - 1, MOST], True), ([MOST, -MOST - 1], False), ([1, 3], False),
])  # fmt: skip
def test_the_least_id_does_not_follow_the_largest(ids, counts):
  assert bool(count_up(jnp.array([ids], jnp.int32))) == counts
