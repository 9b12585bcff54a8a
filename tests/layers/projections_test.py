"""Norms of queries and keys, biases and widths of the projections, in both Flax layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

import posjax
import posjax.linen
import posjax.nnx
from posjax.layers.projections import Latent, Norm, normalized, output
from tests.support.loops import error

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
  out = jax.jit(
    lambda q, k, v: posjax.attend(q, k, v, ROPE, {}, q_pos=POS, k_pos=POS, causal=True)
  )(q, k, side('value'))
  return jnp.einsum('bthe,hem->btm', out, weights['out']['kernel'])


@pytest.mark.parametrize('heads', EVERY_HEAD)
def test_both_layers_normalize_queries_and_keys_before_they_turn(heads):
  norm = Norm('layer', 0.1, heads, use_bias=True)
  one, weights, other = made(qk_norm=norm, value_dim=E, use_bias=True, out_bias=False)
  expected = expected_output(weights, norm)
  assert error(jax.jit(one)(X, POS), expected) < 1e-5
  assert error(jax.jit(other.apply)({'params': weights}, X, POS), expected) < 1e-5
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  drawn = jax.eval_shape(other.init, jax.random.key(0), X, POS)['params']
  assert shapes(drawn) == shapes(weights)
  assert weights['key_norm']['scale'].shape == EVERY_HEAD[heads](KV_HEADS)
  assert weights['value']['bias'].shape == (KV_HEADS, E)
  assert 'bias' not in weights['out']


def test_caches_and_memories_hold_what_a_call_computes():
  one, weights, other = made(qk_norm='rms', value_dim=E, gated=True)
  cache = one.init_cache(BATCH, LENGTH)
  assert cache.v.shape == (BATCH, LENGTH, KV_HEADS, E)
  assert jax.tree.map(jnp.shape, other.init_cache(BATCH, LENGTH)) == jax.tree.map(jnp.shape, cache)

  @jax.jit
  def each(cache):
    first, cache = one.extend(X[:, :3], cache, POS[:3])
    rest, _ = one.extend(X[:, 3:], cache, POS[3:])
    read = one.read(X, POS, one.memorize(X, POS, order=POS), order=POS)
    memory = other.apply({'params': weights}, X, POS, order=POS, method='memorize')
    linen = other.apply({'params': weights}, X, POS, memory, order=POS, method='read')
    return one(X, POS), jnp.concatenate([first, rest], axis=1), read, linen

  expected, *others = each(cache)
  for found in others:
    assert error(found, expected) < 1e-5


def test_a_gate_lets_through_a_share_of_each_number_of_the_heads(unchecked):
  x, heads = np.asarray(X), np.asarray(X)[..., None, :D] * np.ones((HEADS, 1))
  gate = np.asarray(jax.random.normal(jax.random.key(2), (WIDTH, HEADS, D)))
  parts = {'gate': lambda x: jnp.einsum('btm,mhd->bthd', x, gate), 'out': lambda heads: heads}
  found = output(parts.get, jnp.asarray(x), jnp.asarray(heads))
  shares = 1 / (1 + np.exp(-np.einsum('btm,mhd->bthd', x, gate, dtype=np.float64)))
  assert error(found, shares * heads) < 1e-5
  one, _, other = made(gated=True, use_bias=True, out_bias=False, value_dim=E)
  drawn = jax.eval_shape(other.init, jax.random.key(0), X, POS)['params']
  for weights in (drawn, nnx.to_pure_dict(nnx.state(one, nnx.Param))):
    shapes = jax.tree.map(jnp.shape, weights['gate'])
    assert shapes == {'kernel': (WIDTH, HEADS, E), 'bias': (HEADS, E)}
  with pytest.raises(TypeError, match='gated must be True or False, but got 1'):
    posjax.nnx.Attention(WIDTH, HEADS, gated=1, rngs=nnx.Rngs(0))


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
  kwargs['gated'] = True
  with nnx.use_eager_sharding(False):  # there is no mesh
    one = nnx.eval_shape(lambda: posjax.nnx.Attention(WIDTH, HEADS, **kwargs, rngs=nnx.Rngs(0)))
  named = nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(one, nnx.Param)))
  other = posjax.linen.Attention(WIDTH, HEADS, **kwargs)
  boxed = jax.eval_shape(other.init, jax.random.key(0), X, POS)
  assert named == nn.get_partition_spec(boxed)['params']
  assert tuple(named['query_norm']['scale']) == ('h', 'd')
  assert tuple(named['value']['kernel']) == tuple(named['gate']['kernel']) == ('m', 'h', 'd')


def test_ids_that_are_missing_are_asked_for(unchecked):
  one, weights, other = made()
  message = r'pos must be the ids of the tokens, but got None; jnp\.arange\(5\) numbers the tokens'
  with pytest.raises(TypeError, match=message):
    one(X, None)
  with pytest.raises(TypeError, match=message):
    other.apply({'params': weights}, X, None)
  with pytest.raises(TypeError, match='^kv_' + message):
    one.memorize(X, None)


NAMED = posjax.get('t5+alibi+transformer_xl')


def test_names_of_axes_reach_the_parameters_of_a_scheme():
  names = {'sharding': ('m', 'h', 'd')}
  with nnx.use_eager_sharding(False):  # there is no mesh
    one = posjax.nnx.Attention(WIDTH, HEADS, NAMED, **names, rngs=nnx.Rngs(0))
    hook = posjax.nnx.AttentionFn(NAMED, one.layer.dims, **names, rngs=nnx.Rngs(0))
  specs = lambda module: nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(module, nnx.Param)))
  found = specs(one)['model_params']
  assert tuple(found['0']['table']) == (None, 'h')
  assert tuple(specs(one)['scheme_params']['2']['w_r']) == ('m', 'h', 'd')
  other = posjax.linen.Attention(WIDTH, HEADS, NAMED, **names)
  boxed = jax.eval_shape(other.init, jax.random.key(0), X, POS)
  assert nn.get_partition_spec(boxed)['params'] == specs(one)
  assert specs(hook)['model_params'] == found
  module = nn.MultiHeadDotProductAttention(
    HEADS, attention_fn=posjax.linen.AttentionFn(NAMED, one.layer.dims, **names)
  )
  boxed = jax.eval_shape(module.init, jax.random.key(0), X)
  assert nn.get_partition_spec(boxed)['params']['attention_fn'] == specs(hook)


@pytest.mark.slow
def test_logical_names_are_mapped_to_the_mesh_by_the_rules_of_flax():
  mesh = jax.make_mesh((2,), ('tensor',), axis_types=(AxisType.Auto,))
  rules, names = (('heads', 'tensor'), ('width', None)), ('width', 'heads', None)
  with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
    one = posjax.nnx.Attention(WIDTH, HEADS, NAMED, sharding=names, rngs=nnx.Rngs(0))
  table = one.model_params['0']['table'][...]
  assert table.sharding.spec == PartitionSpec(None, 'tensor')
  other = posjax.linen.Attention(WIDTH, HEADS, NAMED, sharding=names)
  with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
    boxed = jax.eval_shape(other.init, jax.random.key(0), X, POS)
    specs = nn.logical_to_mesh(nn.get_partition_spec(boxed))['params']
  assert specs['model_params']['0']['table'] == PartitionSpec(None, 'tensor')
  assert specs['out']['kernel'] == PartitionSpec('tensor', None, None)


def test_dropout_is_drawn_from_the_streams_of_the_module_or_of_the_call(unchecked):
  streams = lambda seed: nnx.Rngs(params=0, dropout=seed)
  make = lambda **kwargs: posjax.nnx.Attention(WIDTH, HEADS, rngs=streams(1), **kwargs)
  one, plain = make(dropout_rate=0.5, keep_rngs=True), make(dropout_rate=0.5)
  first, second = one(X, POS), one(X, POS)
  assert error(first, second) > 0.01
  assert error(make(dropout_rate=0.5, keep_rngs=True)(X, POS), first) == 0
  assert error(one(X, POS, deterministic=True), plain(X, POS, deterministic=True)) == 0
  key = streams(2).dropout()
  expected = plain(X, POS, dropout_key=key)
  for layer in (one, plain):
    assert error(layer(X, POS, rngs=streams(2)), expected) == 0
    assert error(layer(X, POS, rngs=streams(2).dropout), expected) == 0
    assert error(layer(X, POS, dropout_key=key), expected) == 0
  assert not nnx.state(plain, nnx.RngState)
  assert not nnx.state(make(keep_rngs=True), nnx.RngState)  # there is nothing to draw
  with pytest.raises(
    ValueError, match='but got neither; a stream dropout of rngs gives a key, too'
  ):
    plain(X, POS)
  with pytest.raises(ValueError, match='drawn by dropout_key or by rngs, but got both'):
    plain(X, POS, dropout_key=key, rngs=streams(2))
  with pytest.raises(TypeError, match=r'rngs must be nnx\.Rngs or one of its streams, but got 3'):
    plain(X, POS, rngs=3)
  with pytest.raises(ValueError, match='rngs must have a stream dropout'):
    plain(X, POS, rngs=nnx.Rngs(params=0))
  with pytest.raises(ValueError, match='rngs must have a stream dropout'):
    posjax.nnx.Attention(WIDTH, HEADS, dropout_rate=0.5, keep_rngs=True, rngs=nnx.Rngs(params=0))


def turned(x, pos, base=10000.0):
  """RoPE in float64, dimension i with i + D/2."""
  half = x.shape[-1] // 2
  angles = np.asarray(pos, np.float64)[:, None, None] * base ** (-np.arange(half) / half)
  cos, sin, a, b = np.cos(angles), np.sin(angles), x[..., :half], x[..., half:]
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def latent_attention(weights, latent, x):
  """DeepSeek V3's attention in float64, with the turning part of each head in front."""
  w = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)
  x, ones = np.asarray(x, np.float64), np.zeros(())

  def down(name):
    narrow = x @ w[name]['kernel'] + w[name].get('bias', ones)
    mean = np.mean(narrow**2, -1, keepdims=True)
    return narrow / np.sqrt(mean + latent.epsilon) * w[f'{name}_norm']['scale']

  narrow, of_queries = down('kv_down'), x if latent.query_rank is None else down('query_down')
  q, k, v = (
    np.einsum('btr,rhd->bthd', source, w[name]['kernel'])
    for name, source in (('query', of_queries), ('key', narrow), ('value', narrow))
  )
  shared = x @ w['shared_key']['kernel'] + w['shared_key'].get('bias', ones)
  shared = turned(shared[:, :, None], POS)
  part = latent.shared
  q = np.concatenate([turned(q[..., :part], POS), q[..., part:]], axis=-1)
  k = np.concatenate([np.repeat(shared, k.shape[2], axis=2), k], axis=-1)
  logits = np.einsum('bthd,bshd->bhts', q, k) / np.sqrt(q.shape[-1])
  logits = np.where(np.tri(LENGTH, dtype=bool), logits, -np.inf)
  scores = np.exp(logits - logits.max(-1, keepdims=True))
  out = np.einsum('bhts,bshe->bthe', scores / scores.sum(-1, keepdims=True), v)
  return np.einsum('bthe,hem->btm', out, w['out']['kernel']) + w['out'].get('bias', ones)


@pytest.mark.parametrize(
  'latent', [Latent(5, 2, 7, 0.1), pytest.param(Latent(5, 2), marks=pytest.mark.slow)]
)
def test_latent_attention_is_its_formula_and_is_cached(latent):
  scheme = posjax.get(f'rope(fraction={latent.shared / D})')
  kwargs = {'head_dim': D, 'value_dim': E, 'causal': True, 'latent': latent}
  kwargs['use_bias'] = latent.query_rank is not None
  one = moved(posjax.nnx.Attention(WIDTH, HEADS, scheme, rngs=nnx.Rngs(0), **kwargs))
  weights = nnx.to_pure_dict(nnx.state(one, nnx.Param))
  expected = latent_attention(weights, latent, X)
  other = posjax.linen.Attention(WIDTH, HEADS, scheme, **kwargs)

  @jax.jit
  def each(cache):
    variables = {'params': weights}
    first, cache = one.extend(X[:, :3], cache, POS[:3])
    rest, _ = one.extend(X[:, 3:], cache, POS[3:])
    memory = other.apply(variables, X, POS, order=POS, method='memorize')
    read = other.apply(variables, X, POS, memory, order=POS, method='read')
    cached = jnp.concatenate([first, rest], axis=1)
    return one(X, POS), other.apply(variables, X, POS), cached, read

  for found in each(one.init_cache(BATCH, LENGTH)):
    assert error(found, expected) < 1e-5
  drawn = jax.eval_shape(other.init, jax.random.key(0), X, POS)['params']
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  assert shapes(drawn) == shapes(weights)
  biased = {name for name, held in weights.items() if 'bias' in held}
  assert biased == ({'query_down', 'kv_down', 'shared_key', 'out'} if kwargs['use_bias'] else set())


def test_latent_attention_may_share_nothing():
  one = posjax.nnx.Attention(WIDTH, HEADS, latent=Latent(5), rngs=nnx.Rngs(0))
  assert not hasattr(one, 'shared_key')
  assert one.key.kernel.shape == (5, HEADS, WIDTH // HEADS)
  assert jax.eval_shape(one, X, POS).shape == X.shape
