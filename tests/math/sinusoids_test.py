import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math.angles import angles
from posjax.math.sinusoids import encoding, key_side, query_side, with_key_side
from tests.support.loops import error

POS = np.array([[0, 1, 5], [-3, 1000, 131072]], np.int32)


@pytest.mark.parametrize('interleaved', [True, False])
@pytest.mark.parametrize('cos_first', [False, True])
@pytest.mark.parametrize('endpoint', [False, True])
@pytest.mark.parametrize('width', [8, 9])
def test_a_code_is_sines_and_cosines_in_the_layout_that_was_asked_for(
  width, interleaved, cos_first, endpoint
):
  half = width // 2
  expected = np.zeros((*POS.shape, width))
  for k in range(half):
    exponent = k / (half - 1) if endpoint else 2 * k / width
    angle = POS.astype(np.float64) * 500.0**-exponent
    sin_at, cos_at = (2 * k, 2 * k + 1) if interleaved else (k, half + k)
    if cos_first:
      sin_at, cos_at = cos_at, sin_at
    expected[..., sin_at], expected[..., cos_at] = np.sin(angle), np.cos(angle)
  layout = {'interleaved': interleaved, 'cos_first': cos_first, 'endpoint': endpoint}
  found = encoding(jnp.asarray(POS), width, 500.0, **layout)
  assert found.dtype == jnp.float32
  assert error(found, expected) < 1e-6


def test_the_product_of_the_two_sides_is_the_code_of_the_distance():
  draw, frequencies = np.random.default_rng(0), np.array([1.0, 0.3, 0.01])
  q_pos, k_pos = np.array([[5, 900, 131072]]), np.array([[0, 7, 131000, 3]])
  coefficients = draw.normal(size=(1, 3, 2, 6)).astype(np.float32)
  queries = query_side(
    jnp.asarray(coefficients), angles(jnp.asarray(q_pos, jnp.int32), frequencies)
  )
  keys = key_side(angles(jnp.asarray(k_pos, jnp.int32), frequencies))
  found = np.einsum('bthm,bsm->bhts', queries, keys)
  expected = np.zeros((1, 2, 3, 4))
  for h, t, s in np.ndindex(2, 3, 4):
    turns = float(q_pos[0, t] - k_pos[0, s]) * frequencies
    code = np.concatenate([np.sin(turns), np.cos(turns)])
    expected[0, h, t, s] = coefficients[0, t, h].astype(np.float64) @ code
  assert error(found, expected) < 1e-5


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float32])
def test_widened_keys_end_in_the_same_cosines_and_sines_for_all_heads(key, dtype):
  x = jax.random.normal(key, (2, 3, 4, 5)).astype(dtype)
  angle = np.random.default_rng(0).uniform(-3, 3, (2, 3, 2)).astype(np.float32)
  out = with_key_side(x, jnp.asarray(angle))
  assert out.dtype == dtype
  np.testing.assert_array_equal(out[..., :5], x)
  expected = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)[:, :, None]
  assert error(out[..., 5:], np.broadcast_to(expected, (2, 3, 4, 4))) < (
    1e-2 if dtype == jnp.bfloat16 else 1e-6
  )
