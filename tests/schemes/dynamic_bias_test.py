import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.network import initial
from posjax.schemes import dynamic_bias
from tests.support.loops import attention, causal, content, error
from tests.support.paths import load_golden

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
bias = jax.jit(dynamic_bias.bias, static_argnums=2)
GOLDEN = load_golden('dynamic_bias')


def _network(params, x, num_layers):
  """The MLP in float64, unit by unit."""
  p = {name: np.asarray(value, np.float64) for name, value in params.items()}
  for i in range(num_layers):
    kernel, offset = p[f'kernel_{i}'], p[f'offset_{i}']
    x = np.array([sum(x * kernel[:, o]) + offset[o] for o in range(len(offset))])
    if f'gain_{i}' in p:
      x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * p[f'gain_{i}'] + p[f'shift_{i}']
    x = x / (1 + np.exp(-x))
  return x @ p[f'kernel_{num_layers}']


def _moved(params):
  """Gains and shifts, too, off their initial values."""
  draw = np.random.default_rng(1).normal
  return jax.tree.map(lambda p: p + jnp.asarray(0.2 * draw(size=p.shape), jnp.float32), params)


@pytest.mark.parametrize(
  ('num_layers', 'log_distance', 'norm', 'axes'),
  [(2, False, False, 1), (1, True, False, 1), (3, True, True, 2), (2, False, True, 3)],
)
def test_attention_is_the_network_of_each_pair(key, num_layers, log_distance, norm, axes):
  scheme = dynamic_bias.scheme(5, num_layers, log_distance, norm, axes)
  params = _moved(scheme.init(key, posjax.Dims(24, 6, 4, 2)))
  rng = np.random.default_rng(0)
  q, k, v = (rng.normal(size=(2, n, h, 4)) for n, h in ((5, 6), (7, 2), (7, 2)))
  tail = (axes,) if axes > 1 else ()
  q_pos, k_pos = rng.integers(0, 30, (2, 5, *tail)), rng.integers(0, 30, (2, 7, *tail))
  logits = content(q, k)
  for b, t, s in np.ndindex(2, 5, 7):
    d = np.atleast_1d(q_pos[b, t] - k_pos[b, s]).astype(float)
    d = np.sign(d) * np.log(1 + abs(d)) if log_distance else d
    logits[b, :, t, s] += _network(params, d, num_layers)
  order = np.arange(7)[None]
  how = {'q_pos': q_pos, 'k_pos': k_pos, 'q_order': order[:, 2:], 'k_order': order, 'causal': True}
  out = attend(*(jnp.asarray(x, jnp.float32) for x in (q, k, v)), scheme, params, **how)
  assert error(out, attention(logits, causal(order[:, 2:], order), v)[0]) < 1e-5


def _weights(case):
  """Of the golden modules: kernels are [out, in] there, and the norm of the first layer a gain."""
  get = lambda name: GOLDEN[f'{case}__w__mlp.{name}']
  params = {}
  for i, layer in enumerate(('0.0', '1.0')):
    params |= {f'kernel_{i}': get(f'{layer}.weight').T, f'offset_{i}': get(f'{layer}.bias')}
  params['kernel_2'] = get('2.weight').T
  if case == 'lognorm':
    gain = get('0.1.gamma')
    params |= {'gain_0': gain, 'shift_0': np.zeros_like(gain)}
    params |= {'gain_1': get('1.1.weight'), 'shift_1': get('1.1.bias')}
  return {name: jnp.asarray(value) for name, value in params.items()}


@pytest.mark.parametrize('case', ['linear', 'lognorm'])
@pytest.mark.parametrize(('queries', 'keys'), [(7, 7), (3, 9)])
def test_the_bias_equals_x_transformers(case, queries, keys):
  distance = np.arange(keys - queries, keys)[:, None] - np.arange(keys)[None]
  found = bias(_weights(case), jnp.asarray(distance)[..., None], case != 'linear')
  # Their last layer has an offset, the same for all distances.
  expected = GOLDEN[f'{case}__bias_i{queries}_j{keys}']
  assert error(found + GOLDEN[f'{case}__w__mlp.2.bias'][:, None, None], expected) < 1e-5


@pytest.mark.parametrize('log_distance', [False, True])
def test_far_distances_are_told_apart(key, log_distance):
  # One unit that hands the distance through: SiLU is the identity for large numbers.
  params = {'kernel_0': jnp.ones((1, 1)), 'offset_0': jnp.zeros(1)}
  params['kernel_1'] = jnp.ones((1, 1))
  d = np.array([256, 257, 131071, 131072])
  seen = np.log1p(d) if log_distance else d
  expected = seen / (1 + np.exp(-seen))
  found = bias(params, jnp.asarray(d)[:, None], log_distance)[0]
  np.testing.assert_allclose(found, expected, rtol=3e-7)


def test_a_network_without_kernels_is_a_constant_that_the_softmax_forgets(key):
  scheme = dynamic_bias.scheme(4)
  params = scheme.init(key, posjax.Dims(24, 6, 4))
  params = {n: 0 * p if n.startswith('kernel') else p for n, p in params.items()}
  q, k, v = jax.random.normal(key, (3, 2, 7, 6, 4))
  pairs = (scheme, params), (posjax.Scheme(), {})
  outs = [attend(q, k, v, *pair, q_pos=jnp.arange(7), k_pos=jnp.arange(7)) for pair in pairs]
  assert error(*outs) < 1e-6


def test_both_signs_of_a_logarithm_mirror_each_other():
  params = {'kernel_0': jnp.array([[2.0]])}
  found = bias(params, jnp.arange(-9, 10)[:, None], True)[0]
  np.testing.assert_allclose(found, -found[::-1], rtol=1e-6)
  np.testing.assert_allclose(found[9:], 2 * np.log(1 + np.arange(10)), rtol=1e-6)


def test_initial_weights_are_uniform_within_the_root_of_the_inputs(key):
  params = initial(key, (1, 400, 300))
  for name, bound in (('kernel_0', 1), ('offset_0', 1), ('kernel_1', 0.05)):
    found = np.asarray(params[name])
    assert 0.95 * bound < abs(found).max() <= bound
    assert abs(found.std() - bound / np.sqrt(3)) < 0.06 * bound
  assert {name: p.shape for name, p in params.items()} == {
    'kernel_0': (1, 400), 'offset_0': (400,), 'kernel_1': (400, 300)
  }  # fmt: skip


def test_norms_start_as_the_plain_norm(key):
  params = dynamic_bias.scheme(8, 2, norm=True).init(key, posjax.Dims(24, 6, 4))
  for i in range(2):
    np.testing.assert_array_equal(params[f'gain_{i}'], 1)
    np.testing.assert_array_equal(params[f'shift_{i}'], 0)
  assert 'gain_2' not in params
  assert 'gain_0' not in dynamic_bias.scheme(8).init(key, posjax.Dims(24, 6, 4))


def test_a_norm_over_equal_units_is_finite_with_its_gradients():
  params = {'kernel_0': jnp.ones((1, 3)), 'offset_0': jnp.zeros(3)}
  params |= {'gain_0': jnp.ones(3), 'shift_0': jnp.zeros(3)}
  params['kernel_1'] = jnp.ones((3, 1))
  value, grads = jax.value_and_grad(lambda p: bias(p, jnp.ones((2, 1))).sum())(params)
  chex.assert_tree_all_finite((value, grads))
