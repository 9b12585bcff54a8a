"""`AttentionFn`: a module that holds a scheme's parameters inside Flax's attention modules."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx

import posjax
import posjax.linen
import posjax.nnx
from tests.support.loops import error
from tests.support.toy_schemes import TOYS

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 12, 3
DIMS = posjax.Dims(WIDTH, HEADS, WIDTH // HEADS)
POS = jnp.arange(LENGTH)
X = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))
# Parameters of a layer, parameters of all layers, and constants.
CHAIN = posjax.chain(TOYS['two_tables'], posjax.get('alibi+rope+t5'))
TOLERANCE = 1e-5


def nnx_module(scheme=CHAIN, decode=False, **kwargs):
  hook = posjax.nnx.AttentionFn(scheme, DIMS, rngs=nnx.Rngs(4), **kwargs)
  module = nnx.MultiHeadAttention(
    HEADS, WIDTH, rngs=nnx.Rngs(0), decode=decode, use_bias=False, attention_fn=hook
  )
  noise = lambda p: p + 0.1 * jax.random.normal(jax.random.key(p.size), p.shape)
  nnx.update(module, jax.tree.map(noise, nnx.state(module, nnx.Param)))
  return module


def linen_module(scheme=CHAIN, decode=False, **kwargs):
  hook = posjax.linen.AttentionFn(scheme, decode=decode, **kwargs)
  return nn.MultiHeadDotProductAttention(HEADS, use_bias=False, decode=decode, attention_fn=hook)


def reference(module, scheme=CHAIN, x=X, **kwargs):
  """`attend` with the parameters that the module holds, between its projections."""
  hook = module.attention_fn
  held = nnx.to_pure_dict(nnx.state(hook, nnx.Param))
  parts = []
  for i, part in enumerate(scheme.parts):
    trained = {}
    for name in ('scheme_params', 'model_params'):
      trained |= held.get(name, {}).get(str(i), {})
    parts.append(posjax.init(part, jax.random.key(0), DIMS) | trained)  # constants, and these
  q, k, v = module.query(x), module.key(x), module.value(x)
  kwargs = {'q_pos': POS, 'k_pos': POS} | kwargs
  call = jax.jit(lambda q, k, v: posjax.attend(q, k, v, scheme, tuple(parts), **kwargs))
  return module.out(call(q, k, v))


def test_both_modules_are_attend_with_the_parameters_that_they_hold():
  module = nnx_module(causal=True)
  expected = reference(module, causal=True)
  assert error(jax.jit(module)(X), expected) < TOLERANCE
  params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
  assert set(params['attention_fn']) == {'scheme_params', 'model_params'}
  linen = linen_module(causal=True)
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  assert shapes(jax.eval_shape(linen.init, jax.random.key(0), X)['params']) == shapes(params)
  assert error(jax.jit(linen.apply)({'params': params}, X), expected) < TOLERANCE


def test_their_parameters_are_trained():
  module = nnx_module()
  graph, params, rest = nnx.split(module, nnx.Param, ...)
  linen = linen_module()
  calls = (
    lambda params: nnx.merge(graph, params, rest)(X),
    lambda params: linen.apply({'params': params}, X),
  )
  pure = nnx.to_pure_dict(params)
  for call, tree in zip(calls, (params, pure), strict=True):
    found = jax.jit(jax.grad(lambda tree, call=call: jnp.square(call(tree)).sum()))(tree)
    found = found if tree is pure else nnx.to_pure_dict(found)
    assert all((abs(leaf) > 0).any() for leaf in jax.tree.leaves(found['attention_fn']))
    assert len(jax.tree.leaves(found['attention_fn'])) == 3


def test_positions_and_segments_may_be_given():
  segments = jnp.array([1, 1, 2, 2, 2])
  given = {'q_pos': 2 * POS, 'q_segments': segments}
  module = nnx_module(**given)
  kwargs = {'q_pos': 2 * POS, 'k_pos': 2 * POS, 'q_segments': segments, 'k_segments': segments}
  expected = reference(module, **kwargs)
  assert error(jax.jit(module)(X), expected) < TOLERANCE
  params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
  assert error(jax.jit(linen_module(**given).apply)({'params': params}, X), expected) < TOLERANCE
  other = nnx_module()
  keys = jnp.concatenate([X[:, :3], X[:, :2]], axis=1)  # the last two are hidden
  hidden = jnp.array([True, True, True, False, False])[None, None, None]
  found, expected = jax.jit(lambda: (other(X, X[:, :3]), other(X, keys, mask=hidden)))()
  assert error(found, expected) < TOLERANCE


@pytest.mark.slow
def test_decoding_with_the_cache_of_flax_is_the_whole_row():
  module = nnx_module(decode=True, causal=True)
  expected = reference(module, causal=True)
  hook = module.attention_fn
  hook.set_view(decode=True)
  with pytest.raises(ValueError, match=r'must begin with init_cache\(\), but got no such call'):
    hook(*[jnp.ones((1, 1, HEADS, 4))] * 3)
  module.init_cache((BATCH, LENGTH, WIDTH))
  hook.init_cache()
  out = [module(X[:, i : i + 1]) for i in range(LENGTH)]
  assert error(jnp.concatenate(out, axis=1), expected) < TOLERANCE

  params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
  linen = linen_module(decode=True, causal=True)
  cache = jax.tree.map(
    lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
    jax.eval_shape(linen.init, jax.random.key(0), X)['cache'],
  )
  step = jax.jit(lambda variables, x: linen.apply(variables, x, mutable=['cache']))
  out = []
  for i in range(LENGTH):
    y, changed = step({'params': params, 'cache': cache}, X[:, i : i + 1])
    out, cache = [*out, y], changed['cache']
  assert error(jnp.concatenate(out, axis=1), expected) < TOLERANCE
  given = linen_module(decode=True, q_pos=POS)
  with pytest.raises(
    ValueError, match='counts the tokens itself, but got q_pos as well as decode=Tr'
  ):
    given.apply({'params': params, 'cache': cache}, X[:, :1], mutable=['cache'])


def test_beyond_the_cache_of_flax_is_an_error_and_nan_under_jit():
  linen = linen_module(posjax.get('rope'), decode=True)
  made = jax.jit(linen.init)(jax.random.key(0), X[:, :1])
  cache = made['cache'] | {'cache_index': jnp.int32(1)}
  cache['attention_fn'] = {'index': jnp.int32(1)}
  apply = lambda cache: linen.apply(made | {'cache': cache}, X[:, :1], mutable=['cache'])[0]
  with pytest.raises(ValueError, match="Flax's cache has 1 slots, 1 of them taken, so 1 tokens do"):
    apply(cache)
  assert jnp.isnan(jax.jit(apply)(cache)).all()
  module = nnx_module(posjax.get('rope'), decode=True)
  module.init_cache((BATCH, 1, WIDTH))
  module.attention_fn.set_view(decode=True)
  module.attention_fn.init_cache()
  module(X[:, :1])
  with pytest.raises(ValueError, match="Flax's cache has 1 slots, 1 of them taken, so 1 tokens do"):
    module(X[:, :1])


def test_what_a_hook_cannot_see_is_refused(unchecked):
  with pytest.raises(ValueError, match=r"layer's input, which Flax does not hand over"):
    nnx_module(TOYS['forgetful'])
  with pytest.raises(ValueError, match=r"layer's input, which Flax does not hand over"):
    linen_module(TOYS['forgetful']).init(jax.random.key(0), X)
  with pytest.raises(TypeError, match=r'scheme must be a posjax\.Scheme'):
    linen_module('rope').init(jax.random.key(0), X)
  for make in (nnx_module, linen_module):
    with pytest.raises(ValueError, match='model_places=True, but got model_places=False'):
      make(posjax.get('sinusoidal')).init(jax.random.key(0), X)
  with pytest.raises(TypeError, match=r'rngs must be nnx\.Rngs, but got int'):
    posjax.nnx.AttentionFn(CHAIN, DIMS, rngs=0)
