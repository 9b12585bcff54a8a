import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import log_scaled
from tests.support.loops import attention, causal, content, error
from tests.support.rotations import heads

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def factors(pos, length):
  """The formula in Python's float64."""
  return np.vectorize(lambda p: max(1.0, math.log(p + 1) / math.log(length)))(np.float64(pos))


@pytest.mark.parametrize('length', [2, 512, 2048])
def test_temperatures_are_the_formulas_at_every_id(length):
  pos = np.array([0, 1, length - 2, length - 1, length, 5 * length, 2**31 - 1], np.int32)
  found = log_scaled.temperature(jnp.asarray(pos), length)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, factors(pos, length), rtol=5e-7)
  real = log_scaled.temperature(jnp.asarray(pos, jnp.float32), length)
  np.testing.assert_allclose(real, factors(pos, length), rtol=5e-7)


def test_attention_is_that_of_queries_times_the_temperature():
  q, k, v, q_pos, k_pos = heads(6)
  ids = {'q_pos': jnp.asarray(q_pos), 'k_pos': jnp.asarray(k_pos)}
  scheme = log_scaled.scheme(length=30)
  found = attend(*map(jnp.asarray, (q, k, v)), scheme, {}, causal=True, **ids)
  logits = content(q * factors(q_pos, 30)[..., None, None], k)
  assert factors(q_pos, 30).max() > 1.5
  assert error(found, attention(logits, causal(q_pos, k_pos), v)[0]) < 1e-5


def test_nothing_changes_up_to_the_length_nor_at_ids_below_zero():
  query = log_scaled.scheme(length=100).query
  x = jax.random.normal(jax.random.key(0), (1, 5, 2, 4))
  for dtype in (jnp.int32, jnp.float32):
    pos = jnp.array([[-(2**20), -1, 0, 50, 99]], dtype)
    np.testing.assert_array_equal(query({}, x, pos), x)
  assert error(query({}, x, pos + 1), x) > 1e-4


def test_the_weight_of_a_key_that_stands_out_hardly_changes_with_the_length():
  """Without the temperature, one of 4096 keys would have the weight 1/65 instead of 1/2."""
  for seen in (64, 4096):
    strength = float(log_scaled.temperature(jnp.array([seen - 1]), 64)[0])
    weight = 64**strength / (64**strength + seen - 1)
    assert abs(weight - 0.5) < 0.01
