"""The recipes of docs/recipes.md as programs: four models as people write them, with our layers.

Each is the model after its change, with schemes by themselves and with one chain that has
parameters of every kind. Most of them run by hand, with `pytest -m slow`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.nnx import bridge
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posjax
import posjax.linen
import posjax.nnx
from tests.support.loops import error

BATCH, LENGTH, WIDTH, HEADS, LAYERS, VOCAB = 8, 6, 16, 2, 2, 11
CHAIN = 'rope+alibi+t5+transformer_xl'
DIMS = posjax.Dims(WIDTH, HEADS, WIDTH // HEADS)
SCHEMES = ['alibi', 't5', 'transformer_xl', 'rope', CHAIN]
TOKENS = jax.random.randint(jax.random.key(1), (BATCH, LENGTH + 1), 0, VOCAB)


def loss_of(logits, tokens):
  return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


# A decoder as in nanodo: linen, a TrainState of parameters alone, FSDP by the names of axes.


SHARDING = ('data', None, None)


class Block(nn.Module):
  """A layer of the decoder: attention with a scheme, and a feed-forward part."""

  scheme: posjax.Scheme

  @nn.compact
  def __call__(self, x, shared):
    attention = posjax.linen.Attention(
      WIDTH,
      HEADS,
      self.scheme,
      causal=True,
      model_params=False,
      sharding=SHARDING,
      name='attention',
    )
    x = x + attention(nn.LayerNorm()(x), jnp.arange(x.shape[1]), model_params=shared)
    names = nn.with_partitioning(nn.initializers.lecun_normal(), ('data', None))
    return x + nn.Dense(WIDTH, kernel_init=names)(nn.gelu(nn.LayerNorm()(x)))


class Decoder(nn.Module):
  """A decoder without a table of positions."""

  scheme: posjax.Scheme

  @nn.compact
  def __call__(self, tokens):
    table = nn.Embed(VOCAB, WIDTH)
    shared = posjax.linen.Parameters(self.scheme, DIMS, SHARDING)()
    x = table(tokens)
    for i in range(LAYERS):
      x = nn.remat(Block)(self.scheme, name=f'block{i}')(x, shared)
    return table.attend(nn.LayerNorm()(x))


def train(state, tokens):
  """A step of training, and the loss before it."""
  loss = lambda params: loss_of(state.apply_fn({'params': params}, tokens[:, :-1]), tokens)
  value, gradients = jax.value_and_grad(loss)(state.params)
  return state.apply_gradients(grads=gradients), value


@pytest.mark.slow
@pytest.mark.parametrize('line', SCHEMES)
def test_a_linen_trainer_of_parameters_alone_shards_all_of_them_by_their_names(line):
  model, adam = Decoder(posjax.get(line)), optax.adam(0.01)

  def start(key):
    variables = model.init(key, TOKENS[:, :-1])
    assert set(variables) == {'params'}
    return TrainState.create(apply_fn=model.apply, params=variables['params'], tx=adam)

  mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
  specs = nn.get_partition_spec(jax.eval_shape(start, jax.random.key(0)))
  is_spec = lambda leaf: isinstance(leaf, PartitionSpec)
  shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)
  rows = NamedSharding(mesh, PartitionSpec('data'))
  with jax.set_mesh(mesh):
    state = jax.jit(start, out_shardings=shardings)(jax.random.key(0))
    step = jax.jit(train, out_shardings=(shardings, None))
    tokens, losses = jax.device_put(TOKENS, rows), []
    for _ in range(3):
      state, value = step(state, tokens)
      losses.append(float(value))
  assert losses[2] < losses[0]
  attention = nn.unbox(state.params)['block0']['attention']
  cut = {name: attention[name]['kernel'].sharding.spec[0] for name in ('query', 'key', 'value')}
  assert cut == {'query': 'data', 'key': 'data', 'value': 'data'}
  if 'transformer_xl' in line:
    held = attention['scheme_params']
    held = held if line == 'transformer_xl' else held['3']
    assert held['w_r'].sharding.spec[0] == 'data'
  alone = jax.jit(lambda: train(start(jax.random.key(0)), TOKENS)[1])()
  assert error(losses[0], alone) < 1e-5


# The same decoder with its layers stacked, as nanodo's and MaxText's are: one scan over them.


class StackedBlock(nn.Module):
  """A layer of the stack, as `nn.scan` calls it."""

  scheme: posjax.Scheme

  @nn.compact
  def __call__(self, x, pos, shared):
    attention = posjax.linen.Attention(
      WIDTH,
      HEADS,
      self.scheme,
      causal=True,
      model_params=False,
      sharding=SHARDING,
      name='attention',
    )
    return x + attention(nn.LayerNorm()(x), pos, model_params=shared), None


class StackedDecoder(nn.Module):
  """A decoder whose layers are rematerialized and scanned; the axis of layers is not cut."""

  scheme: posjax.Scheme

  @nn.compact
  def __call__(self, tokens):
    table = nn.Embed(VOCAB, WIDTH)
    layers = nn.scan(
      nn.remat(StackedBlock, prevent_cse=False),
      variable_axes={'params': 0},
      split_rngs={'params': True},
      in_axes=nn.broadcast,
      length=LAYERS,
      metadata_params={nn.PARTITION_NAME: None},
    )
    shared = posjax.linen.Parameters(self.scheme, DIMS, SHARDING)()
    pos = jnp.arange(tokens.shape[1])
    x, _ = layers(self.scheme, name='layers')(table(tokens), pos, shared)
    return table.attend(x)


@pytest.mark.slow
@pytest.mark.parametrize('line', SCHEMES)
def test_stacked_layers_of_linen_are_sharded_by_their_names_and_trained(line):
  model, adam = StackedDecoder(posjax.get(line)), optax.adam(0.01)

  def start(key):
    variables = model.init(key, TOKENS[:, :-1])
    assert set(variables) == {'params'}
    return TrainState.create(apply_fn=model.apply, params=variables['params'], tx=adam)

  mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
  specs = nn.get_partition_spec(jax.eval_shape(start, jax.random.key(0)))
  is_spec = lambda leaf: isinstance(leaf, PartitionSpec)
  shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)
  with jax.set_mesh(mesh):
    state = jax.jit(start, out_shardings=shardings)(jax.random.key(0))
    tokens = jax.device_put(TOKENS, NamedSharding(mesh, PartitionSpec('data')))
    after, first = jax.jit(train, out_shardings=(shardings, None))(state, tokens)
  attention = nn.unbox(after.params)['layers']['attention']
  cut = {'kernel': attention['query']['kernel']}
  if 'transformer_xl' in line:
    held = attention['scheme_params']
    cut['w_r'] = (held if line == 'transformer_xl' else held['3'])['w_r']
  for array in cut.values():
    assert array.shape == (LAYERS, WIDTH, HEADS, WIDTH // HEADS)
    assert array.sharding.shard_shape(array.shape) == (LAYERS, 2, HEADS, WIDTH // HEADS)
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), after.params, state.params)
  assert all(jax.tree.leaves(moved))
  alone = jax.jit(lambda: train(start(jax.random.key(0)), TOKENS)[1])()
  assert error(first, alone) < 1e-5


# A model as Flax's lm1b: layers stacked by nn.scan under nn.remat, masks and the cache of Flax.


class Layer(nn.Module):
  """A layer of Flax's own modules, into which a scheme comes by the attention function."""

  scheme: posjax.Scheme
  decode: bool = False

  @nn.compact
  def __call__(self, x, mask, shared):
    y = nn.MultiHeadDotProductAttention(
      HEADS,
      dropout_rate=0.1,
      deterministic=True,
      decode=self.decode,
      attention_fn=posjax.linen.AttentionFn(self.scheme, decode=self.decode, model_params=shared),
    )(nn.LayerNorm()(x), mask=mask)
    return x + y, None


class Stack(nn.Module):
  """Layers whose parameters are stacked, as the caches of decoding are."""

  scheme: posjax.Scheme
  decode: bool = False

  @nn.compact
  def __call__(self, tokens):
    mask = None if self.decode else nn.make_causal_mask(tokens)  # of float32
    table = nn.Embed(VOCAB, WIDTH)
    layers = nn.scan(
      nn.remat(Layer, prevent_cse=False),
      variable_axes={'params': 0, 'cache': 0},
      split_rngs={'params': True},
      in_axes=nn.broadcast,
      length=LAYERS,
    )
    shared = posjax.linen.Parameters(self.scheme, DIMS)()
    x, _ = layers(self.scheme, self.decode, name='layers')(table(tokens), mask, shared)
    return table.attend(nn.LayerNorm()(x))


@pytest.mark.slow
@pytest.mark.parametrize('line', SCHEMES)
def test_a_stack_of_flaxs_own_layers_trains_and_decodes_with_its_cache(line):
  model, decoder = Stack(posjax.get(line)), Stack(posjax.get(line), decode=True)
  inputs = TOKENS[:, :-1]
  params = jax.jit(model.init)(jax.random.key(0), inputs)['params']
  loss = lambda params: loss_of(model.apply({'params': params}, inputs), TOKENS)
  gradients = jax.jit(jax.grad(loss))(params)
  own = gradients['layers'].get('AttentionFn_0', {})
  assert all((abs(leaf) > 0).any(range(1, leaf.ndim)).all() for leaf in jax.tree.leaves(own))
  assert len(jax.tree.leaves(own)) == {'transformer_xl': 1, CHAIN: 1}.get(line, 0)
  shapes = jax.eval_shape(decoder.init, jax.random.key(0), inputs)['cache']
  cache = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

  def step(cache, token):
    variables = {'params': params, 'cache': cache}
    logits, changed = decoder.apply(variables, token[:, None], mutable=['cache'])
    return changed['cache'], logits[:, 0]

  _, steps = jax.jit(lambda cache: jax.lax.scan(step, cache, inputs.T))(cache)
  whole = jax.jit(model.apply)({'params': params}, inputs)
  assert error(steps.swapaxes(0, 1), whole) < 1e-4


# An nnx model whose layers are stacked, trained by nnx.Optimizer.


class Stacked(nnx.Module):
  """A decoder whose layers are made by `nnx.vmap` and called by `nnx.scan`."""

  def __init__(self, scheme: posjax.Scheme, rngs: nnx.Rngs, **options: Any):
    make = lambda rngs: posjax.nnx.Attention(
      WIDTH, HEADS, scheme, causal=True, model_params=False, rngs=rngs, **options
    )
    self.table = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
    self.shared = posjax.nnx.Parameters(scheme, scheme.init_model(rngs.params(), DIMS))
    self.layers = nnx.split_rngs(splits=LAYERS)(nnx.vmap(make))(rngs)

  def __call__(self, tokens: Any) -> Any:
    pos, shared = jnp.arange(tokens.shape[1]), self.shared()
    body = lambda layer, x: x + layer(x, pos, model_params=shared)
    x = nnx.scan(body, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.layers, self.table(tokens))
    return self.table.attend(x)


@pytest.mark.slow
@pytest.mark.parametrize('line', SCHEMES)
def test_an_nnx_model_of_stacked_layers_trains_every_parameter_and_no_constant(line):
  model = Stacked(posjax.get(line), nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
  before = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(model)))

  @nnx.jit
  def step(model, optimizer):
    loss = lambda model: loss_of(model(TOKENS[:, :-1]), TOKENS)
    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value

  losses = [float(step(model, optimizer)) for _ in range(3)]
  assert losses[2] < losses[0]
  after = nnx.to_pure_dict(nnx.state(model))
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
  own = moved['layers'].get('scheme_params', {})
  if 'alibi' in line:
    assert not (own if line == 'alibi' else own['1']).pop('slopes')
  assert all(jax.tree.leaves(moved))


def of_each(model, mesh):
  """The shardings of a model's state, by the names of the axes; layers are stacked in front."""

  def place(variable):
    names = tuple(variable.get_metadata().get('out_sharding') or ())
    front = (None,) * (variable.ndim - len(names))
    return NamedSharding(mesh, PartitionSpec(*front, *names))

  is_leaf = lambda leaf: isinstance(leaf, nnx.Variable)
  return jax.tree.map(place, nnx.state(model), is_leaf=is_leaf)


@pytest.mark.slow
@pytest.mark.parametrize('line', SCHEMES)
def test_a_stacked_rematerialized_nnx_model_is_sharded_by_its_names(line):
  mesh = jax.make_mesh((4, 2), ('data', 'tensor'), axis_types=(AxisType.Auto,) * 2)
  with nnx.use_eager_sharding(False):
    model = Stacked(posjax.get(line), nnx.Rngs(0), sharding=('data', 'tensor', None))
  graph, state = nnx.split(model)
  places = of_each(model, mesh)
  loss = lambda state, tokens: loss_of(nnx.merge(graph, state)(tokens[:, :-1]), tokens)
  whole = jax.jit(jax.checkpoint(loss))(state, TOKENS)
  arrays = jax.tree.leaves(state)
  cut = [jax.device_put(*pair) for pair in zip(arrays, jax.tree.leaves(places), strict=True)]
  there = jax.tree.unflatten(jax.tree.structure(state), cut)
  tokens = jax.device_put(TOKENS, NamedSharding(mesh, PartitionSpec('data')))
  found = jax.jit(jax.checkpoint(loss))(there, tokens)
  assert error(found, whole) < 1e-5
  shape = lambda array: array.sharding.shard_shape(array.shape)
  held = nnx.to_pure_dict(there)['layers']
  assert shape(held['query']['kernel']) == (LAYERS, 4, 1, WIDTH // HEADS)
  members = {'alibi': '1', 't5': '2', 'transformer_xl': '3'}
  cut = {'alibi': ('scheme_params', 'slopes', (LAYERS, 1))}
  cut |= {'transformer_xl': ('scheme_params', 'w_r', (LAYERS, 4, 1, WIDTH // HEADS))}
  for name, (field, parameter, expected) in cut.items():
    if name in line:
      own = held[field] if line == name else held[field][members[name]]
      assert shape(own[parameter]) == expected


@pytest.mark.parametrize('line', ['t5', 'transformer_xl', CHAIN])
def test_what_a_scheme_shares_between_layers_is_held_once_by_every_model(line):
  scheme = posjax.get(line)
  made = jax.eval_shape(lambda key: scheme.init_model(key, DIMS), jax.random.key(0))
  expected = sorted(leaf.shape for leaf in jax.tree.leaves(made))
  for model in (Decoder(scheme), StackedDecoder(scheme), Stack(scheme)):
    variables = jax.eval_shape(model.init, jax.random.key(0), TOKENS[:, :-1])
    leaves = jax.tree.leaves_with_path(nn.unbox(variables['params']))
    held = [leaf.shape for path, leaf in leaves if 'model_params' in jax.tree_util.keystr(path)]
    assert sorted(held) == expected
  stacked = nnx.eval_shape(lambda: Stacked(scheme, nnx.Rngs(0)))
  assert sorted(leaf.shape for leaf in jax.tree.leaves(nnx.state(stacked.shared))) == expected
  assert 'model_params' not in nnx.to_pure_dict(nnx.state(stacked.layers))


# A model with its own rotation and its own softmax: one call in place of both.


def apply_rope(x, pos, base=10000.0):
  """RoPE as checkpoints of Llama have it: dimension i turns with i + D/2."""
  half = x.shape[-1] // 2
  angles = pos[:, None, None] * base ** (-jnp.arange(half) / half)[None, None]
  cos, sin = (jnp.concatenate([part] * 2, -1)[None] for part in (jnp.cos(angles), jnp.sin(angles)))
  turned = jnp.concatenate([-x[..., half:], x[..., :half]], axis=-1)
  return x * cos + turned * sin


def own_attention(q, k, v, pos):
  """The attention before the change."""
  q, k = apply_rope(q, pos), apply_rope(k, pos)
  k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
  logits = jnp.einsum('bthd,bshd->bhts', q, k) / q.shape[-1] ** 0.5
  logits = jnp.where((pos[:, None] >= pos[None])[None, None], logits, -jnp.inf)
  return jnp.einsum('bhts,bshd->bthd', jax.nn.softmax(logits), v)


def new_attention(q, k, v, pos):
  """The attention after it."""
  return posjax.attend(q, k, v, 'rope', {}, q_pos=pos, k_pos=pos, causal=True)


def test_one_call_replaces_a_models_own_rotation_mask_and_softmax():
  keys = jax.random.split(jax.random.key(0), 3)
  q, k, v = (
    jax.random.normal(key, (2, LENGTH, n, 8)) for key, n in zip(keys, (4, 2, 2), strict=True)
  )
  pos = jnp.arange(LENGTH) + 3
  found, expected = (jax.jit(call)(q, k, v, pos) for call in (new_attention, own_attention))
  assert error(found, expected) < 1e-5


# Flax's bridge, both ways.


@pytest.mark.slow
@pytest.mark.parametrize('line', SCHEMES)
def test_both_bridges_of_flax_keep_numbers_names_and_constants(line):
  scheme, pos = posjax.get(line), jnp.arange(LENGTH)
  x = jax.random.normal(jax.random.key(2), (2, LENGTH, WIDTH))
  one = posjax.nnx.Attention(WIDTH, HEADS, scheme, causal=True, rngs=nnx.Rngs(0))
  params = nnx.to_pure_dict(nnx.state(one, nnx.Param))
  linen = posjax.linen.Attention(WIDTH, HEADS, scheme, causal=True)
  crossed = bridge.ToNNX(linen, rngs=nnx.Rngs(0)).lazy_init(x, pos)
  trained = nnx.to_pure_dict(nnx.state(crossed, nnx.Param))
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  assert shapes(trained) == shapes(params)
  assert error(crossed(x, pos), linen.apply({'params': trained}, x, pos)) == 0
  other = bridge.ToLinen(
    posjax.nnx.Attention, args=(WIDTH, HEADS, scheme), kwargs={'causal': True}, skip_rng=False
  )
  variables = other.init(jax.random.key(0), x, pos)
  assert shapes(variables['params']) == shapes(params)
  found = other.apply({**variables, 'params': params}, x, pos)
  assert error(found, one(x, pos)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize('line', SCHEMES)
def test_names_of_axes_cross_the_bridge_to_nnx(line):
  scheme, pos = posjax.get(line), jnp.arange(LENGTH)
  x = jax.random.normal(jax.random.key(2), (2, LENGTH, WIDTH))
  names = {'causal': True, 'sharding': ('data', 'tensor', None)}
  linen = posjax.linen.Attention(WIDTH, HEADS, scheme, **names)
  with nnx.use_eager_sharding(False):
    one = posjax.nnx.Attention(WIDTH, HEADS, scheme, **names, rngs=nnx.Rngs(0))
    crossed = bridge.ToNNX(linen, rngs=nnx.Rngs(0)).lazy_init(x, pos)

  def told(model):
    found = jax.tree.leaves_with_path(
      nnx.state(model, nnx.Param), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    name = jax.tree_util.keystr
    return {name(path): tuple(leaf.get_metadata()['out_sharding']) for path, leaf in found}

  assert told(crossed) == told(one)


# Rows too long for one device.


@pytest.mark.slow
def test_a_row_that_several_devices_share_trains_as_on_one():
  tokens = jax.random.randint(jax.random.key(2), (2, 17), 0, VOCAB)
  inputs, targets = tokens[:, :-1], tokens[:, 1:]
  pos = jnp.broadcast_to(jnp.arange(16), (2, 16))

  def slopes(implementation, inputs, targets, pos):
    rngs, options = nnx.Rngs(0), {'causal': True, 'implementation': implementation}
    embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
    attention = posjax.nnx.Attention(WIDTH, HEADS, posjax.get('t5'), **options, rngs=rngs)

    def loss(models):
      embed, attention = models
      logits = embed.attend(attention(embed(inputs), pos))
      return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    return [nnx.to_pure_dict(state) for state in nnx.grad(loss)([embed, attention])]

  expected = slopes('dense', inputs, targets, pos)
  mesh = jax.make_mesh((4,), ('context',), axis_types=(AxisType.Auto,))
  batch = posjax.positions.zigzag((inputs, targets, pos), devices=4)
  with jax.set_mesh(mesh):
    found = jax.jit(slopes, static_argnums=0)(
      'ring', *jax.device_put(batch, PartitionSpec(None, 'context'))
    )
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert error(jax.device_get(one), other) <= 1e-5
