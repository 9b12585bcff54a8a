"""The Linen layer says what the NNX layer says, with the same weights."""

import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posjax
import posjax.linen
import posjax.nnx
from posjax.layers.tokens import Tokens
from posjax.scheme import Traits
from tests.nnx_test import BEFORE, ONES, WRONG, WRONG_CACHES, WRONG_INPUTS
from tests.support.loops import error
from tests.support.toy_schemes import TOYS

BATCH, LENGTH, WIDTH = 2, 6, 12
TOLERANCE = 1e-6
POS = jnp.arange(LENGTH) + 3
ORDER = jnp.arange(LENGTH)
CHAINED = posjax.chain(TOYS['forgetful'], posjax.get('alibi'), TOYS['shared_table'])
SCHEMES = {name: posjax.get(name) for name in ('rope', 'alibi')}
SCHEMES |= {name: TOYS[name] for name in ('two_tables', 'streets')} | {'chain': CHAINED}
RULES = {'num_kv_heads': 2, 'causal': True, 'sinks': True, 'use_bias': True, 'logit_cap': 2.0}


@pytest.fixture
def x():
  return jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))


def ids(scheme):
  return jnp.stack([POS // 3, POS % 3], axis=-1) if scheme.traits.axes == 2 else POS


def moved(module):
  """The nnx module with every Param off its initial value."""
  noise = lambda p: p + 0.1 * jax.random.normal(jax.random.key(p.size), p.shape)
  nnx.update(module, jax.tree.map(noise, nnx.state(module, nnx.Param)))
  return module


def collections(module):
  """An nnx layer's state as linen's collections: the names are the same."""
  params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
  constants = nnx.to_pure_dict(nnx.state(module, posjax.nnx.Constant))
  return {'params': params} | ({'constants': constants} if constants else {})


def pair(scheme, **kwargs):
  kwargs = RULES | kwargs
  one = moved(posjax.nnx.Attention(WIDTH, 4, scheme, head_dim=6, rngs=nnx.Rngs(0), **kwargs))
  return one, posjax.linen.Attention(WIDTH, 4, scheme, head_dim=6, **kwargs)


def run(module, variables, x, *arguments, **kwargs):
  return jax.jit(functools.partial(module.apply, **kwargs))(variables, x, *arguments)


@pytest.mark.parametrize('name', SCHEMES)
def test_equal_weights_give_equal_outputs_with_and_without_a_cache(name, x):
  scheme = SCHEMES[name]
  one, other = pair(scheme)
  pos, variables = ids(scheme), collections(one)
  expected = jax.jit(functools.partial(one, order=ORDER))(x, pos)
  assert error(run(other, variables, x, pos, order=ORDER), expected) < TOLERANCE
  extend, out = jax.jit(functools.partial(other.apply, method='extend')), []
  cache = other.init_cache(BATCH, LENGTH)
  for part in (slice(0, 3), slice(3, 6)):
    y, cache = extend(variables, x[:, part], cache, pos[part])
    out.append(y)
  assert error(jnp.concatenate(out, axis=1), expected) < 1e-5
  assert cache.length == LENGTH


@pytest.mark.parametrize('name', SCHEMES)
def test_both_make_the_same_tree(name, x):
  one, other = pair(SCHEMES[name])
  made = jax.jit(other.init)(jax.random.key(0), x, ids(SCHEMES[name]), order=ORDER)
  shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype.name), tree)
  assert shapes(made) == {'params': shapes(collections(one)['params'])}
  flat = flax.traverse_util.flatten_dict(made)
  assert all(isinstance(leaf, jax.Array) for leaf in flat.values())  # plain dicts throughout


def test_cross_attention_dropout_and_segments_are_the_same(x):
  one, other = pair(SCHEMES['two_tables'], causal=False, dropout_rate=0.5)
  kwargs = {'x_kv': x[:, :4] * 2, 'kv_pos': POS[:4], 'dropout_key': jax.random.key(3)}
  kwargs |= {'segments': jnp.ones(6, jnp.int32), 'kv_segments': jnp.array([1, 1, 0, 1])}
  found = run(other, collections(one), x, POS, **kwargs)
  assert error(found, jax.jit(functools.partial(one, **kwargs))(x, POS)) < TOLERANCE
  kwargs.pop('dropout_key')
  assert error(run(other, collections(one), x, POS, **kwargs, deterministic=True), found) > 0.1


@pytest.mark.parametrize('name', ['rope', 'chain'])
def test_a_remembered_segment_is_the_same_and_has_no_gradient(name, x):
  one, other = pair(SCHEMES[name], window=4)
  before = jax.random.normal(jax.random.key(2), (BATCH, 3, WIDTH))
  past = lambda before: Tokens(before, jnp.arange(3), jnp.array([[0, 1, 1]] * BATCH))
  variables = collections(one)
  with_past = lambda x, before: other.apply(variables, x, POS, past=past(before))

  @jax.jit
  def outputs(x, before):
    slope = jax.grad(lambda *args: with_past(*args).sum(), (0, 1))
    alone = other.apply(variables, x, POS)
    return one(x, POS, past=past(before)), with_past(x, before), alone, slope(x, before)

  expected, out, alone, (d_x, d_before) = outputs(x, before)
  assert error(out, expected) < TOLERANCE
  assert error(out, alone) > 1e-2
  assert abs(d_x).max() > 1e-3
  np.testing.assert_array_equal(d_before, 0)


def test_a_ring_is_the_same_and_as_long_as_the_window(x):
  one, other = pair(SCHEMES['rope'], window=3)
  cache = other.init_cache(BATCH)
  assert cache.k.shape[1] == 3
  found, _ = run(other, collections(one), x, cache, POS, method='extend')
  assert error(found, jax.jit(one)(x, POS)) < 1e-5


def test_shared_parameters_are_given_or_held(x):
  one, _ = pair(CHAINED)
  bare = posjax.linen.Attention(WIDTH, 4, CHAINED, head_dim=6, model_params=False, **RULES)
  variables = collections(one)
  shared = ({}, {}, variables['params'].pop('model_params')['2'])
  with pytest.raises(ValueError, match='this layer holds none, so model_params must be given'):
    bare.apply(variables, x, POS)
  expected = jax.jit(one)(x, POS)
  assert error(run(bare, variables, x, POS, model_params=shared), expected) < TOLERANCE
  assert 'model_params' not in bare.init(jax.random.key(0), x, POS, model_params=shared)['params']


def test_a_train_state_of_the_params_alone_is_a_whole_program(x):
  other = posjax.linen.Attention(WIDTH, 4, CHAINED, causal=True)
  variables = jax.jit(other.init)(jax.random.key(0), x, POS)
  assert set(variables) == {'params'}  # so that those who train all of `init` train no constant
  state = TrainState.create(
    apply_fn=other.apply, params=variables['params'], tx=optax.adamw(0.1, weight_decay=0.5)
  )

  @jax.jit
  def step(state):
    loss = lambda params: jnp.square(state.apply_fn({'params': params}, x, POS) - x).mean()
    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value

  after, first = step(state)
  changed = jax.tree.map(lambda a, b: bool((a != b).any()), after.params, state.params)
  assert all(jax.tree.leaves(changed))
  for _ in range(5):
    after, last = step(after)
  assert last < first


def test_constants_are_made_anew_where_there_is_no_collection_and_read_where_there_is_one(x):
  one, other = pair(SCHEMES['alibi'])
  stored = collections(one)
  doubled = jax.tree.map(lambda leaf: 2 * leaf, stored['constants'])

  @jax.jit
  def outputs(params):
    trees = (stored, {'params': params}, {'params': params, 'constants': doubled})
    return [other.apply(tree, x, POS) for tree in trees]

  expected, anew, changed = outputs(stored['params'])
  assert error(anew, expected) < TOLERANCE
  assert error(changed, expected) > 1e-3


def test_random_constants_and_parameters_come_from_one_key(x):
  def init(key, dims):
    drawn = jax.random.normal(key, (dims.num_heads,))
    return {'learned': drawn, 'held': drawn}

  bias = lambda params, distance: jnp.einsum('h,...->h...', params['learned'], distance * 1.0)
  scheme = posjax.Scheme(init=init, bias=bias, traits=Traits(fixed=('held',)))
  for module in (posjax.linen.Attention, nn.remat(posjax.linen.Attention)):
    made = jax.jit(module(WIDTH, 4, scheme).init)(jax.random.key(0), x, POS)
    learned, held = (made[c]['scheme_params'] for c in ('params', 'constants'))
    np.testing.assert_array_equal(learned['learned'], held['held'])
  with pytest.raises(ValueError, match="must be stored, but got no collection 'constants' next to"):
    posjax.linen.Attention(WIDTH, 4, scheme).apply({'params': made['params']}, x, POS)


CONSTANT_AND_DRAWN = posjax.get('alibi+t5')


class Block(nn.Module):
  """A residual layer, to be stacked."""

  dropout_rate: float = 0.0

  @nn.compact
  def __call__(self, x, pos):
    scheme, rate = CONSTANT_AND_DRAWN, self.dropout_rate
    return x + posjax.linen.Attention(WIDTH, 4, scheme, causal=True, dropout_rate=rate)(
      x, pos
    ), None


def stacked(block):
  streams = {'params': True, 'dropout': True}
  axes = {'variable_axes': {'params': 0}, 'split_rngs': streams, 'in_axes': nn.broadcast}
  return nn.scan(block, length=3, **axes)


def test_stacked_layers_are_scanned_and_rematerialized_with_their_params_alone(x):
  stack = stacked(nn.remat(Block))()
  variables = jax.jit(stack.init)(jax.random.key(0), x, POS)
  assert set(variables) == {'params'}
  found, _ = run(stack, variables, x, POS)
  table = variables['params']['Attention_0']['model_params']['1']['table']
  assert (table[0] != table[1]).any()
  for i in range(3):
    layer = jax.tree.map(lambda leaf, i=i: leaf[i], variables)
    x, _ = run(Block(), layer, x, POS)
  assert error(found, x) < 1e-5


class WeighingBlock(nn.Module):
  """One layer that hands out its attention weights."""

  @nn.compact
  def __call__(self, x, pos):
    one = posjax.linen.Attention(WIDTH, 4, SCHEMES['two_tables'], causal=True)
    y, weights = one(x, pos, return_weights=True)
    return x + y, weights


def test_the_weights_of_scanned_layers_are_stacked(x):
  stack = stacked(WeighingBlock)()
  variables = jax.jit(stack.init)(jax.random.key(0), x, POS)
  _, weights = run(stack, variables, x, POS)
  assert weights.shape == (3, BATCH, 4, LENGTH, LENGTH)
  block = jax.jit(WeighingBlock().apply)
  for i in range(3):
    x, expected = block(jax.tree.map(lambda leaf, i=i: leaf[i], variables), x, POS)
    assert error(weights[i], expected) < 1e-5


def test_biases_and_windows_of_two_ends_are_those_of_the_nnx_layer(x):
  one, other = pair(SCHEMES['rope'], window=(2, None))
  variables, bias = collections(one), jax.random.normal(jax.random.key(2), (4, LENGTH, LENGTH))
  cache = other.init_cache(BATCH)
  assert cache.k.shape[1] == 3

  @jax.jit
  def outputs(x):
    apply = functools.partial(other.apply, variables, x)
    memory = apply(POS, method='memorize')
    return (
      one(x, POS, bias=bias),
      apply(POS, bias=bias),
      apply(cache, POS, bias=bias, method='extend')[0],
      apply(POS, memory, bias=bias, method='read'),
      one.read(x, POS, one.memorize(x, POS), bias=bias),
    )

  expected, *found = outputs(x)
  for each in found:
    assert error(each, expected) < TOLERANCE


def test_a_rematerialized_and_a_mapped_layer_are_the_layer(x):
  plain = posjax.linen.Attention(WIDTH, 4, CONSTANT_AND_DRAWN, causal=True)
  again = nn.remat(posjax.linen.Attention)(WIDTH, 4, CONSTANT_AND_DRAWN, causal=True)
  mapped = nn.vmap(
    posjax.linen.Attention, in_axes=(0, None), variable_axes={'params': 0},
    split_rngs={'params': True},
  )(WIDTH, 4, CONSTANT_AND_DRAWN, causal=True)  # fmt: skip

  @jax.jit
  def outputs(key):
    made = [module.init(key, x, POS) for module in (plain, again)]
    several = mapped.init(key, x[:, None], POS)
    alone = jax.tree.map(lambda leaf: leaf[1], several)
    one = plain.apply(made[0], x, POS), again.apply(made[0], x, POS)
    each = plain.apply(alone, x[1:], POS)[0], mapped.apply(several, x[:, None], POS)[1, 0]
    return made, one, each

  made, one, each = outputs(jax.random.key(0))
  assert jax.tree.map(jnp.shape, made[0]) == jax.tree.map(jnp.shape, made[1])
  assert error(*one) < TOLERANCE
  assert error(*each) < TOLERANCE


def test_dropout_is_drawn_from_the_stream_of_flax_or_refused(x, unchecked):
  stack = stacked(Block)(dropout_rate=0.5)
  variables = jax.jit(stack.init)(jax.random.key(0), x, POS)  # needs no stream: nothing is dropped
  with pytest.raises(ValueError, match='a call needs a dropout_key, or deterministic=True'):
    stack.apply(variables, x, POS)
  draw = jax.jit(lambda seed: stack.apply(variables, x, POS, rngs={'dropout': seed})[0])
  one, other = draw(jax.random.key(1)), draw(jax.random.key(2))
  assert error(one, other) > 0.1
  assert error(one, draw(jax.random.key(1))) == 0
  layer = posjax.linen.Attention(WIDTH, 4, dropout_rate=0.5)
  quiet = posjax.linen.Attention(WIDTH, 4, dropout_rate=0.5, deterministic=True)
  rngs, key = {'dropout': jax.random.key(1)}, jax.random.key(3)

  @jax.jit
  def pairs():
    variables = layer.init(jax.random.key(0), x, POS)
    expected = posjax.linen.Attention(WIDTH, 4).apply(variables, x, POS)
    call = functools.partial(layer.apply, variables, x, POS)
    return (
      (call(deterministic=True, rngs=rngs), expected),
      (call(dropout_key=key, rngs=rngs), call(dropout_key=key)),
      (quiet.apply(variables, x, POS), expected),
    )

  for found, expected in pairs():
    assert error(found, expected) == 0


def test_a_scheme_that_acts_before_the_layers_needs_a_model_that_calls_it(x):
  for line in BEFORE:
    layer = posjax.linen.Attention(WIDTH, 4, posjax.get(line), causal=True)
    with pytest.raises(ValueError, match='model_places=True, but got model_places=False'):
      layer.init(jax.random.key(0), x, POS)
    with pytest.raises(ValueError, match='model_places=True, but got model_places=False'):
      layer.init_cache(BATCH, 4)
    told = posjax.linen.Attention(WIDTH, 2, posjax.get(line), model_places=True)
    assert 'params' in jax.eval_shape(told.init, jax.random.key(0), x, POS)


@pytest.mark.parametrize(('kwargs', 'message'), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_arguments_are_refused(kwargs, message, x, unchecked):
  kwargs = {'width': 16, 'num_heads': 4, 'num_kv_heads': 2, **kwargs}
  with pytest.raises((TypeError, ValueError), match=message):
    posjax.linen.Attention(**kwargs).init(jax.random.key(0), ONES, POS)


def test_wrong_inputs_and_caches_are_refused(unchecked):
  layer = posjax.linen.Attention(16, 4, CHAINED, num_kv_heads=2, causal=True)
  variables = jax.eval_shape(layer.init, jax.random.key(0), ONES, POS)
  variables = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), variables)
  for kwargs, message in WRONG_INPUTS:
    with pytest.raises((TypeError, ValueError), match=message):
      layer.apply(variables, **{'x': ONES, 'pos': POS, **kwargs})
  for kwargs, message in WRONG_CACHES:
    with pytest.raises((TypeError, ValueError), match=message):
      layer.init_cache(**{'batch': 8, 'capacity': 9, **kwargs})
  with pytest.raises(TypeError, match='cache must be one of init_cache, but got NoneType'):
    layer.apply(variables, ONES, None, POS, method='extend')


def test_eight_devices_say_what_one_says():
  x = jax.random.normal(jax.random.key(1), (8, LENGTH, WIDTH))
  one, _ = pair(CHAINED)
  expected = jax.jit(one)(x, POS)
  mesh = jax.make_mesh((4, 2), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
  kwargs = RULES | {'head_dim': 6, 'sharding': (None, 'model', None)}
  other = posjax.linen.Attention(WIDTH, 4, CHAINED, **kwargs)
  boxed = jax.eval_shape(other.init, jax.random.key(0), x, POS)
  specs = nn.get_partition_spec(boxed)
  assert specs['params']['query']['kernel'] == PartitionSpec(None, 'model', None)
  assert specs['params']['out']['kernel'] == PartitionSpec('model', None, None)
  assert specs['params']['query']['bias'] == PartitionSpec('model', None)
  assert specs['params']['sinks'] == PartitionSpec('model')
  place = lambda spec, leaf: jax.device_put(leaf, NamedSharding(mesh, spec))
  variables = jax.tree.map(place, specs, {'params': collections(one)['params']})
  found = run(other, variables, place(PartitionSpec('data'), x), POS)
  assert len(found.sharding.device_set) == 8
  assert error(found, expected) < TOLERANCE


def test_nothing_is_annotated_by_default(x):
  made = posjax.linen.Attention(WIDTH, 4, sinks=True).init(jax.random.key(0), x, POS)
  boxed = lambda leaf: isinstance(leaf, nn.Partitioned)
  assert not any(boxed(leaf) for leaf in jax.tree.leaves(made, is_leaf=boxed))


def test_wrong_sizes_and_a_cache_of_an_encoder_are_refused(x):
  with pytest.raises(ValueError, match='heads must divide the width unless head_dim is given'):
    posjax.linen.Attention(WIDTH, 5).init(jax.random.key(0), x, POS)
  with pytest.raises(ValueError, match='must be causal, but got causal=False'):
    posjax.linen.Attention(WIDTH, 4).init_cache(BATCH, 4)
