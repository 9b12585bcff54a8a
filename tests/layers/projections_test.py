"""Norms of queries and keys, biases and widths of the projections, in both Flax layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import posjax
import posjax.linen
import posjax.nnx
from posjax.layers.projections import Norm, normalized
from tests.loops import error

BATCH, LENGTH, WIDTH, HEADS, KV_HEADS, D, E = 2, 5, 12, 4, 2, 6, 3
POS = jnp.arange(LENGTH) + 2
ROPE = posjax.get('rope')
X = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))
EVERY_HEAD = {
  'alike': lambda heads: (D,),
  'apart': lambda heads: (heads, D),
  'together': lambda heads: (heads, D),
}


def formula(norm, x, scale, bias):
  """The norm in float64."""
  x, scale, bias = (np.asarray(each, np.float64) for each in (x, scale, bias))
  axes = (2, 3) if norm.heads == 'together' else 3
  if norm.kind == 'layer':
    x = x - np.mean(x, axes, keepdims=True)
  return x / np.sqrt(np.mean(x**2, axes, keepdims=True) + norm.epsilon) * scale + bias


@pytest.mark.parametrize('heads', EVERY_HEAD)
@pytest.mark.parametrize('kind', ['rms', 'layer'])
def test_a_norm_is_its_formula_in_float64(kind, heads):
  norm = Norm(kind, 0.3, heads, use_bias=True)
  keys = jax.random.split(jax.random.key(0), 3)
  x = 2 + 3 * jax.random.normal(keys[0], (BATCH, LENGTH, HEADS, D))
  scale, bias = (jax.random.normal(key, EVERY_HEAD[heads](HEADS)) for key in keys[1:])
  assert error(normalized(norm, x, scale, bias), formula(norm, x, scale, bias)) < 1e-5
  half = normalized(norm, x.astype(jnp.bfloat16), scale, bias)
  expected = formula(norm, x.astype(jnp.bfloat16), scale, bias)
  assert half.dtype == jnp.bfloat16
  assert error(half, expected) < 2**-8 * np.abs(expected).max()  # rounded once, at the end


def moved(module):
  """The module with every Param off its initial value."""
  noise = lambda p: p + 0.3 * jax.random.normal(jax.random.key(p.size), p.shape)
  nnx.update(module, jax.tree.map(noise, nnx.state(module, nnx.Param)))
  return module


def made(**kwargs):
  """The nnx layer, its weights, and the linen layer."""
  kwargs = {'head_dim': D, 'num_kv_heads': KV_HEADS, 'causal': True} | kwargs
  one = moved(posjax.nnx.Attention(WIDTH, HEADS, ROPE, rngs=nnx.Rngs(0), **kwargs))
  weights = nnx.to_pure_dict(nnx.state(one, nnx.Param))
  return one, weights, posjax.linen.Attention(WIDTH, HEADS, ROPE, **kwargs)


def expected_output(weights, norm, x=X):
  """The layer's formula: projections, norms, `attend`, and the projection of the output."""

  def side(name):
    return (
      jnp.einsum('btm,mhd->bthd', x, weights[name]['kernel']) + weights[name]['bias'][None, None]
    )

  q, k = (
    formula(norm, side(name), weights[f'{name}_norm']['scale'], weights[f'{name}_norm']['bias'])
    for name in ('query', 'key')
  )
  q, k = jnp.asarray(q, jnp.float32), jnp.asarray(k, jnp.float32)
  out = posjax.attend(q, k, side('value'), ROPE, {}, q_pos=POS, k_pos=POS, causal=True)
  return jnp.einsum('bthe,hem->btm', out, weights['out']['kernel'])


@pytest.mark.parametrize('heads', EVERY_HEAD)
def test_both_layers_normalize_queries_and_keys_before_they_turn(heads):
  norm = Norm('layer', 0.1, heads, use_bias=True)
  one, weights, other = made(qk_norm=norm, value_dim=E, use_bias=True, out_bias=False)
  expected = expected_output(weights, norm)
  assert error(one(X, POS), expected) < 1e-5
  assert error(other.apply({'params': weights}, X, POS), expected) < 1e-5
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  drawn = jax.eval_shape(other.init, jax.random.key(0), X, POS)['params']
  assert shapes(drawn) == shapes(weights)
  assert weights['key_norm']['scale'].shape == EVERY_HEAD[heads](KV_HEADS)
  assert weights['value']['bias'].shape == (KV_HEADS, E)
  assert 'bias' not in weights['out']


def test_caches_and_memories_hold_what_a_call_computes():
  one, weights, other = made(qk_norm='rms', value_dim=E)
  expected = one(X, POS)
  cache = one.init_cache(BATCH, LENGTH)
  assert cache.v.shape == (BATCH, LENGTH, KV_HEADS, E)
  assert jax.tree.map(jnp.shape, other.init_cache(BATCH, LENGTH)) == jax.tree.map(jnp.shape, cache)
  first, cache = one.extend(X[:, :3], cache, POS[:3])
  rest, _ = one.extend(X[:, 3:], cache, POS[3:])
  assert error(jnp.concatenate([first, rest], axis=1), expected) < 1e-5
  memory = one.memorize(X, POS, order=POS)
  assert error(one.read(X, POS, memory, order=POS), expected) < 1e-5
  variables = {'params': weights}
  memory = other.apply(variables, X, POS, order=POS, method='memorize')
  assert error(other.apply(variables, X, POS, memory, order=POS, method='read'), expected) < 1e-5


def test_strings_name_norms_without_biases_and_weights_start_as_asked():
  kwargs = {'qk_norm': 'layer', 'out_bias': True, 'bias_init': nnx.initializers.constant(0.5)}
  one = posjax.nnx.Attention(WIDTH, HEADS, **kwargs, rngs=nnx.Rngs(0))
  other = posjax.linen.Attention(WIDTH, HEADS, **kwargs)
  drawn = other.init(jax.random.key(0), X, POS)['params']
  for weights in (nnx.to_pure_dict(nnx.state(one, nnx.Param)), drawn):
    assert set(weights['query_norm']) == {'scale'}
    np.testing.assert_array_equal(weights['key_norm']['scale'], 1)
    assert set(weights['query']) == {'kernel'}
    np.testing.assert_array_equal(weights['out']['bias'], 0.5)


def test_names_of_axes_reach_the_norms_and_the_widths_of_values():
  kwargs = {'qk_norm': Norm(heads='apart'), 'value_dim': E, 'sharding': ('m', 'h', 'd')}
  with nnx.use_eager_sharding(False):  # there is no mesh
    one = nnx.eval_shape(lambda: posjax.nnx.Attention(WIDTH, HEADS, **kwargs, rngs=nnx.Rngs(0)))
  named = nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(one, nnx.Param)))
  other = posjax.linen.Attention(WIDTH, HEADS, **kwargs)
  boxed = jax.eval_shape(other.init, jax.random.key(0), X, POS)
  assert named == nn.get_partition_spec(boxed)['params']
  assert tuple(named['query_norm']['scale']) == ('h', 'd')
  assert tuple(named['value']['kernel']) == ('m', 'h', 'd')


def test_ids_that_are_missing_are_asked_for(unchecked):
  one, weights, other = made()
  message = r'pos must be the ids of the tokens, but got None; jnp\.arange\(5\) numbers the tokens'
  with pytest.raises(TypeError, match=message):
    one(X, None)
  with pytest.raises(TypeError, match=message):
    other.apply({'params': weights}, X, None)
  with pytest.raises(TypeError, match='^kv_' + message):
    one.memorize(X, None)
