import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.softplus import inverse_softplus
from posjax.schemes import alibi, laplace
from tests.support.loops import attention, content, error
from tests.support.paths import load_golden

GOLDEN = load_golden('laplace')
DIMS = posjax.Dims(width=12, num_heads=3, head_dim=4)
attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _heads(key):
  q = jax.random.normal(key, (2, 5, 3, 4))
  k, v = jax.random.normal(jax.random.fold_in(key, 1), (2, 2, 7, 3, 4))
  ids = {'q_pos': jnp.array([[3, 0, 11, 4, 4], [0, 1, 2, 3, 4]])}
  return q, k, v, ids | {'k_pos': jnp.array([0, 3, 4, 5, 8, 9, 11])}


@pytest.mark.parametrize(('name', 'b'), [('laplace', 0.0), ('laplace_b', -0.7)])
def test_it_is_an_independent_table(name, b):
  pos = jnp.arange(6)
  found = laplace.bias(jnp.array([0.3]), jnp.array([b]), pos[:, None] - pos[None])
  assert error(found[0], GOLDEN[f'bias_{name}_L6_w0.3_bm0.7']) < 1e-6


def test_multiplying_by_a_laplace_density_gives_the_same_attention(key):
  scheme = laplace.scheme(0.4)
  q, k, v, ids = _heads(key)
  out = attend(q, k, v, scheme, scheme.init_model(key, DIMS), **ids)
  q_pos, k_pos = (np.asarray(ids[name], np.float64) for name in ('q_pos', 'k_pos'))
  _, weights = attention(content(np.asarray(q), np.asarray(k)), np.array(True), np.asarray(v))
  weights *= 0.2 * np.exp(-0.4 * abs(q_pos[:, None, :, None] - k_pos))
  weights /= weights.sum(-1, keepdims=True)
  assert error(out, np.einsum('bhts,bshd->bthd', weights, np.asarray(v, np.float64))) < 1e-5


def test_with_alibis_slopes_and_no_b_it_is_alibi(key):
  q, k, v, ids = _heads(key)
  other = alibi.scheme()
  slopes = other.init(key, DIMS)
  raw = inverse_softplus(slopes['slopes'])
  out = attend(q, k, v, laplace.scheme(per_head=True), {'raw_w': raw}, **ids, causal=True)
  assert error(out, attend(q, k, v, other, slopes, **ids, causal=True)) < 1e-6
  distance = jnp.arange(-9, 10)
  found = laplace.bias(slopes['slopes'], jnp.zeros(3), distance)
  np.testing.assert_array_equal(found, alibi.bias(slopes['slopes'], distance))


def test_the_priors_maximum_is_at_minus_b_over_w():
  distance = jnp.linspace(-8, 8, 161)
  found = laplace.bias(jnp.array([0.25]), jnp.array([-1.0]), distance)[0]
  np.testing.assert_allclose(abs(distance[found.argmax()]), 4, atol=1e-5)
  np.testing.assert_allclose(found[80], -1)


def test_far_distances_are_finite_and_fractions_allowed():
  distance = jnp.array([2**31 - 1, -(2**31)])
  found = laplace.bias(jnp.array([0.5]), jnp.array([-(2.0**20)]), distance)[0]
  np.testing.assert_allclose(found, [2.0**20 - 2.0**30] * 2, rtol=1e-6)
  np.testing.assert_array_equal(
    laplace.bias(jnp.ones(1), jnp.zeros(1), jnp.array([-1.5])), [[-1.5]]
  )


def test_initial_numbers_are_the_arguments(key):
  params = laplace.scheme(2.0, -0.25, per_head=True).init(key, DIMS)
  np.testing.assert_allclose(jax.nn.softplus(params['raw_w']), [2.0] * 3, rtol=1e-6)
  np.testing.assert_allclose(jax.nn.softplus(params['raw_b']), [0.25] * 3, rtol=1e-6)
  assert set(laplace.scheme().init_model(key, DIMS)) == {'raw_w'}


def test_wrong_signs_are_refused():
  with pytest.raises(ValueError, match='must be positive, but got 0'):
    laplace.scheme(w=0.0)
  with pytest.raises(ValueError, match='must be negative, or None for 0, but got 1'):
    laplace.scheme(b=1.0)
