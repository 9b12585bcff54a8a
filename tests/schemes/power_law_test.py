import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import power_law
from tests.support.loops import attention, content, error
from tests.support.paths import load_golden

GOLDEN = load_golden('power_law')
DIMS = posjax.Dims(width=12, num_heads=3, head_dim=4)


def test_it_is_an_independent_table():
  pos = jnp.arange(6)
  found = power_law.bias(jnp.array([0.3]), jnp.array([0.0]), pos[:, None] - pos[None])
  assert error(found[0], GOLDEN['bias_log_L6_w0.3_bm0.7']) < 1e-6


def test_multiplying_by_a_power_of_the_distance_gives_the_same_attention(key):
  scheme = power_law.scheme(1.5)
  q = jax.random.normal(key, (2, 5, 3, 4))
  k, v = jax.random.normal(jax.random.fold_in(key, 1), (2, 2, 7, 3, 4))
  q_pos, k_pos = np.array([[3, 0, 11, 4, 4], [0, 1, 2, 3, 4]]), np.array([0, 3, 4, 5, 8, 9, 11])
  ids = {'q_pos': jnp.asarray(q_pos), 'k_pos': jnp.asarray(k_pos)}
  attend = jax.jit(posjax.attend, static_argnums=3)
  out = attend(q, k, v, scheme, scheme.init_model(key, DIMS), **ids)
  _, weights = attention(content(np.asarray(q), np.asarray(k)), np.array(True), np.asarray(v))
  weights *= (1.0 + abs(q_pos[:, None, :, None] - k_pos)) ** -1.5
  weights /= weights.sum(-1, keepdims=True)
  assert error(out, np.einsum('bhts,bshd->bthd', weights, np.asarray(v, np.float64))) < 1e-5


def test_with_b_it_is_the_absolute_value_of_the_sum():
  w, b, distance = [0.5, 2.0], [-1.0, -0.3], np.array([-7, -1, 0, 2, 40])
  found = power_law.bias(jnp.array(w), jnp.array(b), jnp.asarray(distance))
  expected = [[-abs(w[h] * np.log(1 + abs(d)) + b[h]) for d in distance] for h in (0, 1)]
  assert error(found, expected) < 1e-6


def test_the_priors_maximum_is_at_the_exponential_of_minus_b_over_w_less_one():
  distance = jnp.linspace(0, 10, 1001)
  found = power_law.bias(jnp.array([0.5]), jnp.array([-0.5 * np.log(4.0)]), distance)[0]
  np.testing.assert_allclose(distance[found.argmax()], 3, atol=1e-5)


def test_doubling_a_far_distance_costs_the_same_everywhere():
  w, b = jnp.array([2.0]), jnp.array([0.0])
  far = 2 ** np.arange(16, 30)
  cost = power_law.bias(w, b, jnp.asarray(far)) - power_law.bias(w, b, jnp.asarray(2 * far))
  np.testing.assert_allclose(cost, 2 * np.log(2) * np.ones((1, 14)), rtol=1e-4)


def test_initial_numbers_are_the_arguments(key):
  params = power_law.scheme(2.0, -0.25, per_head=True).init(key, DIMS)
  np.testing.assert_allclose(jax.nn.softplus(params['raw_w']), [2.0] * 3, rtol=1e-6)
  np.testing.assert_allclose(jax.nn.softplus(params['raw_b']), [0.25] * 3, rtol=1e-6)
  assert set(power_law.scheme().init_model(key, DIMS)) == {'raw_w'}


def test_wrong_signs_are_refused():
  with pytest.raises(ValueError, match='must be positive, but got -1'):
    power_law.scheme(w=-1.0)
  with pytest.raises(ValueError, match='must be negative, or None for 0, but got 0'):
    power_law.scheme(b=0.0)
