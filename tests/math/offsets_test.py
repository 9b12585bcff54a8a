"""Looking up by index, and adding up by index, against NumPy: each is the other's transpose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math import offsets

ROWS = 5


@pytest.fixture(params=[(2, 3, 4), (2, 48, 64)])
def case(request):
  """Random indices [B, T, S], scores [B, H, T, ROWS] and pairs [B, H, T, S]."""
  draw = np.random.default_rng(0)
  batch, queries, keys = request.param
  index = draw.integers(0, ROWS, (batch, queries, keys))
  normal = lambda width: draw.normal(size=(batch, 3, queries, width)).astype(np.float32)
  return index, normal(ROWS), normal(keys)


def picked(scores, index):
  return np.take_along_axis(
    scores, np.broadcast_to(index[:, None], (*scores.shape[:3], index.shape[2])), -1
  )


def summed(pairs, index):
  out = np.zeros((*pairs.shape[:3], ROWS))
  for b, h, t, s in np.ndindex(pairs.shape):
    out[b, h, t, index[b, t, s]] += pairs[b, h, t, s]
  return out


def test_pick_is_a_look_up_and_its_gradient_adds_up(case):
  index, scores, pairs = case
  out, back = jax.vjp(lambda scores: offsets.pick(scores, jnp.asarray(index)), jnp.asarray(scores))
  np.testing.assert_array_equal(out, picked(scores, index))
  np.testing.assert_allclose(back(jnp.asarray(pairs))[0], summed(pairs, index), atol=2e-5)


def test_sums_add_up_and_their_gradient_is_a_look_up(case):
  index, scores, pairs = case
  of = lambda pairs: offsets.row_sums(pairs, jnp.asarray(index), ROWS)
  out, back = jax.vjp(of, jnp.asarray(pairs))
  np.testing.assert_allclose(out, summed(pairs, index), atol=2e-5)
  np.testing.assert_array_equal(back(jnp.asarray(scores))[0], picked(scores, index))


def test_derivatives_forward_and_of_second_order_and_batches_of_either(case):
  index, scores, pairs = case
  of = lambda scores: (offsets.pick(scores, jnp.asarray(index)) ** 2 * pairs).sum()
  slope = lambda scores: summed(2 * picked(scores, index) * pairs, index)
  (value, forward) = jax.jvp(of, (jnp.asarray(scores),), (jnp.ones(scores.shape),))
  np.testing.assert_allclose(value, (picked(scores, index) ** 2 * pairs).sum(), rtol=1e-4)
  np.testing.assert_allclose(forward, slope(scores).sum(), rtol=1e-4)
  second = jax.jvp(jax.grad(of), (jnp.asarray(scores),), (jnp.ones(scores.shape),))[1]
  np.testing.assert_allclose(second, slope(np.ones_like(scores)), atol=1e-4)
  mapped = jax.vmap(lambda s, i: offsets.pick(s[None], i[None])[0])(scores, jnp.asarray(index))
  np.testing.assert_array_equal(mapped, picked(scores, index))
