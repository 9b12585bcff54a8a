import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import cape
from tests.support.loops import error

OFF = {'max_global_shift': 0.0, 'max_local_shift': 0.0, 'max_global_scale': 1.0}


def _ids(pos, seed=0, **settings):
  # Not compiled: JAX then compiles each draw once, for all bounds.
  key = None if seed is None else jax.random.key(seed)
  return np.asarray(cape.scheme(**{**OFF, **settings}).ids(jnp.asarray(pos), key))


ROWS = np.tile(np.arange(12, dtype=np.int32), (500, 1))


def _is_uniform(drawn, low, high):
  """Mean, deviation and both ends, to four standard errors."""
  drawn, width = drawn.ravel(), high - low
  assert low <= drawn.min() < low + 10 * width / drawn.size + 1e-5
  assert high - 10 * width / drawn.size - 1e-5 < drawn.max() <= high
  assert abs(drawn.mean() - (low + high) / 2) < 4 * width / np.sqrt(12 * drawn.size)
  assert abs(drawn.std() / (width / np.sqrt(12)) - 1) < 4 / np.sqrt(2 * drawn.size)


def test_without_a_key_ids_are_themselves_as_float32():
  pos = np.array([[0, 7, 2**24, -3]], np.int32)
  found = _ids(pos, seed=None, max_global_shift=5.0)
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, pos)


def test_off_is_the_identity_with_a_key_too():
  np.testing.assert_array_equal(_ids(ROWS), ROWS)


def test_the_global_shift_is_one_uniform_number_for_each_row():
  moved = _ids(ROWS, max_global_shift=5.0) - ROWS
  np.testing.assert_allclose(moved, np.tile(moved[:, :1], (1, 12)), atol=2e-6)
  _is_uniform(moved[:, 0], -5, 5)


def test_the_local_shift_is_one_uniform_number_for_each_token():
  moved = _ids(ROWS, max_local_shift=0.5) - ROWS
  _is_uniform(moved, -0.5, 0.5)
  assert abs(np.corrcoef(moved.T) - np.eye(12)).max() < 0.25


def test_the_scale_is_one_number_for_each_row_uniform_in_its_logarithm():
  scale = _ids(ROWS, max_global_scale=1.5)[:, 1:] / ROWS[:, 1:]
  np.testing.assert_allclose(scale, np.tile(scale[:, :1], (1, 11)), rtol=1e-6)
  _is_uniform(np.log(scale[:, 0].astype(np.float64)), -np.log(1.5), np.log(1.5))


def test_all_three_together_are_the_papers_formula_in_its_order():
  key, settings = jax.random.key(3), {'max_local_shift': 0.5, 'max_global_shift': 5.0}
  together = np.asarray(cape.augment(jnp.asarray(ROWS, jnp.float32), key, 5.0, 0.5, 1.5))
  shifted = _ids(ROWS, 3, **settings).astype(np.float64)
  scale = _ids(ROWS, 3, max_global_scale=1.5).astype(np.float64)[:, 1:2]  # of the id 1
  assert error(together, shifted * scale) < 1e-6


def test_a_local_shift_of_half_a_step_keeps_the_order():
  moved = _ids(ROWS, max_local_shift=0.5, max_global_shift=5.0, max_global_scale=1.03)
  assert (np.diff(moved) > 0).all()
  assert (np.diff(_ids(ROWS, max_local_shift=1.0)) < 0).any()


def test_the_global_scale_bounds_every_distance():
  moved = _ids(ROWS, max_global_shift=5.0, max_global_scale=1.4)
  distance = (moved[:, 1:] - moved[:, :1]) / ROWS[:, 1:]
  assert distance.min() > 1 / 1.4 - 1e-5
  assert distance.max() < 1.4 + 1e-5
  assert distance.std() > 0.1


def test_axes_are_shifted_each_for_itself_and_stretched_alike():
  cells = np.stack(np.meshgrid(np.linspace(-1, 1, 3), np.linspace(-1, 1, 4), indexing='ij'), -1)
  pos = np.tile(cells.reshape(12, 2), (400, 1, 1)).astype(np.float32)
  moved = _ids(pos, max_global_shift=0.5, axes=2) - pos
  np.testing.assert_allclose(moved, np.tile(moved[:, :1], (1, 12, 1)), atol=1e-6)
  assert abs(np.corrcoef(moved[:, 0].T)[0, 1]) < 0.25
  scale = _ids(pos, max_global_scale=1.4, axes=2)[:, 0] / pos[:, 0]
  np.testing.assert_allclose(scale[:, 0], scale[:, 1], rtol=1e-6)
  assert scale[:, 0].std() > 0.1
  jitter = _ids(pos, max_local_shift=0.25, axes=2) - pos
  assert abs(np.corrcoef(jitter.reshape(400, 24).T) - np.eye(24)).max() < 0.3


def test_ids_for_all_rows_are_augmented_once():
  for pos, axes in ((np.arange(5), 1), (np.ones((5, 2), np.int32), 2)):
    moved = _ids(pos, max_global_shift=5.0, axes=axes) - pos
    np.testing.assert_allclose(moved, np.tile(moved[:1], (5, *(1,) * (axes - 1))), atol=1e-6)
    assert len(set(moved[0].ravel().round(5))) == axes


def test_centered_ids_have_mean_0_when_evenly_spaced_and_do_not_feel_padding():
  pos = np.array([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]], np.int32)  # the second padded on the left
  found = _ids(pos, seed=None, centered=True)
  np.testing.assert_array_equal(found, [[-2, -1, 0, 1, 2], [-1, -1, -1, 0, 1]])
  seconds = 0.5 * np.arange(1, 8, dtype=np.float32)
  np.testing.assert_allclose(_ids(seconds, seed=None, centered=True), seconds - seconds.mean())
  cells = posjax.positions.grid(3, 5)
  centered = _ids(cells, seed=None, centered=True, axes=2)
  np.testing.assert_array_equal(centered, cells - np.array([[1, 2]]))


def test_the_center_is_taken_before_the_stretch():
  moved = _ids(ROWS, centered=True, max_global_scale=1.4).astype(np.float64)
  np.testing.assert_allclose(moved.sum(1), 0, atol=1e-4)
  assert moved[:, -1].std() > 0.5


def test_a_key_decides_and_rows_differ():
  first = _ids(ROWS, 1, max_global_shift=5.0)
  np.testing.assert_array_equal(first, _ids(ROWS, 1, max_global_shift=5.0))
  assert (first != _ids(ROWS, 2, max_global_shift=5.0)).all()
  assert len(set(first[:, 0])) > 490


def test_it_feeds_the_sinusoid_with_fractions():
  chained = posjax.get('cape+sinusoidal(base=100.0)')
  pos = chained.ids(jnp.arange(6)[None], jax.random.key(0))
  code = chained.embed(({}, {}), jnp.zeros((1, 6, 4)), None, pos)
  exact = np.asarray(pos, np.float64)[..., None] * np.array([1, 0.1])
  expected = np.stack([np.sin(exact), np.cos(exact)], -1).reshape(1, 6, 4)
  assert error(code, expected) < 1e-6
  assert abs(np.asarray(pos) % 1).max() > 0.01


def test_tables_refuse_it(key):
  chained = posjax.get('cape+learned(max_length=8)')
  params = posjax.init(chained, key, posjax.Dims(4, 1, 4))
  pos = chained.ids(jnp.arange(6)[None], None)
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    chained.embed(params, jnp.zeros((1, 6, 4)), None, pos)


def test_narrow_floats_are_refused():
  with pytest.raises(TypeError, match='must be integers, float32 or float64, but got bfloat16'):
    cape.scheme().ids(jnp.zeros((1, 3), jnp.bfloat16), None)
