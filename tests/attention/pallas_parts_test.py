"""What the fused kernels are handed: which blocks meet, and the table of a bias by distance."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import distances, places
from posjax.attention.inputs import Rules, Tokens, read_window
from posjax.attention.pallas import formulas, ranges, table
from tests.support.draws import DRAW

QUERIES, KEYS = 4, 2  # of a block


def pairs(causal, window, q, k):
  """Which pairs meet, by a loop: [T, S] of one row."""
  (q_order, q_segments), (k_order, k_segments) = q, k
  left, right = window if isinstance(window, tuple) else (window and window - 1,) * 2
  seen = np.zeros((len(q_order), len(k_order)), bool)
  for t, s in np.ndindex(seen.shape):
    back = int(q_order[t]) - int(k_order[s])
    seen[t, s] = q_segments[t] == k_segments[s] != 0
    seen[t, s] &= back >= 0 or not causal
    seen[t, s] &= (left is None or back <= left) and (right is None or -back <= right)
  return seen


def blocks(seen):
  return seen.reshape(seen.shape[0] // QUERIES, QUERIES, -1, KEYS).swapaxes(1, 2)


def found(causal, window, q, k, of_keys=False):
  rules = Rules(1.0, causal, read_window(window, causal), None, 0.0)
  tokens = (Tokens(*(jnp.asarray(x)[None] for x in side)) for side in (q, k))
  of = ranges.ranges_of_keys if of_keys else ranges.ranges
  return np.asarray(of(rules, *tokens, QUERIES, KEYS))[0]


def side(length, orders='counting', first=0):
  order = np.arange(first, first + length, dtype=np.int32)
  order = DRAW.permutation(order) if orders == 'shuffled' else order
  return order, np.sort(DRAW.integers(0, 3, length)).astype(np.int32)


@pytest.mark.parametrize('orders', ['counting', 'shuffled'])
@pytest.mark.parametrize('window', [None, 1, 5, (3, 1)])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('of_keys', [False, True])
def test_no_pair_is_outside_its_range_and_none_is_hidden_in_a_whole_one(
  causal, window, orders, of_keys
):
  if causal and isinstance(window, tuple):
    window = (window[0], 0)
  for _ in range(5):
    q, k = side(16, orders, first=6), side(24, orders)
    each = blocks(pairs(causal, window, q, k))
    each = each.swapaxes(0, 1) if of_keys else each
    number = np.arange(each.shape[1])
    for row, (first, first_whole, last_whole, last) in zip(
      each, found(causal, window, q, k, of_keys), strict=True
    ):
      assert 0 <= first <= first_whole <= last_whole <= last <= len(number)
      assert not row[(number < first) | (number >= last)].any()
      assert row[first_whole:last_whole].all()


@pytest.mark.parametrize('window', [None, 7])
def test_of_one_document_in_order_exactly_the_blocks_that_meet_are_visited(window):
  ones = lambda n: np.ones(n, np.int32)
  q, k = (np.arange(16, dtype=np.int32), ones(16)), (np.arange(16, dtype=np.int32), ones(16))
  each = blocks(pairs(True, window, q, k)).reshape(4, 8, -1)
  for row, (first, first_whole, last_whole, last) in zip(
    each, found(True, window, q, k), strict=True
  ):
    np.testing.assert_array_equal(np.flatnonzero(row.any(-1)), np.arange(first, last))
    np.testing.assert_array_equal(np.flatnonzero(row.all(-1)), np.arange(first_whole, last_whole))


def test_padding_visits_nothing():
  q, k = (np.arange(8, dtype=np.int32), np.zeros(8, np.int32)), side(8)
  spans = found(False, None, q, k)
  np.testing.assert_array_equal(spans[:, 0], spans[:, 3])


def test_orders_at_the_ends_of_int32_do_not_wrap():
  order = np.array([0, 1, 2**31 - 2, 2**31 - 1], np.int32)
  segments = np.ones(4, np.int32)
  assert found(True, None, (order, segments), (order, segments)).tolist() == [[0, 2, 2, 2]]


def by_distance(function, q_pos, k_pos):
  """The bias by distance of ids that count up by one."""
  distance = distances.falling(q_pos, k_pos, q_pos.shape[1], k_pos.shape[1])
  return places.by_head(function({}, distance), distance.shape)


@pytest.mark.parametrize(('queries', 'keys'), [(5, 7), (8, 8), (1, 3), (9, 4)])
def test_an_entry_of_the_padded_table_is_the_bias_of_its_distance(queries, keys):
  """Query t and key s read entry s - t + T, T being the padded length."""
  of = lambda params, distance: jnp.stack([1.0 * distance, -2.0 * distance])
  q_pos, k_pos = jnp.arange(queries)[None] + 3, jnp.arange(keys)[None]
  given = by_distance(of, q_pos, k_pos)
  assert given.shape == (1, 2, queries + keys - 1)
  padded = table.padded(given, queries, keys, 4)
  length = queries + -queries % 4
  for t, s in np.ndindex(queries, keys):
    np.testing.assert_array_equal(padded[0, :, s - t + length], [t + 3 - s, -2 * (t + 3 - s)])
  assert padded.shape[-1] == length + keys + -keys % 4
  np.testing.assert_array_equal(table.unpadded(padded, queries, keys, 4), given)


def test_rows_that_begin_elsewhere_have_tables_of_their_own():
  of = lambda params, distance: 1.0 * distance[None]
  q_pos, k_pos = jnp.array([[0, 1], [10, 11]]), jnp.array([[0, 1]])
  np.testing.assert_array_equal(by_distance(of, q_pos, k_pos)[:, 0], [[1, 0, -1], [11, 10, 9]])


def test_a_bias_of_another_shape_is_refused():
  pos = jnp.arange(3)[None]
  with pytest.raises(ValueError, match=r'must return \[H, 1, 5\], heads first, but got \(1, 5\)'):
    by_distance(lambda params, distance: 1.0 * distance, pos, pos)


def test_strips_that_overlap_by_half_are_summed():
  x = DRAW.integers(-9, 9, (3, 5, 6))
  expected = np.zeros((3, 18), int)
  for m in range(5):
    expected[:, 3 * m : 3 * m + 6] += x[:, m]
  np.testing.assert_array_equal(table.from_strips(jnp.asarray(x)), expected)


def test_a_kernel_says_what_it_costs():
  """Two products of half of all pairs, an exponential for each, and what is read and written."""
  rules = Rules(1.0, True, None, None, 0.0)
  arrays = jnp.zeros((2, 8, 4, 16), jnp.bfloat16), jnp.zeros((2, 4, 8))
  found = formulas.cost('forward', rules, 2 * 4 * 8 * 8, 16, arrays)
  assert (found.flops, found.transcendentals) == (2 * 2 * 256 * 16, 256)
  assert found.bytes_accessed == 2 * 8 * 4 * 16 * 2 + 2 * 4 * 8 * 4
