import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math.priors import penalty, prior_scheme
from posjax.scheme import Dims
from tests.support.loops import error

DIMS = Dims(width=8, num_heads=3, head_dim=4)
SIZE = np.array([[0.0, 0.5, 1.0], [2.0, 10.0, 1e4]], np.float32)


def _plain(w, b, distance):
  return penalty(w, b, abs(distance).astype(jnp.float32))


def test_the_penalty_is_minus_the_absolute_value_for_each_head():
  w, b = np.array([0.5, 2.0, 0.1], np.float32), np.array([-1.0, 0.0, -3.0], np.float32)
  found = penalty(jnp.asarray(w), jnp.asarray(b), jnp.asarray(SIZE))
  expected = [-abs(float(w[h]) * SIZE.astype(np.float64) + float(b[h])) for h in range(3)]
  assert found.shape == (3, 2, 3)
  assert error(found, np.stack(expected)) < 1e-6


def test_one_number_for_all_heads_gives_one_row():
  found = penalty(jnp.array([2.0]), jnp.array([-1.0]), jnp.asarray(SIZE))
  np.testing.assert_allclose(found[0], -abs(2 * SIZE - 1))


def test_the_gradient_is_that_of_the_side_and_0_on_the_edge():
  total = lambda w, size: penalty(w, jnp.array([-2.0]), size).sum()
  slope = jax.grad(total)
  sizes = {3.0: -3.0, 1.0: 1.0, 2.0: 0.0}  # w = 1: beyond, before and at the maximum of the prior
  for size, expected in sizes.items():
    np.testing.assert_allclose(slope(jnp.array([1.0]), jnp.array([size])), [expected])


@pytest.mark.parametrize('per_head', [False, True])
@pytest.mark.parametrize('b', [None, -0.25])
def test_the_scheme_starts_at_w_and_b_for_the_model_or_for_each_head(key, b, per_head):
  scheme = prior_scheme(_plain, 0.5, b, per_head)
  own, model = scheme.init(key, DIMS), scheme.init_model(key, DIMS)
  params, other = (own, model) if per_head else (model, own)
  assert not other
  assert {name: x.shape for name, x in params.items()} == dict.fromkeys(
    ['raw_w'] if b is None else ['raw_w', 'raw_b'], (3 if per_head else 1,)
  )
  distance = np.arange(-4, 5)
  expected = -abs(0.5 * abs(distance) + (b or 0.0))
  found = scheme.bias(params, jnp.asarray(distance))
  assert error(found, np.broadcast_to(expected, found.shape)) < 1e-6


@pytest.mark.parametrize('w', [0.0, -1.0, float('inf'), float('nan')])
def test_a_w_that_is_not_positive_and_finite_is_refused(w):
  with pytest.raises(ValueError, match=f'The w of a prior must be positive, but got {w}'):
    prior_scheme(_plain, w, None, False)


@pytest.mark.parametrize('b', [0.0, 1.0, float('-inf'), float('nan')])
def test_a_b_that_is_not_negative_and_finite_is_refused(b):
  with pytest.raises(ValueError, match=f'must be negative, or None for 0, but got {b}'):
    prior_scheme(_plain, 1.0, b, False)
