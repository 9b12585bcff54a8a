"""What padding holds reaches neither outputs, nor weights, nor what a cache says later."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.nnx import Attention

REAL = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1]], bool)
SEGMENTS = jnp.asarray(REAL, jnp.int32)
POS = jnp.arange(6)


def inputs(number):
  x = jax.random.normal(jax.random.key(0), (2, 6, 8))
  return jnp.where(REAL[..., None], x, number)


def layer(line):
  return Attention(8, 2, posjax.get(line), causal=True, gated=True, rngs=nnx.Rngs(0))


# `forgetting` sums over all inputs before the token.
every_line = pytest.mark.parametrize(
  'line', ['alibi', pytest.param('forgetting', marks=pytest.mark.slow)]
)


@every_line
def test_nan_in_padding_reaches_no_gradient_of_a_layer(line):
  one = layer(line)

  def loss(one, x):
    return (one(x, POS, segments=SEGMENTS) ** 2).sum()

  slope = nnx.jit(nnx.grad(loss, argnums=(0, 1)))
  both = [slope(one, inputs(number)) for number in (0.0, jnp.nan)]
  for zero, nan in zip(*map(jax.tree.leaves, both), strict=True):
    np.testing.assert_array_equal(nan, zero)


@every_line
def test_nan_in_padding_reaches_nothing_that_is_decoded_later(line):
  @jax.jit
  def decoded(number):
    one, out = layer(line), []
    cache = one.init_cache(2, 6)
    for part in (slice(0, 4), slice(4, 6)):
      new = inputs(number)[:, part], cache, POS[part]
      y, cache = one.extend(*new, segments=SEGMENTS[:, part])
      out.append(y)
    return jnp.concatenate(out, 1), cache

  (zero, _), (nan, cache) = decoded(0.0), decoded(jnp.nan)
  np.testing.assert_array_equal(nan, zero)
  assert np.isfinite(cache.k).all()
  assert not cache.v[~REAL].any()
