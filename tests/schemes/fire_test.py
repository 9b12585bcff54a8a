import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.softplus import inverse_softplus
from posjax.schemes import fire, kerple
from tests.support.loops import attention, causal, content, error

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
normalised = jax.jit(fire.normalised)
DIMS = posjax.Dims(24, 6, 4, 2)


def _bias(params, i, j, threshold, num_layers):
  """b(i, j) of the paper, and of its code's 1e-6, in float64: one number for each head."""
  p = {name: np.asarray(value, np.float64) for name, value in params.items()}
  psi = lambda x: np.log(p['c'] * x + 1)
  x = psi(abs(i - j)) / (psi(max(p['threshold_factor'] * threshold, i)) + 1e-6)
  x = np.array([x])
  for layer in range(num_layers):
    x = np.maximum(x @ p[f'kernel_{layer}'] + p[f'offset_{layer}'], 0)
  return x @ p[f'kernel_{num_layers}']


@pytest.mark.parametrize(('num_layers', 'shared'), [(2, False), (1, True)])
@pytest.mark.parametrize('kv_heads', [2, 6])
def test_attention_is_the_papers_formula_pair_by_pair(key, num_layers, shared, kv_heads):
  scheme = fire.scheme(6.0, 5, num_layers, shared=shared)
  params = posjax.init(scheme, key, DIMS)
  params |= {'c': jnp.float32(0.3), 'threshold_factor': jnp.float32(1.2)}
  draw = np.random.default_rng(0).normal
  q, k, v = (draw(size=(2, n, h, 4)) for n, h in ((5, 6), (7, kv_heads), (7, kv_heads)))
  q_pos = np.array([[3, 0, 9, 4, 4], [100, 1, 7, 8, 50]])
  k_pos = np.array([[0, 3, 4, 5, 8, 9, 1000]] * 2)
  logits = content(q, k)
  for b, t, s in np.ndindex(2, 5, 7):
    logits[b, :, t, s] += _bias(params, q_pos[b, t], k_pos[b, s], 6.0, num_layers)
  single = [jnp.asarray(x, jnp.float32) for x in (q, k, v)]
  for seen, how in ((True, {}), (causal(q_pos, k_pos), {'causal': True})):
    out = attend(*single, scheme, params, q_pos=q_pos, k_pos=k_pos, **how)
    assert error(out, attention(logits, seen, v)[0]) < 1e-5


def test_the_network_sees_the_same_of_the_first_token_at_any_length():
  pos = jnp.arange(8, 2000, 37)
  found = normalised(pos, jnp.zeros(1, jnp.int32), jnp.array(0.1), jnp.array(8.0))
  np.testing.assert_allclose(found, 1, atol=2e-6)


def test_keys_that_are_not_ahead_are_seen_within_zero_and_one():
  pos = jnp.arange(0, 3000, 7)
  found = np.asarray(normalised(pos, pos, jnp.array(0.1), jnp.array(512.0)))
  back = np.tril(np.ones(found.shape, bool))
  assert found[back].min() == 0
  assert found[back].max() < 1
  assert found[~back].max() > 1  # why the paper is about causal attention


def test_a_longer_context_interpolates():
  # Half as far for a query twice as far on is nearly the same, for a psi that is nearly linear.
  c, threshold = jnp.array(1e-6), jnp.array(4.0)
  short = normalised(jnp.array([100]), 100 - jnp.arange(0, 50), c, threshold)
  far = normalised(jnp.array([200]), 200 - 2 * jnp.arange(0, 50), c, threshold)
  np.testing.assert_allclose(short, far, atol=1e-2)


def test_below_the_threshold_it_depends_on_the_distance_only():
  pos, args = jnp.arange(20), (jnp.array(0.1), jnp.array(30.0))
  np.testing.assert_allclose(
    normalised(pos, pos, *args), normalised(pos + 10, pos + 10, *args), atol=1e-6
  )
  moved = normalised(pos + 40, pos + 40, *args) - normalised(pos, pos, *args)
  assert abs(moved).max() > 0.01


def test_below_the_threshold_a_linear_network_is_logarithmic_kerple(key):
  r1 = jnp.array([0.5, 1.5, 0.1, 2.0, 1.0, 0.7])
  scheme = fire.scheme(100.0, 1, 1)
  normaliser = np.log(1 + 0.1 * 100)
  params = scheme.init(key, DIMS)
  params |= {'kernel_0': jnp.ones((1, 1)), 'offset_0': jnp.zeros(1)}
  params['kernel_1'] = -r1[None] * normaliser
  like = {'raw_factor': inverse_softplus(r1), 'raw_rate': inverse_softplus(jnp.full(6, 0.1))}
  q, k, v = jax.random.normal(key, (3, 2, 9, 6, 4))
  how = {'q_pos': jnp.arange(9), 'k_pos': jnp.arange(9), 'causal': True}
  found = attend(q, k, v, scheme, params, **how)
  assert error(found, attend(q, k, v, kerple.scheme(), like, **how)) < 1e-5


def test_signs_of_c_and_of_the_threshold_do_not_matter():
  pos = jnp.arange(9)
  both = [normalised(pos, pos, jnp.array(0.1 * s), jnp.array(5.0 * s)) for s in (1, -1)]
  np.testing.assert_array_equal(*both)


def test_numbers_and_gradients_are_finite_even_where_c_vanishes():
  pos = jnp.arange(5)
  for c in (0.0, 1e-30, 0.1):
    loss = lambda c, threshold: normalised(pos, pos, c, threshold).sum()
    value, grads = jax.value_and_grad(loss, (0, 1))(jnp.float32(c), jnp.float32(2))
    assert all(jnp.isfinite(leaf) for leaf in (value, *grads))


def test_initial_values_are_those_of_the_published_code(key):
  params = fire.scheme(512.0, num_layers=1).init(key, posjax.Dims(24, 12, 4))
  assert params['c'] == np.float32(0.1)
  assert params['threshold_factor'] == 1
  shapes = {'kernel_0': (1, 32), 'offset_0': (32,), 'kernel_1': (32, 12)}
  shapes |= {'c': (), 'threshold_factor': ()}
  assert {name: p.shape for name, p in params.items()} == shapes
  assert 0.5 < abs(params['kernel_0']).max() <= 1
  assert 0.9 * 32**-0.5 < abs(params['kernel_1']).max() <= 32**-0.5


def test_sharing_makes_the_network_a_parameter_of_the_model(key):
  own, shared = (fire.scheme(512.0, shared=s) for s in (False, True))
  assert own.init_model(key, DIMS) == shared.init(key, DIMS) == {}
  assert own.init(key, DIMS).keys() == shared.init_model(key, DIMS).keys()
