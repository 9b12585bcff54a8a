"""Whether tokens follow the array, against a loop over all pairs of tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.token_order import follows_array
from tests.support.draws import DRAW


def by_pairs(order, segments, together):
  """Of two real tokens of a document, none comes before an earlier one, nor another's between."""
  real = np.flatnonzero(segments)
  for i in real:
    for j in real[real > i]:
      if segments[i] == segments[j]:
        between = segments[i:j]
        if order[j] < order[i] or (together and set(between) - {0, segments[i]}):
          return False
  return True


@pytest.mark.parametrize('together', [True, False])
def test_it_is_the_loop_over_pairs(together):
  segments = DRAW.integers(0, 3, size=(4000, 5))
  order = DRAW.integers(0, 4, size=(4000, 5))
  # Most random rows are out of order; half of these are sorted within the row.
  order[::2].sort(axis=1)
  expected = np.array([by_pairs(*row, together) for row in zip(order, segments, strict=True)])
  assert 500 < expected.sum() < 3500
  found = follows_array(jnp.asarray(order), jnp.asarray(segments), together)
  np.testing.assert_array_equal(found, expected)


def test_one_token_and_one_row_for_all():
  assert follows_array(jnp.zeros((1, 1)), jnp.ones((1, 1), jnp.int32)).tolist() == [True]
  order = jnp.array([[0, 1, 2], [0, 2, 1]])
  assert follows_array(order, jnp.ones((1, 3), jnp.int32)).tolist() == [True, False]
