"""Cross-attention to keys that were projected once is cross-attention, for every scheme."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.linen import Attention as LinenAttention
from posjax.nnx import Attention
from tests.contract.schemes_test import CHAINS, LINES
from tests.support.loops import error

BATCH, T, S, WIDTH = 2, 4, 6, 12
REAL = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
SUMS = ('forgetting',)  # over the tokens before a query, which are not there one by one
OFTEN = ('rope', 'tupe')  # without and with a `prepare`


def layer(line, **options):
  sizes = {'head_dim': 8, 'num_kv_heads': 2, 'sinks': True, 'use_bias': True, **options}
  made = Attention(WIDTH, 4, posjax.get(line), model_places=True, rngs=nnx.Rngs(3), **sizes)
  made.sinks[...] = jnp.array([1.0, -1.0, 0.5, 3.0])
  return made


def side(line, length, start):
  """Inputs, and ids as place 0 leaves them."""
  scheme = posjax.get(line)
  order = start + np.arange(length, dtype=np.int32)
  several = [order // 4, order % 4, *[order] * scheme.traits.axes][: scheme.traits.axes]
  pos = order if scheme.traits.axes < 2 else np.stack(several, axis=-1)
  x = jax.random.normal(jax.random.key(start), (BATCH, length, WIDTH))
  return x, scheme.ids(jnp.broadcast_to(jnp.asarray(pos), (BATCH, *pos.shape)), None)


def with_noise(x, pos):
  """What stands in the padding: NaN, wherever a number can be one."""
  blank = lambda leaf: jnp.where(
    REAL.reshape(REAL.shape + (1,) * (leaf.ndim - 2)) != 0,
    leaf,
    jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 77,
  )
  return blank(x), blank(pos)


every_line = pytest.mark.parametrize(
  'line',
  [
    *OFTEN,
    *(pytest.param(one, marks=pytest.mark.slow) for one in (*LINES, *CHAINS) if one not in OFTEN),
  ],
)


@every_line
def test_what_is_memorized_is_read_as_a_call_reads_it(line):
  """Against the call; the second row's keys against those of a call without its padding."""
  one = layer(line)
  (x, pos), (z, z_pos) = side(line, T, 3), side(line, S, 1)
  ones, noise = jnp.ones((BATCH, T), jnp.int32), with_noise(z, z_pos)

  @jax.jit
  def all_ways(x, pos, z, z_pos, noise):
    call = one(x, pos, x_kv=z, kv_pos=z_pos, segments=ones, kv_segments=jnp.asarray(REAL))
    memory = one.memorize(*noise, segments=jnp.asarray(REAL))
    whole = one.read(x, pos, memory, return_weights=True)
    pieces = [one.read(x[:, part], pos[:, part], memory) for part in (slice(0, 1), slice(1, T))]
    alone = one(x[1:], pos[1:], x_kv=z[1:, :4], kv_pos=z_pos[1:, :4])
    return call, whole, jnp.concatenate(pieces, 1), alone, memory

  call, (whole, weights), pieces, alone, memory = all_ways(x, pos, z, z_pos, noise)
  chex.assert_tree_all_finite(memory)
  assert memory.length == S
  assert not np.asarray(memory.v)[REAL == 0].any()
  assert error(whole, call) <= 1e-5
  assert error(whole[1:], alone) <= 1e-5
  if line not in SUMS:
    assert error(pieces, call) <= 1e-5
  assert not weights[1, :, :, 4:].any()


@pytest.mark.slow
def test_a_causal_layer_reads_by_the_order_and_both_flax_layers_read_alike():
  one = layer('rope', causal=True, window=3)
  (x, pos), (z, z_pos) = side('rope', T, 3), side('rope', S, 1)
  orders = jnp.arange(T) + 3, jnp.arange(S)
  plain = one(x, pos, x_kv=z, kv_pos=z_pos)
  ordered = one(x, pos, x_kv=z, kv_pos=z_pos, order=orders[0], kv_order=orders[1])
  assert error(one.read(x, pos, one.memorize(z, z_pos)), plain) <= 1e-5
  memory = one.memorize(z, z_pos, order=orders[1])
  assert error(one.read(x, pos, memory, order=orders[0]), ordered) <= 1e-5
  assert error(ordered, plain) > 1e-3
  hidden = jnp.arange(S) != 2
  masked = one.read(x, pos, memory, order=orders[0], mask=hidden[None])
  mask = jnp.broadcast_to(hidden, (T, S))
  expected = one(x, pos, x_kv=z, kv_pos=z_pos, order=orders[0], kv_order=orders[1], mask=mask)
  assert error(masked, expected) <= 1e-5

  sizes = {'head_dim': 8, 'num_kv_heads': 2, 'sinks': True, 'use_bias': True}
  module = LinenAttention(WIDTH, 4, posjax.get('rope'), causal=True, window=3, **sizes)
  params = nnx.to_pure_dict(nnx.state(one, nnx.Param))
  params = {name: part for name, part in params.items() if jax.tree.leaves(part)}
  held = {'params': params}
  same = module.apply(held, z, z_pos, method='memorize')
  found, weights = module.apply(held, x, pos, same, return_weights=True, method='read')
  assert error(found, plain) <= 1e-5
  expected = one(x, pos, x_kv=z, kv_pos=z_pos, return_weights=True)[1]
  assert error(weights, expected) <= 1e-5


def test_what_does_not_fit_is_refused(unchecked):
  one = layer('rope', causal=True)
  (x, pos), (z, z_pos) = side('rope', T, 3), side('rope', S, 1)
  memory = one.memorize(z, z_pos)
  with pytest.raises(ValueError, match=r'x_kv must be \[B, T, 12\], but got shape \(2, 6, 11\)'):
    one.memorize(z[..., 1:], z_pos)
  with pytest.raises(ValueError, match='must have the rows of x, 1, but got'):
    one.read(x[:1], pos[:1], memory)
  with pytest.raises(TypeError, match='memory must be one of memorize, but got tuple'):
    one.read(x, pos, (z, z))
  with pytest.raises(ValueError, match='has 6 slots, 6 of them taken, so 4 tokens do not fit'):
    one.extend(x, memory, pos)
  several = layer('axial_rope', causal=True)
  with pytest.raises(ValueError, match='2 ids per token, so causal and window need'):
    several.memorize(*side('axial_rope', S, 1))
