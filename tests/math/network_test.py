import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math.network import initial, layer_norm, network
from tests.support.loops import error


def _normalized(x, axis, epsilon):
  x = np.asarray(x, np.float64)
  mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
  return (x - mean) / np.sqrt(variance + epsilon)


@pytest.mark.parametrize(('shape', 'axis'), [((6,), 0), ((3, 6), -1), ((6, 3), 0), ((2, 6, 3), 1)])
def test_a_layer_norm_has_mean_0_and_variance_1_along_its_axis_then_scale_and_offset(shape, axis):
  draw = np.random.default_rng(0)
  x = (5 + 3 * draw.normal(size=shape)).astype(np.float32)
  scale, offset = draw.normal(size=(2, 6)).astype(np.float32)
  found = layer_norm(jnp.asarray(x), jnp.asarray(scale), jnp.asarray(offset), 1e-5, axis)
  last = np.moveaxis(_normalized(x, axis, 1e-5), axis, -1) * scale + offset
  assert error(found, np.moveaxis(last, -1, axis)) < 1e-6


def test_equal_numbers_are_normalized_to_zeros_with_finite_gradients():
  norm = lambda x: layer_norm(x, jnp.ones(4), jnp.zeros(4), 1e-5)
  np.testing.assert_array_equal(norm(jnp.full((2, 4), 7.0)), 0)
  grad = jax.grad(lambda x: (norm(x) * jnp.arange(4.0)).sum())(jnp.full(4, 7.0))
  assert jnp.isfinite(grad).all()


@pytest.mark.parametrize('normalized', [False, True])
@pytest.mark.parametrize('sizes', [(1, 3), (2, 8, 3), (1, 8, 5, 3)])
def test_the_network_is_matrices_norms_and_activations_in_turn(key, sizes, normalized):
  layers = len(sizes) - 1
  params = initial(key, sizes)
  draw = np.random.default_rng(0)
  for i in range((layers - 1) * normalized):
    width = sizes[i + 1]
    gain_and_shift = draw.normal(size=(2, width)).astype(np.float32)
    params[f'gain_{i}'], params[f'shift_{i}'] = map(jnp.asarray, gain_and_shift)
  x = draw.normal(size=(sizes[0], 4, 7)).astype(np.float32)
  found = network(params, jnp.asarray(x), jnp.tanh)
  p = {name: np.asarray(value, np.float64) for name, value in params.items()}
  expected = np.zeros((sizes[-1], 4, 7))
  for i, j in np.ndindex(4, 7):
    units = x[:, i, j].astype(np.float64)
    for layer in range(layers - 1):
      units = units @ p[f'kernel_{layer}'] + p[f'offset_{layer}']
      if normalized:
        units = _normalized(units, 0, 1e-5) * p[f'gain_{layer}'] + p[f'shift_{layer}']
      units = np.tanh(units)
    expected[:, i, j] = units @ p[f'kernel_{layers - 1}']
  assert found.shape == expected.shape
  assert error(found, expected) < 1e-6


def test_initial_weights_are_uniform_within_the_inverse_root_of_the_inputs(key):
  params = initial(key, (100, 400, 300))
  assert set(params) == {'kernel_0', 'offset_0', 'kernel_1'}
  for name, inputs in (('kernel_0', 100), ('offset_0', 100), ('kernel_1', 400)):
    bound = inputs**-0.5
    assert abs(params[name]).max() <= bound
    assert abs(params[name].std() - bound / 3**0.5) < 0.05 * bound
