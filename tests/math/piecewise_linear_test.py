import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math import piecewise_linear
from posjax.math.network import initial, network
from posjax.schemes import fire
from tests.support.loops import attention, causal, content, error

WIDTH, HEADS = 32, 5
SIDE = 128  # numbers of a square that is large enough for pieces to be worth it
relu_network = jax.jit(piecewise_linear.relu_network)
find = jax.jit(piecewise_linear.knots, static_argnames='most')


def _run(params, x):
  """The network in float64 and NumPy: [heads, numbers]."""
  p = {name: np.asarray(value, np.float64) for name, value in params.items()}
  layers = sum(name.startswith('offset_') for name in p)
  x = np.asarray(x, np.float64).reshape(1, -1)
  for i in range(layers):
    x = np.maximum(p[f'kernel_{i}'].T @ x + p[f'offset_{i}'][:, None], 0)
  return p[f'kernel_{layers}'].T @ x


def _switches(params, x):
  """How often a hidden unit turns on or off from one of the rising numbers to the next."""
  p = {name: np.asarray(value, np.float64) for name, value in params.items()}
  found, x = 0, np.asarray(x, np.float64).reshape(1, -1)
  for i in range(sum(name.startswith('offset_') for name in p)):
    x = p[f'kernel_{i}'].T @ x + p[f'offset_{i}'][:, None]
    found += ((x[:, 1:] < 0) != (x[:, :-1] < 0)).sum()
    x = np.maximum(x, 0)
  return found


def _between(low, high):
  return jnp.asarray(np.random.default_rng(0).uniform(low, high, (SIDE, SIDE)), jnp.float32)


@pytest.mark.parametrize('layers', [1, 2, 3])
@pytest.mark.parametrize(('low', 'high'), [(0.5, 0.501), (0.3, 0.36), (0.0, 0.5), (-3.0, 3.0)])
def test_values_and_gradients_are_the_networks(key, layers, low, high):
  params = initial(key, (1, *(WIDTH,) * layers, HEADS))
  x = _between(low, high)
  out = relu_network(params, x)
  assert error(out.reshape(HEADS, -1), _run(params, x)) < 1e-6
  weight = jax.random.normal(key, out.shape)
  one, other = (
    jax.jit(jax.grad(lambda params, x, f=f: (f(params, x) * weight).sum(), argnums=(0, 1)))
    for f in (
      piecewise_linear.relu_network,
      lambda params, x: network(params, x[None], jax.nn.relu),
    )
  )
  found, expected = one(params, x), other(params, x)
  for name, leaf in expected[0].items():
    assert error(found[0][name], leaf) < 1e-5, name
  # Next to a knot, rounding decides on which side a number lies.
  wrong = abs(found[1] - expected[1]) > 1e-5 * abs(expected[1]).max()
  assert wrong.mean() < 1e-3


def test_the_intervals_of_the_test_above_take_every_way(key):
  params = initial(key, (1, WIDTH, WIDTH, HEADS))
  count = lambda low, high: int(
    find(params, jnp.array(low), jnp.array(high), most=piecewise_linear._MOST)[1]
  )
  assert count(0.5, 0.501) <= 1 < count(0.0, 0.5) <= 24 < count(-3.0, 3.0)


@pytest.mark.parametrize('layers', [1, 2])
def test_knots_are_where_a_unit_turns_on_or_off(key, layers):
  params = initial(key, (1, *(WIDTH,) * layers, HEADS))
  low, high = 0.1, 0.4
  points, count = find(params, jnp.array(low), jnp.array(high), most=40)
  assert count == _switches(params, np.linspace(low, high, 100_001))
  assert (jnp.diff(points) >= 0).all()
  assert (points[int(count) + 1 :] == points[-1]).all()
  for point in np.asarray(points[1 : int(count) + 1]):
    assert _switches(params, [point - 1e-5, point + 1e-5]) >= 1


def test_more_knots_than_asked_for_are_noticed(key):
  params = initial(key, (1, WIDTH, WIDTH, HEADS))
  ends = jnp.array(-3.0), jnp.array(3.0)
  for most in (1, 4, 8):
    points, count = find(params, *ends, most=most)
    assert points.shape == (most + 2,)
    assert count > most


def test_one_number_many_times_has_no_knots(key):
  params = initial(key, (1, WIDTH, WIDTH, HEADS))
  x = jnp.full((SIDE, SIDE), 0.25)
  assert error(relu_network(params, x).reshape(HEADS, -1), _run(params, x)) < 1e-6


def test_a_number_on_a_knot_has_its_value():
  params = {'kernel_0': jnp.ones((1, 2)), 'offset_0': jnp.array([-0.5, -0.5])}
  params['kernel_1'] = jnp.array([[1.0], [2.0]])
  x = jnp.linspace(0, 1, SIDE * SIDE + 1)
  np.testing.assert_allclose(relu_network(params, x)[0], 3 * np.maximum(x - 0.5, 0), atol=1e-6)


def test_rows_that_are_mapped_are_each_their_own(key):
  params = initial(key, (1, WIDTH, WIDTH, HEADS))
  x = jnp.stack([_between(0.5, 0.501), _between(-3.0, 3.0)])
  out = jax.jit(jax.vmap(piecewise_linear.relu_network, (None, 0)))(params, x)
  for found, one in zip(out, x, strict=True):
    assert error(found.reshape(HEADS, -1), _run(params, one)) < 1e-6


@pytest.mark.slow
def test_attention_in_tiles_with_fire_is_the_papers_formula(key):
  tokens, threshold = 300, 50.0
  scheme = fire.scheme(threshold)
  params = posjax.init(scheme, key, posjax.Dims(8, 2, 4))
  q, k, v = np.random.default_rng(0).normal(size=(3, 1, tokens, 2, 4))
  pos = np.arange(tokens)
  psi = lambda x: np.log1p(np.float64(params['c']) * x)
  reach = psi(np.maximum(threshold, pos))[:, None] + 1e-6
  x = psi(abs(pos[:, None] - pos)) / reach
  logits = content(q, k) + _run(params, x).reshape(2, tokens, tokens)
  expected = attention(logits, causal(pos[None], pos[None]), v)[0]
  single = [jnp.asarray(array, jnp.float32) for array in (q, k, v)]
  for way in ('dense', 'blockwise'):
    how = {'q_pos': jnp.asarray(pos), 'causal': True, 'implementation': way}
    how['k_pos'] = how['q_pos']
    assert error(posjax.attend(*single, scheme, params, **how), expected) < 1e-5
