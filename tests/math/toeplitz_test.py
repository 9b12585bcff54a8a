"""Layouts by distance, against loops over the pairs."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math import toeplitz
from tests.support.draws import DRAW

SIZES = pytest.mark.parametrize(('queries', 'keys'), [(1, 1), (1, 4), (4, 4), (3, 7), (8, 2)])


def place(queries, t, s):
  """Where the distance of a pair stands, from queries - 1 down."""
  return queries - 1 - (t - s)


@SIZES
def test_a_strip_is_laid_out_by_distance(queries, keys):
  strip = DRAW.integers(-9, 9, (2, queries + keys - 1))
  found = toeplitz.layout(jnp.asarray(strip), queries)
  assert found.shape == (2, queries, keys)
  for t, s in np.ndindex(queries, keys):
    np.testing.assert_array_equal(found[:, t, s], strip[:, place(queries, t, s)])


@SIZES
def test_rows_are_shifted_by_distance_and_back(queries, keys):
  rows = DRAW.normal(size=(2, queries, queries + keys - 1)).astype(np.float32)
  tile = np.zeros((2, queries, keys), np.float32)
  back = np.zeros_like(rows)
  for t, s in np.ndindex(queries, keys):
    tile[:, t, s] = back[:, t, place(queries, t, s)] = rows[:, t, place(queries, t, s)]
  np.testing.assert_array_equal(toeplitz.shift(jnp.asarray(rows)), tile)
  np.testing.assert_array_equal(toeplitz.unshift(jnp.asarray(tile)), back)


@SIZES
def test_pairs_of_one_distance_are_summed(queries, keys):
  tile = DRAW.integers(-9, 9, (2, queries, keys)).astype(np.float32)
  expected = np.zeros((2, queries + keys - 1), np.float32)
  for t, s in np.ndindex(queries, keys):
    expected[:, place(queries, t, s)] += tile[:, t, s]
  np.testing.assert_array_equal(toeplitz.along(jnp.asarray(tile)), expected)
