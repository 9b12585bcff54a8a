import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.tables import lookup
from posjax.schemes import learned, sinusoidal
from tests.support.paths import load_golden

GOLDEN = load_golden('learned')
DIMS = posjax.Dims(width=8, num_heads=2, head_dim=4)


def test_each_token_gets_the_row_of_its_id(key):
  scheme = learned.scheme(max_length=10)
  params = scheme.init_model(key, DIMS)
  x, pos = jnp.ones((2, 3, 8)), jnp.array([[0, 1, 9], [4, 4, 2]])
  expected = 1 + np.asarray(params['table'])[np.asarray(pos)]
  np.testing.assert_array_equal(scheme.embed(params, x, None, pos), expected)


def test_it_equals_deepminds_lookup_of_random_ids():
  table, drawn = jnp.asarray(GOLDEN['noisy_table']), jnp.asarray(GOLDEN['noisy_table_idx_sorted'])
  np.testing.assert_array_equal(lookup(table, drawn), GOLDEN['noisy_table_out'])


def test_with_a_table_of_sinusoids_it_is_the_sinusoidal_scheme(key):
  x, pos = jax.random.normal(key, (2, 5, 8)), jnp.array([[0, 1, 2, 3, 4], [7, 3, 0, 1, 2]])
  params = {'table': sinusoidal.encoding(jnp.arange(8), 8)}
  expected = sinusoidal.scheme().embed({}, x, None, pos)
  np.testing.assert_array_equal(learned.scheme(8).embed(params, x, None, pos), expected)


def test_ids_beyond_the_table_and_negative_ones_give_nan(key):
  scheme = learned.scheme(max_length=4)
  pos = jnp.array([[3, 4, -1, -4, 2**31 - 1, -(2**31), 0]])
  out = jax.jit(scheme.embed)(scheme.init_model(key, DIMS), jnp.zeros((1, 7, 8)), None, pos)
  np.testing.assert_array_equal(jnp.isnan(out).all(-1), [[0, 1, 1, 1, 1, 1, 0]])
  np.testing.assert_array_equal(jnp.isnan(out).any(-1), [[0, 1, 1, 1, 1, 1, 0]])


@pytest.mark.parametrize('dtype', [jnp.int8, jnp.uint8, jnp.int16, jnp.uint32])
def test_other_integers_find_the_same_rows(key, dtype):
  table = jax.random.normal(key, (300, 2))
  pos = jnp.array([0, 100, 127])
  np.testing.assert_array_equal(lookup(table, pos.astype(dtype)), table[pos])


def test_only_the_rows_that_were_used_get_gradients(key):
  table = jax.random.normal(key, (5, 2))
  grad = jax.grad(lambda t: lookup(t, jnp.array([1, 3, 1])).sum())(table)
  np.testing.assert_array_equal(grad[:, 0], [0, 2, 0, 1, 0])


def test_the_initial_table_is_a_truncated_normal_of_deviation_2_percent(key):
  params = learned.scheme().init_model(key, DIMS._replace(width=64))
  assert params['table'].shape == (512, 64)
  assert params['table'].dtype == jnp.float32
  assert abs(params['table']).max() <= 0.04
  # A normal cut at twice its deviation keeps 0.8796 of it.
  np.testing.assert_allclose(params['table'].std(), 0.02 * 0.8796, rtol=0.01)
  assert abs(params['table'].mean()) < 3e-4


def test_the_table_is_the_models_and_no_layer_has_one(key):
  assert learned.scheme().init(key, DIMS) == {}


def test_the_dtype_of_the_embeddings_stays(key):
  scheme = learned.scheme(4)
  params = scheme.init_model(key, DIMS)
  out = scheme.embed(params, jnp.ones((1, 2, 8), jnp.bfloat16), None, jnp.array([[0, 1]]))
  assert out.dtype == jnp.bfloat16


def test_float_ids_are_refused(key):
  scheme = learned.scheme(4)
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    scheme.embed(scheme.init_model(key, DIMS), jnp.ones((1, 2, 8)), None, jnp.zeros((1, 2)))


def test_the_deviation_of_the_initial_values_is_an_argument(key):
  table = learned.scheme(stddev=1.0).init_model(key, DIMS)['table']
  np.testing.assert_allclose(table, 50 * learned.scheme().init_model(key, DIMS)['table'], rtol=1e-6)
  assert not learned.scheme(stddev=0.0).init_model(key, DIMS)['table'].any()
