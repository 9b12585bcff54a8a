import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import shifted
from tests.support.loops import error


def _ids(max_shift, axes=1):
  # Not compiled: JAX then compiles each draw once, for all bounds.
  return shifted.scheme(max_shift, axes).ids


def test_each_row_is_shifted_by_one_whole_number_of_0_to_max_shift():
  pos = np.tile(np.array([4, 0, 1, 2, 3, 0, 1], np.int32), (400, 1))  # packed: 0 and 1 twice
  moved = np.asarray(_ids(9)(jnp.asarray(pos), jax.random.key(0)))
  assert moved.dtype == np.int32
  shifts = moved - pos
  np.testing.assert_array_equal(shifts, np.tile(shifts[:, :1], (1, 7)))
  counts = np.bincount(shifts[:, 0], minlength=10)
  assert len(counts) == 10  # both ends are drawn
  # Four standard deviations of chi-squared with 9 degrees of freedom.
  assert ((counts - 40) ** 2 / 40).sum() < 9 + 4 * np.sqrt(18)


def test_each_axis_of_a_row_has_a_shift_of_its_own():
  pos = np.asarray(np.random.default_rng(0).integers(0, 50, (60, 5, 3)), np.int32)
  shifts = np.asarray(_ids(999, 3)(jnp.asarray(pos), jax.random.key(0))) - pos
  np.testing.assert_array_equal(shifts, np.tile(shifts[:, :1], (1, 5, 1)))
  assert abs(np.corrcoef(shifts[:, 0].T) - np.eye(3)).max() < 0.5
  one = np.asarray(_ids(999, 3)(jnp.asarray(pos[0]), jax.random.key(0))) - pos[0]
  np.testing.assert_array_equal(one, np.tile(one[:1], (5, 1)))
  assert len(set(one[0])) == 3


def test_ids_for_all_rows_get_one_shift():
  moved = _ids(99)(jnp.arange(5), jax.random.key(1))
  np.testing.assert_array_equal(moved - moved[0], np.arange(5))


def test_a_key_decides_and_another_decides_otherwise():
  pos = jnp.zeros((8, 1), jnp.int32)
  first = _ids(10**6)(pos, jax.random.key(1))
  np.testing.assert_array_equal(first, _ids(10**6)(pos, jax.random.key(1)))
  np.testing.assert_array_equal(first, _ids(10**6)(pos, jax.random.PRNGKey(1)))
  assert (first != _ids(10**6)(pos, jax.random.key(2))).all()
  assert len(set(np.asarray(first).ravel())) == 8


def test_without_a_key_ids_stay():
  pos = jnp.array([[0, 5, 99999, -3]])
  assert shifted.scheme(10).ids(pos, None) is pos


def test_a_max_shift_of_0_is_off():
  pos = jnp.array([[0, 5, 99999, -3]])
  np.testing.assert_array_equal(_ids(0)(pos, jax.random.key(0)), pos)


def test_far_ids_are_exact_up_to_the_end_of_int32():
  end = 2**31 - 1 - 7
  pos = jnp.tile(jnp.array([end, end - 1, -(2**31)]), (50, 1))
  moved = np.asarray(_ids(7)(pos, jax.random.key(0)), np.int64)
  assert moved[:, 0].max() == 2**31 - 1
  np.testing.assert_array_equal(moved - moved[:, :1], np.tile([0, -1, -(2**31) - end], (50, 1)))


def test_narrow_integers_do_not_wrap():
  moved = _ids(1000)(jnp.full((20, 1), 127, jnp.int8), jax.random.key(0))
  assert moved.dtype == jnp.int32
  assert moved.min() >= 127
  assert moved.max() > 127 + 500


def test_float_ids_keep_their_fractions():
  pos = jnp.array([[0.25, 1.5]])
  moved = _ids(100)(pos, jax.random.key(0))
  assert moved.dtype == jnp.float32
  np.testing.assert_array_equal(moved % 1, pos % 1)


def _layer(line, ids, key):
  """Attention whose heads are made of the embeddings, at the ids that `line` makes."""
  scheme = posjax.get(line)
  draw = np.random.default_rng(0).normal
  x, matrices = jnp.asarray(draw(size=(3, 6, 8)), jnp.float32), draw(size=(3, 8, 8))
  params = posjax.init(scheme, jax.random.key(5), posjax.Dims(8, 2, 4))

  @jax.jit
  def out(ids, x, key):
    pos = scheme.ids(ids, key)
    x = scheme.embed(params, x, None, pos)
    q, k, v = ((x @ m.astype(np.float32)).reshape(3, 6, 2, 4) for m in matrices)
    order = jnp.arange(6)
    side = {'q_pos': pos, 'k_pos': pos, 'q_order': order, 'k_order': order}
    return posjax.attend(q, k, v, scheme, params, **side, causal=True, model_places=True)

  return out(ids, x, key)


@pytest.mark.parametrize('after', ['rope', 'alibi', 'shaw(max_distance=2)'])
def test_a_scheme_that_sees_distances_alone_is_not_changed(after):
  pos = jnp.tile(jnp.arange(6), (3, 1))
  moved = _layer(f'shifted+{after}', pos, jax.random.key(1))
  assert error(moved, _layer(f'shifted+{after}', pos, None)) < 1e-5


def test_a_scheme_of_absolute_ids_sees_the_shifted_ones():
  pos = jnp.tile(jnp.arange(6), (3, 1))
  moved = _layer('shifted(max_shift=40)+sinusoidal', pos, jax.random.key(1))
  chained = posjax.get('shifted(max_shift=40)+sinusoidal').ids(pos, jax.random.key(1))
  assert error(moved, _layer('sinusoidal', chained, None)) < 1e-6
  assert error(moved, _layer('sinusoidal', pos, None)) > 0.01


def test_it_chains_with_schemes_of_two_axes():
  chained = posjax.get('shifted(max_shift=40, axes=2)+sinusoidal(axes=2)')
  pos = posjax.positions.grid(2, 3)
  moved = chained.ids(pos, jax.random.key(0))
  np.testing.assert_array_equal(moved - moved[:1], pos)
  assert chained.embed(({}, {}), jnp.zeros((1, 6, 8)), None, moved[None]).shape == (1, 6, 8)


def test_ids_that_cannot_be_added_to_are_refused():
  for dtype in (jnp.uint32, jnp.bfloat16):
    with pytest.raises(TypeError, match='must be signed integers, float32 or float64, but got'):
      shifted.scheme().ids(jnp.zeros((1, 3), dtype), jax.random.key(0))
