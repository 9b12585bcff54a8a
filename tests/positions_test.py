"""Ids from the world, against loops that count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import positions


def counted(segments):
  """Tokens since the last change of document, one by one; padding 0."""
  ids = np.zeros(segments.shape, np.int32)
  for row in np.ndindex(segments.shape[:-1]):
    for t in range(1, segments.shape[-1]):
      if segments[row][t] == segments[row][t - 1] != 0:
        ids[row][t] = ids[row][t - 1] + 1
  return ids


def test_sequential_counts_up_from_its_offset():
  np.testing.assert_array_equal(positions.sequential(3), [0, 1, 2])
  np.testing.assert_array_equal(positions.sequential(3, 2**31 - 3), 2**31 - 3 + np.arange(3))
  assert positions.sequential(3).dtype == jnp.int32


def test_sequential_has_an_offset_for_each_row():
  offset = jnp.array([[0, 7], [-2, 100]])
  expected = np.asarray(offset)[..., None] + np.arange(4)
  np.testing.assert_array_equal(positions.sequential(4, offset), expected)
  np.testing.assert_array_equal(jax.jit(lambda o: positions.sequential(4, o))(offset), expected)


def test_from_mask_numbers_real_tokens_wherever_padding_stands():
  mask = np.random.default_rng(0).random((5, 20)) < 0.6
  mask[0], mask[1] = False, True
  ids = np.asarray(positions.from_mask(jnp.asarray(mask)))
  for row, real in zip(ids, mask, strict=True):
    np.testing.assert_array_equal(row[real], np.arange(real.sum()))
    np.testing.assert_array_equal(row[~real], 0)
  assert ids.dtype == np.int32


def test_from_segments_numbers_each_document_from_zero():
  rows = [
    [1, 1, 1, 2, 2, 0, 0, 0],
    [0, 0, 3, 3, 3, 0, 3, 3],  # padding parts what has one number
    [0] * 8,
    [5] * 8,
    [1, 2, 3, 4, 1, 1, 2, 2],
    [2, 1, 1, 1, 1, 1, 1, 2],  # the last is as the first: no wrap around the row
  ]
  segments = jnp.array(rows)
  np.testing.assert_array_equal(positions.from_segments(segments), counted(np.array(rows)))
  random = np.random.default_rng(0).integers(0, 3, (2, 4, 30))
  found = jax.jit(positions.from_segments)(jnp.asarray(random))
  np.testing.assert_array_equal(found, counted(random))
  np.testing.assert_array_equal(positions.from_segments(segments[0]), counted(np.array(rows[0])))
  assert found.dtype == jnp.int32


def test_grid_is_row_and_column_in_reading_order():
  expected = [(row, column) for row in range(3) for column in range(5)]
  np.testing.assert_array_equal(positions.grid(3, 5), expected)
  assert positions.grid(3, 5).dtype == jnp.int32


def test_a_mask_that_is_not_boolean_is_refused(unchecked):
  with pytest.raises(TypeError, match='boolean, True for real tokens, but got int32'):
    positions.from_mask(jnp.array([0, 1]))


@pytest.mark.parametrize(
  ('make', 'error', 'message'),
  [
    (lambda: positions.sequential(2.5), TypeError, 'length of a text must be an integer, but got'),
    (
      lambda: positions.sequential('3'),
      TypeError,
      "length of a text must be an integer, but got '3'",
    ),
    (lambda: positions.sequential(-1), ValueError, 'at least 0 and below 2.31, but got -1'),
    (
      lambda: positions.sequential(3, 1.5),
      TypeError,
      'offset of a text must be an integer, but got',
    ),
    (lambda: positions.sequential(3, None), TypeError, 'offset of a text must be an integer'),
    (lambda: positions.sequential(3, jnp.ones(2)), TypeError, 'integers, but got float32'),
    (
      lambda: positions.sequential(3, 2**31 - 2),
      ValueError,
      'to 2,147,483,645, but got 2147483646',
    ),
    (
      lambda: positions.sequential(3, jnp.array([0, 2**31 - 2])),
      *(ValueError, 'to 2,147,483,645, but got 2147483646'),
    ),
    (lambda: positions.from_mask([True]), TypeError, r'must be an array, but got \[True\]'),
    (
      lambda: positions.from_mask(jnp.array(True)),
      ValueError,
      r'axis of tokens, but got shape \(\)',
    ),
    (lambda: positions.from_segments([1, 1]), TypeError, r'must be an array, but got \[1, 1\]'),
    (lambda: positions.from_segments(jnp.ones(2)), TypeError, 'integers, .* but got float32'),
    (lambda: positions.grid(0, 2), ValueError, 'height of a grid .* at least 1 .* but got 0'),
    (lambda: positions.grid(2, 2.0), TypeError, 'width of a grid must be an integer, but got 2.0'),
  ],
)
def test_what_numbers_no_tokens_is_refused(make, error, message, unchecked):
  with pytest.raises(error, match=message):
    make()


def test_a_length_and_an_offset_may_be_numpys(unchecked):
  np.testing.assert_array_equal(positions.sequential(np.int64(2), np.int32(5)), [5, 6])
  np.testing.assert_array_equal(positions.sequential(0), np.zeros(0))
  np.testing.assert_array_equal(positions.grid(np.int8(1), 2), [[0, 0], [0, 1]])
