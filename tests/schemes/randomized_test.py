import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import randomized


@functools.cache
def _ids(max_length, length=None):
  return jax.jit(randomized.scheme(max_length, length).ids)


def _draws(max_length, pos, count=200, length=None, seed=0):
  """Many rows with the same ids."""
  rows = jnp.tile(pos, (count, 1))
  return np.asarray(_ids(max_length, length)(rows, jax.random.key(seed)))


@pytest.mark.parametrize('length', [None, 12, 20])
def test_positions_are_distinct_rising_and_in_range(length):
  drawn = _draws(20, jnp.arange(12), length=length)
  assert (np.diff(drawn) > 0).all()
  assert drawn.min() >= 0
  assert drawn.max() < 20


def test_every_position_is_used():
  drawn = _draws(20, jnp.arange(5))
  assert set(drawn.ravel()) == set(range(20))


@pytest.mark.parametrize(
  ('max_length', 'count', 'declared'), [(5, 3, False), (6, 2, True), (4, 1, False)]
)
def test_every_subset_is_equally_likely(max_length, count, declared):
  subsets = list(itertools.combinations(range(max_length), count))
  rows = 400 * len(subsets)
  drawn = _draws(max_length, jnp.arange(count), rows, count if declared else None)
  seen = np.array([(drawn == subset).all(1).sum() for subset in subsets])
  assert seen.sum() == rows
  degrees = len(subsets) - 1
  # Four standard deviations of chi-squared.
  assert ((seen - 400) ** 2 / 400).sum() < degrees + 4 * np.sqrt(2 * degrees)


def test_a_declared_length_draws_as_many_though_fewer_are_asked():
  # The first of 3 out of 4 is 0 or 1, with chances 3/4 and 1/4; the first of 1 could be any.
  first = _draws(4, jnp.array([0]), 4000, length=3)
  assert set(first.ravel()) == {0, 1}
  np.testing.assert_allclose((first == 0).mean(), 0.75, atol=0.03)
  assert set(_draws(4, jnp.array([0])).ravel()) == {0, 1, 2, 3}


def test_it_draws_one_more_than_the_largest_id_whatever_the_shape():
  key, ids = jax.random.key(3), _ids(50)
  whole = ids(jnp.arange(10)[None], key)
  np.testing.assert_array_equal(ids(jnp.array([[9, 0, 4]]), key), whole[:, jnp.array([9, 0, 4])])
  declared = _ids(50, 10)
  np.testing.assert_array_equal(declared(jnp.array([[4]]), key), whole[:, 4:5])


def test_equal_ids_stay_equal_in_a_packed_row():
  pos = jnp.array([[0, 1, 2, 3, 0, 1, 2, 0, 0, 1]])
  drawn = np.asarray(_ids(100)(pos, jax.random.key(0)))[0]
  for one in range(4):
    assert len(set(drawn[np.asarray(pos[0]) == one])) == 1
  assert len(set(drawn)) == 4


def test_more_tokens_than_positions_fit_when_the_length_is_declared():
  pos = jnp.tile(jnp.arange(4), 5)[None]
  drawn = _ids(8, 4)(pos, jax.random.key(0))
  np.testing.assert_array_equal(drawn, jnp.tile(drawn[:, :4], (1, 5)))
  assert drawn.min() >= 0


def test_rows_differ():
  drawn = _draws(1000, jnp.arange(10), 50)
  assert len({tuple(row) for row in drawn}) == 50


def test_a_key_decides_and_another_decides_otherwise():
  pos = jnp.arange(10)
  ids = _ids(1000)
  first = ids(pos, jax.random.key(1))
  np.testing.assert_array_equal(first, ids(pos, jax.random.key(1)))
  assert (first != ids(pos, jax.random.key(2))).any()
  np.testing.assert_array_equal(first, _ids(1000)(pos, jax.random.PRNGKey(1)))


def test_without_a_key_ids_stay():
  pos = jnp.array([[0, 5, 99999, -3]])
  np.testing.assert_array_equal(randomized.scheme(10).ids(pos, None), pos)
  assert randomized.scheme(2).ids(jnp.arange(5), None).shape == (5,)


def test_drawing_all_positions_is_the_identity():
  pos = jnp.array([[3, 0, 1, 2, 2], [0, 1, 2, 3, 0]])
  drawn = _ids(4, 4)(pos, jax.random.key(0))
  np.testing.assert_array_equal(drawn, pos)


def test_ids_that_were_not_drawn_become_minus_1_and_nan_in_a_table(key):
  scheme = posjax.get('randomized(max_length=8, length=4)+learned(max_length=8)')
  pos = jnp.array([[0, 3, 4, -1, 2**31 - 1, -(2**31)]])
  drawn = scheme.ids(pos, key)
  np.testing.assert_array_equal(drawn[:, 2:], -1)
  assert (drawn[:, :2] >= 0).all()
  params = posjax.init(scheme, key, posjax.Dims(4, 1, 4))
  out = scheme.embed(params, jnp.zeros((1, 6, 4)), None, drawn)
  np.testing.assert_array_equal(jnp.isnan(out).any(-1), [[0, 0, 1, 1, 1, 1]])


def test_ids_beyond_max_length_become_minus_1_when_the_length_is_not_declared(key):
  drawn = _ids(4)(jnp.array([0, 3, 4, 2**31 - 1]), key)
  np.testing.assert_array_equal(drawn, [0, 3, -1, -1])


def test_a_subset_of_a_traced_size_has_that_size():
  draw = jax.jit(jax.vmap(lambda count: randomized.draw(jax.random.key(0), count, 10)))
  drawn = draw(jnp.arange(12))
  np.testing.assert_array_equal((drawn < 10).sum(1), np.minimum(np.arange(12), 10))
  assert (jnp.diff(drawn) >= 0).all()


@pytest.mark.parametrize('dtype', [jnp.int8, jnp.uint32])
def test_the_draw_is_int32_for_all_integers(dtype):
  pos = jnp.array([0, 100, 127]).astype(dtype)
  drawn = _ids(1000)(pos, jax.random.key(0))
  assert drawn.dtype == jnp.int32
  expected = _ids(1000)(jnp.array([0, 100, 127]), jax.random.key(0))
  np.testing.assert_array_equal(drawn, expected)


def test_new_ids_do_not_retrace():
  traced = []

  def ids(pos, key):
    traced.append(pos.shape)
    return randomized.scheme(64).ids(pos, key)

  jitted = jax.jit(ids)
  for last in (3, 9, 40):
    jitted(jnp.array([[0, last]]), jax.random.key(0))
  assert len(traced) == 1


def test_each_axis_of_a_grid_draws_for_itself_and_keeps_its_order(key):
  ids = randomized.scheme(50, axes=2).ids
  pos = jnp.broadcast_to(posjax.positions.grid(3, 4), (2, 12, 2))
  drawn = np.asarray(ids(pos, key)).reshape(2, 3, 4, 2)
  rows, columns = drawn[:, :, :1, 0], drawn[:, :1, :, 1]
  np.testing.assert_array_equal(drawn[..., 0], np.broadcast_to(rows, (2, 3, 4)))
  np.testing.assert_array_equal(drawn[..., 1], np.broadcast_to(columns, (2, 3, 4)))
  assert (np.diff(rows, axis=1) > 0).all()
  assert (np.diff(columns, axis=2) > 0).all()
  assert len({tuple(line) for line in (*rows[:, :, 0], *columns[:, 0, :3])}) == 4
  np.testing.assert_array_equal(ids(pos[0], None), pos[0])
  assert ids(pos[0], key).shape == (12, 2)


def test_the_cells_of_a_grid_may_be_more_than_the_positions(key):
  drawn = randomized.scheme(4, axes=2).ids(posjax.positions.grid(4, 4), key)
  np.testing.assert_array_equal(drawn, posjax.positions.grid(4, 4))


def test_ids_of_another_number_of_axes_are_refused(key):
  with pytest.raises(TypeError, match=r'of 2 axes need ids \[B, T, n\] or \[T, n\], but got'):
    randomized.scheme(50, axes=2).ids(jnp.zeros((2, 12, 3), jnp.int32), key)


def test_ids_that_are_not_one_integer_per_token_are_refused(key):
  ids = randomized.scheme(8).ids
  with pytest.raises(TypeError, match='need integer ids, but got float32'):
    ids(jnp.zeros((1, 3)), key)
  with pytest.raises(
    TypeError, match=r'of 1 axes need ids \[B, T\] or \[T\], but got shape \(1, 3, 2\)'
  ):
    ids(jnp.zeros((1, 3, 2), jnp.int32), key)


def test_more_tokens_than_positions_are_refused(key):
  with pytest.raises(ValueError, match='9 tokens may need more than the 8 positions'):
    randomized.scheme(8).ids(jnp.arange(9), key)


def test_arguments_out_of_range_are_refused():
  for length in (0, 9):
    with pytest.raises(ValueError, match=rf'in 1 .. max_length 8, .* but got\s+{length}'):
      randomized.scheme(8, length)
