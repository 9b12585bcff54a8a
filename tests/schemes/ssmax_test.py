import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import ssmax
from tests.support.loops import attention, causal, content, error
from tests.support.rotations import heads

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames=('causal', 'implementation'))
SCALE, BIAS = np.array([0.2, 0.43, -0.1, 1.0]), np.array([0.5, 0.0, 1.0, -0.3])


def arrays(**params):
  return {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}


@pytest.mark.parametrize('bias', [False, True])
def test_weights_are_the_papers_powers_of_the_number_of_visible_tokens(bias):
  """n^(s z) / sum n^(s z), with exp(b z) besides, over the tokens up to each query."""
  q, k, v, _, _ = heads(6, queries=7)
  k_pos = np.broadcast_to(np.arange(7, dtype=np.int32), (2, 7))
  scheme = ssmax.scheme(bias=bias)
  params = arrays(scale=SCALE, bias=BIAS) if bias else arrays(scale=SCALE)
  ids = {'q_pos': jnp.asarray(k_pos), 'k_pos': jnp.asarray(k_pos)}
  found = attend(*map(jnp.asarray, (q, k, v)), scheme, params, causal=True, **ids)
  scale, offset = SCALE[:, None, None], bias * BIAS[:, None, None]
  seen = np.arange(1, 8)[:, None]
  powers = seen ** (scale * content(q, k)) * np.exp(offset * content(q, k))
  expected = attention(np.log(powers), causal(k_pos, k_pos), v)[0]
  assert error(found, expected) < 1e-5


def test_attention_that_is_not_causal_sees_as_many_tokens_as_are_declared():
  q, k, v, q_pos, k_pos = heads(6)
  ids = {'q_pos': jnp.asarray(q_pos), 'k_pos': jnp.asarray(k_pos)}
  found = attend(*map(jnp.asarray, (q, k, v)), ssmax.scheme(count=7), arrays(scale=SCALE), **ids)
  logits = content(q, k) * (SCALE * np.log(7))[:, None, None]
  assert error(found, attention(logits, True, v)[0]) < 1e-5


def test_logarithms_are_exact_and_ids_below_zero_count_as_zero():
  pos = np.array([-(2**31), -1, 0, 1, 1000, 2**24 + 1, 2**31 - 1], np.int32)
  expected = np.log(np.maximum(np.float64(pos), 0) + 1)
  np.testing.assert_allclose(ssmax.log_count(jnp.asarray(pos)), expected, rtol=3e-7)


def test_it_begins_as_plain_attention_at_the_length():
  scheme = ssmax.scheme(length=300, bias=True)
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(width=8, num_heads=2, head_dim=4))
  x = jax.random.normal(jax.random.key(1), (1, 1, 2, 4))
  assert error(scheme.query(params, x, jnp.array([[299]])), x) < 1e-6
  assert error(scheme.query(params, x, jnp.array([[99]])), x) > 0.1
  np.testing.assert_array_equal(scheme.query(params, x, jnp.array([[0]])), 0 * x)
