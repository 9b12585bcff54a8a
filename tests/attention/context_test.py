"""Attention over several devices: values and all gradients are those of the dense reference.

Devices are simulated. Numbers are compared in float64, as in the contract: float32 rounds sums of
other orders to other numbers.
"""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

import posjax
import posjax.linen
import posjax.nnx
from posjax import positions
from posjax.attention import chosen, dispatch
from posjax.attention.blockwise import engine
from posjax.attention.blockwise.tiles import join, split
from posjax.attention.choice import Choice
from posjax.attention.pallas import fused
from tests.attention.small import Small
from tests.contract import schemes_test as contract
from tests.contract.schemes_test import CHAINS, FORMS, LINES
from tests.support.draws import DRAW
from tests.support.loops import error
from tests.support.programs import equations

pytestmark = pytest.mark.usefixtures('eight_devices')
TOLERANCE = 1e-6
# Places 2 to 4, a table by distance, and floats of `prepare`.
ALL = 'rope+t5+shaw+forgetting'
OVER_DEVICES = ('all_gather', 'ring')
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def mesh(kind=AxisType.Auto, **axes):
  return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes))


def layer(line, packed=False):
  """q, k, v, parameters and stream of a layer of the contract: 2 rows of 12 tokens, 4 heads."""
  scheme = posjax.get(line)
  given = contract.packed_and_padded(scheme, 'counting') if packed else contract.inputs(scheme)
  sides = jax.jit(functools.partial(contract.sides, scheme))
  return scheme, sides(contract.parameters(scheme), given)


def in_layout(devices, arrays, named):
  """The arrays with their tokens in the zig-zag layout."""
  move = functools.partial(positions.zigzag, devices=devices)
  q, k, v, params, stream = arrays
  by_pairs = {'mask', 'bias'} & named.keys()
  moved = {name: move(move(named[name], axis=2), axis=3) for name in by_pairs}
  return (*move((q, k, v)), params, move(stream)), named | moved


def answer(scheme, arrays, named, zigzag=None, **options):
  """The output, and the gradients of all floats: of the arrays, and of the arguments by name.

  All are in the order of the arrays; `zigzag` is the number of devices for which attention gets
  them in that layout.
  """
  wider = {jnp.dtype(jnp.float32): jnp.float64, jnp.dtype(jnp.complex64): jnp.complex128}
  wide = lambda leaf: leaf.astype(wider[leaf.dtype]) if leaf.dtype in wider else leaf
  with jax.enable_x64(True):
    floats, others = split(jax.tree.map(wide, (arrays, named)))

    def number(floats):
      arrays, named = join(floats, others)
      if zigzag:
        arrays, named = in_layout(zigzag, arrays, named)
      q, k, v, params, stream = arrays
      out = contract.attend(scheme, params, q, k, v, stream, stream, **named, **options)
      out = positions.from_zigzag(out, zigzag) if zigzag else out
      each = jnp.linspace(-1, 1, out.size).reshape(out.shape)
      return (each * out).real.sum(), out

    (_, out), slopes = jax.jit(jax.value_and_grad(number, has_aux=True))(floats)
    return jax.device_get([out, *jax.tree.leaves(slopes)])


def compare(line, implementation, axes, zigzag=False, packed=False, named=None, **options):
  """One implementation beside the reference."""
  scheme, arrays = layer(line, packed)
  expected = answer(scheme, arrays, named or {}, implementation='dense', **options)
  zigzag = zigzag and 'S' not in scheme.traits.mixes  # which needs keys in their order
  with jax.set_mesh(mesh(**axes)):
    options |= {'implementation': implementation, 'zigzag': axes['context'] if zigzag else None}
    found = answer(scheme, arrays, named or {}, **options)
  assert len(found) == len(expected) > 3
  for one, other in zip(found, expected, strict=True):
    assert error(one, other) <= TOLERANCE


def everything():
  """Arguments of `attend` that need a seam between devices."""
  pairs = lambda *shape: jnp.asarray(DRAW.normal(size=(*shape, 12, 12)), jnp.float32)
  sinks = jnp.asarray(DRAW.normal(size=4), jnp.float32)
  return {'sinks': sinks, 'bias': pairs(1, 4), 'mask': pairs(2, 1) > -1}


@pytest.mark.parametrize(
  ('line', 'implementation', 'devices'),
  [
    ('forgetting', 'ring', 5),
    *(slow(line, way, 3) for line in (ALL, 'transformer_xl') for way in OVER_DEVICES),
    slow('cope', 'all_gather', 4),
  ],
)
def test_all_arguments_at_once_give_the_reference_with_all_gradients(line, implementation, devices):
  """Packed, in a window, under a cap, with sinks, a bias, a mask, grouped heads, and dropout.

  The weights that are dropped are those that one device would drop. Five devices get padding.
  """
  named = everything() | {'dropout_key': jax.random.key(3)}
  options = {'window': 9, 'logit_cap': 3.0, 'dropout_rate': 0.3}
  compare(line, implementation, {'context': devices}, packed=True, named=named, **options)


@pytest.mark.slow
@pytest.mark.parametrize(('implementation', 'zigzag'), [('all_gather', False), ('ring', True)])
@pytest.mark.parametrize('line', [*LINES, *CHAINS, *FORMS])
def test_every_scheme_gives_the_reference_with_all_gradients(line, implementation, zigzag):
  compare(line, implementation, {'context': 2}, zigzag, named={'sinks': everything()['sinks']})


@pytest.mark.slow
@pytest.mark.parametrize('implementation', OVER_DEVICES)
@pytest.mark.parametrize('line', [ALL, 'transformer_xl', 'dape', 'cope'])
def test_packed_rows_in_either_layout_give_the_reference(line, implementation):
  for options in (
    {'causal': True},
    {'causal': False},
    {'window': 3},
    {'window': (2, 4), 'causal': False},
  ):
    compare(line, implementation, {'context': 3}, True, True, everything(), **options)


@pytest.mark.slow
@pytest.mark.parametrize('implementation', OVER_DEVICES)
@pytest.mark.parametrize('line', [ALL, 'transformer_xl', 'dape', 'cope', 'tupe', 'deberta'])
def test_other_axes_of_the_mesh_cut_rows_and_heads(line, implementation):
  """Heads are not cut where a scheme mixes them."""
  scheme, arrays = layer(line, packed=True)
  q, k, v, params, stream = arrays
  expected = answer(scheme, arrays, {}, implementation='dense')
  with jax.set_mesh(mesh(data=2, context=2, tensor=2)):
    put = lambda x, *cut: jax.device_put(x, PartitionSpec(*cut))
    heads = [put(x, 'data', 'context', 'tensor') for x in (q, k, v)]
    stream = jax.tree.map(lambda x: put(x, 'data', 'context'), stream)
    found = answer(scheme, (*heads, params, stream), {}, implementation=implementation)
  for one, other in zip(found, expected, strict=True):
    assert error(one, other) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
  ('queries', 'keys', 'implementation'),
  [(5, 11, 'all_gather'), (1, 8, 'all_gather'), (5, 11, 'ring'), (1, 9, 'ring')],
)
def test_any_number_of_queries_and_keys_is_right(queries, keys, implementation):
  """A memory of tokens before the queries, as Transformer-XL's; and one query, as in decoding."""
  scheme, (q, k, v, params, stream) = layer('t5')
  last = slice(keys - queries, keys)
  pairs = jnp.asarray(DRAW.normal(size=(2, 1, queries, keys)) > -1)

  def out(implementation):
    return posjax.attend(
      q[:, last], k[:, :keys], v[:, :keys], scheme, params, q_pos=stream.pos[:, last],
      k_pos=stream.pos[:, :keys], causal=True, mask=pairs, implementation=implementation,
    )  # fmt: skip

  expected = out('dense')
  with jax.set_mesh(mesh(context=4)):
    assert error(jax.device_get(out(implementation)), expected) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize('irregular', [False, True])
@pytest.mark.parametrize('name', ['gpu', 'tpu'])
@pytest.mark.parametrize('line', ['t5', 'rope', 'transformer_xl', 'alibi(learned=True)'])
def test_fused_kernels_serve_the_chunks_of_a_ring(line, name, irregular, monkeypatch):
  """Interpreted. Where ids do not count up, the program takes tiles."""
  target = fused.Target(Small(name), interpret=True)
  monkeypatch.setattr(fused, 'target_of', lambda device, mosaic=False: target)
  order = positions.zigzag(jnp.arange(32), 2, axis=0)
  pos = order * 3 % 7 if irregular else order
  options = {'order': order, 'segments': jnp.where(order < 20, 1, 2)}
  expected, arguments = attention('dense', line, pos, **options)
  ring, _ = attention('ring', line, pos, **options)
  names = lambda run: {
    str(equation.primitive) for equation in equations(jax.make_jaxpr(run)(*arguments))
  }
  with jax.set_mesh(mesh(context=2)):
    assert 'pallas_call' in names(ring)
    found = jax.device_get(jax.jit(ring)(*arguments))
  for one, other in zip(*map(jax.tree.leaves, (found, expected(*arguments))), strict=True):
    assert error(one, other) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('implementation', OVER_DEVICES)
@pytest.mark.parametrize('line', [ALL, 'transformer_xl', 'cope'])
def test_devices_that_launch_each_computation_give_the_reference(line, implementation, monkeypatch):
  """As GPUs and TPUs do; in tiles of 2 queries and keys, so that a chunk has several."""
  jax.clear_caches()
  monkeypatch.setattr(engine, 'launches', lambda: True)
  monkeypatch.setattr(engine, 'tile_size', lambda *_: (2, 2))
  monkeypatch.setattr(dispatch, 'on_one_device', lambda *_: Choice('blockwise', 'for the test'))
  compare(line, implementation, {'context': 2}, packed=True, named=everything(), window=9)
  jax.clear_caches()


# What the devices say to each other.


def collectives(program):
  """The collectives of a compiled program, with the shape of each, and how many there are."""
  kinds = 'all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all'
  found = re.findall(rf'= (.*?) ({kinds})(?:-start)?\(', program.as_text())
  return collections.Counter((kind, re.sub(r'{.*?}', '', shape)) for shape, kind in found)


def attention(implementation, line='t5', pos=None, order=None, segments=None):
  """The gradients of causal attention: 2 rows of 32 tokens, 4 heads; and its arguments."""
  scheme = posjax.get(line)
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(16, 4, 8, 2))
  normal = lambda heads: jnp.asarray(DRAW.normal(size=(2, 32, heads, 8)), jnp.float32)
  pos = jnp.arange(32) if pos is None else pos

  def number(q, k, v, params):
    ids = {'q_pos': pos, 'k_pos': pos, 'q_order': order, 'k_order': order}
    ids |= {'q_segments': segments, 'k_segments': segments}
    ids |= {'causal': True, 'implementation': implementation}
    return (posjax.attend(q, k, v, scheme, params, **ids) ** 2).sum()

  return jax.value_and_grad(number, argnums=(0, 1, 2, 3)), (normal(4), normal(2), normal(2), params)


def test_ring_hands_on_keys_and_their_cotangents_and_nothing_else():
  """A loop of 3 steps for 4 devices, forward, hands on keys, values, ids, order and segments.

  Backward it hands on the cotangents of keys and values, too, and these once more at its end. The
  cotangent of the parameters and the loss are added up. In the zig-zag layout, it is right.
  """
  pos = positions.zigzag(jnp.arange(32), 4, axis=0)
  ring, arguments = attention('ring', pos=pos)
  with jax.set_mesh(mesh(context=4)):
    cut = jax.device_put(arguments[:3], PartitionSpec(None, 'context'))
    program = jax.jit(ring).lower(*cut, arguments[3]).compile()
    found = jax.device_get(program(*cut, arguments[3]))
  keys, numbers = 'f32[2,8,2,8]', 's32[1,8]'
  assert collectives(program) == {
    ('collective-permute', keys): 2 + 4 + 2,
    ('collective-permute', numbers): 3 + 3,
    ('all-reduce', '(f32[], f32[32,4])'): 1,
  }
  assert program.as_text().count('"known_trip_count":{"n":"3"}') >= 2
  dense, _ = attention('dense', pos=pos)
  expected = jax.jit(dense)(*arguments)
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert error(one, other) <= 1e-5


@pytest.mark.parametrize('axes', [{'context': 4}, slow({'data': 2, 'context': 2, 'tensor': 2})])
def test_all_gather_is_one_pair_of_keys_and_values(axes):
  """Each device gathers along `context` alone; their cotangents are added up, once."""
  gather, arguments = attention('all_gather')
  with jax.set_mesh(mesh(**axes)):
    spec = PartitionSpec(
      *(name if name in axes else None for name in ('data', 'context', 'tensor'))
    )
    cut = jax.device_put(arguments[:3], spec)
    found = collectives(jax.jit(gather).lower(*cut, arguments[3]).compile())
  keys = f'f32[{2 // axes.get("data", 1)},32,{2 // axes.get("tensor", 1)},8]'
  assert found.pop(('all-gather', keys)) == 2
  assert ''.join(shape * count for (_, shape), count in found.items()).count(keys) == 2


# Rows.


@pytest.mark.parametrize(
  ('line', 'implementation', 'axes'),
  [
    ('t5', 'blockwise', {'data': 2}),
    *(
      slow(line, 'blockwise', axes)
      for line in (ALL, 'transformer_xl', 'cope', 'dape')
      for axes in ({'data': 2}, {'fsdp': 2}, {'fsdp': 2, 'tensor': 2})
    ),
    *(
      slow(line, way, {'data': 2, 'context': 2})
      for line in (ALL, 'transformer_xl', 'cope', 'dape')
      for way in ('blockwise', *OVER_DEVICES)
    ),
  ],
)
def test_devices_compute_their_own_rows_with_all_arguments_and_gradients(
  line, implementation, axes
):
  """Packed, with sinks, a bias, a mask, and the dropout of one device."""
  named = everything() | {'dropout_key': jax.random.key(3)}
  compare(line, implementation, axes, packed=True, named=named, dropout_rate=0.3)


def test_gradients_of_parameters_are_added_up_over_rows_once():
  """Where XLA cut the rows itself, it would add them up for each tile."""
  scheme, pos = posjax.get('t5'), jnp.arange(512)
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(16, 2, 8))

  def loss(q, params):
    ids = {'q_pos': pos, 'k_pos': pos, 'causal': True}
    return posjax.attend(q, q, q, scheme, params, **ids, implementation='blockwise').sum()

  with jax.set_mesh(mesh(data=2)):
    q = jax.device_put(jnp.ones((2, 512, 2, 8)), PartitionSpec('data'))
    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(q, params).compile()
  assert collectives(program).total() == 1
  (line,) = [line for line in program.as_text().splitlines() if ' all-reduce(' in line]
  assert 'while' not in line


# Meshes.


@pytest.mark.parametrize('implementation', OVER_DEVICES)
def test_without_an_axis_context_one_sentence_says_so(implementation):
  x, pos = jnp.ones((1, 8, 2, 4)), jnp.arange(8)
  attend = functools.partial(
    posjax.attend, x, x, x, 'rope', {}, q_pos=pos, k_pos=pos, implementation=implementation
  )
  with pytest.raises(ValueError, match=r"axis 'context'.* but got no mesh"):
    attend()
  with jax.set_mesh(mesh(data=2)), pytest.raises(ValueError, match='but got the axes data'):
    attend()
  with jax.set_mesh(mesh(context=2)):
    inside = jax.shard_map(lambda x: attend(), in_specs=PartitionSpec(), out_specs=PartitionSpec())
    with pytest.raises(ValueError, match='outside of'):
      jax.eval_shape(inside, x)


def test_chosen_says_which_and_why():
  q, pos = jax.ShapeDtypeStruct((1, 4096, 2, 8), jnp.float32), jnp.arange(4096)
  params = posjax.init(posjax.get('cope'), jax.random.key(0), posjax.Dims(16, 2, 8))
  ask = functools.partial(chosen, q, q, q, q_pos=pos, k_pos=pos, device='cpu')
  with jax.set_mesh(mesh(context=2)):
    assert ask('rope', {}, implementation='ring') == ('ring', 'it is asked for')
    found = ask('cope', params, implementation='ring')
    assert found == ('all_gather', 'the scheme needs whole rows of keys')
  with jax.set_mesh(mesh(data=2, context=1)):
    assert ask('rope', {}, implementation='ring') == ask('rope', {})


@pytest.mark.slow
@pytest.mark.parametrize('module', [posjax.nnx, posjax.linen])
def test_layers_compute_over_devices_and_decode_one_token_at_a_time(module):
  """The layers hand the implementation on; a cache has any number of keys."""
  scheme, x = posjax.get('t5'), jnp.asarray(DRAW.normal(size=(2, 12, 16)), jnp.float32)
  arguments = {'scheme': scheme, 'causal': True, 'num_kv_heads': 2}

  def outputs(implementation):
    options = arguments | {'implementation': implementation}
    if module is posjax.linen:
      layer = module.Attention(16, 4, **options)
      bound = layer.bind(layer.init(jax.random.key(0), x, jnp.arange(12)))
    else:
      bound = module.Attention(16, 4, **options, rngs=nnx.Rngs(0))
    whole = bound(x, jnp.arange(12))
    cache, pieces = bound.init_cache(2, 12), []
    for start, stop in ((0, 7), (7, 8), (8, 12)):
      piece, cache = bound.extend(x[:, start:stop], cache, jnp.arange(start, stop))
      pieces.append(piece)
    return whole, jnp.concatenate(pieces, 1)

  expected = outputs('dense')
  for implementation in OVER_DEVICES:
    with jax.set_mesh(mesh(context=4)):
      for one, other in zip(outputs(implementation), expected, strict=True):
        assert error(jax.device_get(one), other) <= 1e-5


@pytest.mark.parametrize(
  'implementation', [None, 'all_gather', slow('dense'), slow('blockwise'), slow('ring')]
)
@pytest.mark.parametrize('line', ['t5', slow('shaw'), slow('transformer_xl'), slow('cope')])
def test_explicit_axes_give_a_result_that_is_cut_as_the_queries(line, implementation):
  """The default of `jax.make_mesh`; gradients are cut as what they are of."""
  run, (*heads, params) = attention(implementation, line)
  axes = mesh(AxisType.Explicit, data=2, context=2, tensor=2)
  with jax.set_mesh(axes):
    cut = [jax.device_put(x, PartitionSpec('data', 'context', 'tensor')) for x in heads]
    _, slopes = jax.eval_shape(run, *cut, params)
    expected = PartitionSpec('data', 'context', 'tensor', None)
    assert [x.sharding.spec for x in slopes[:3]] == [expected] * 3


@pytest.mark.slow
@pytest.mark.parametrize('implementation', ['dense', 'blockwise', *OVER_DEVICES])
def test_explicit_axes_give_the_reference(implementation):
  dense, (*heads, params) = attention('dense', 't5')
  run, _ = attention(implementation, 't5')
  expected = dense(*heads, params)
  with jax.set_mesh(mesh(AxisType.Explicit, data=2, context=2, tensor=2)):
    cut = [jax.device_put(x, PartitionSpec('data', 'context', 'tensor')) for x in heads]
    found = jax.device_get(jax.jit(run)(*cut, params))
    weights = posjax.weights(*cut[:2], 't5', params, q_pos=jnp.arange(32), k_pos=jnp.arange(32))
  assert tuple(weights.sharding.spec)[:3] == ('data', 'tensor', 'context')
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert error(one, other) <= 1e-5


def test_a_scan_over_layers_keeps_no_masks_of_all_pairs_of_a_ring():
  """What depends on the orders alone is the same in each layer, and JAX would keep it for all."""
  scheme = posjax.get('alibi(learned=True)')
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(16, 2, 8))

  def loss(q, params, pos):
    def layer(x, _):
      options = {'q_pos': pos, 'k_pos': pos, 'causal': True, 'implementation': 'ring'}
      return posjax.attend(x, x, x, scheme, params, **options), None

    return jax.lax.scan(layer, q, length=3)[0].sum()

  with jax.set_mesh(mesh(context=4)):
    q, pos = jnp.zeros((1, 2048, 2, 8)), jnp.arange(2048)
    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(q, params, pos)
  largest = max(leaf.aval.size for one in equations(program) for leaf in one.outvars)
  assert largest <= 4 * q.size


# Schemes that go by the places of tokens in the array.


@pytest.mark.parametrize('implementation', [slow('dense'), slow('all_gather'), 'ring'])
@pytest.mark.parametrize('line', ['rope+forgetting', slow('cope')])
def test_tokens_in_another_order_are_refused_or_give_nan_where_a_scheme_goes_by_their_places(
  line, implementation
):
  """Forgetting sums gates along the row, and cope gates along the keys."""
  x, pos = jnp.asarray(DRAW.normal(size=(2, 8, 8)), jnp.float32), jnp.arange(8)
  zigzag, one = positions.zigzag(pos, 2, axis=0), jnp.ones((1, 8), jnp.int32)
  two = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2]])
  # Each document counts up, but the second stands between two parts of the first.
  between = positions.zigzag(jnp.array([[1, 1, 1, 1, 1, 1, 2, 2]]), 2)
  layer = posjax.nnx.Attention(
    8, 2, posjax.get(line), causal=True, implementation=implementation, rngs=nnx.Rngs(0)
  )
  run = nnx.jit(lambda layer, x, pos, segments: layer(x, pos, segments=segments))
  # Cope sees gates of its own document alone.
  wrong = [one, positions.zigzag(two, 2), *([between] if line != 'cope' else [])]
  with jax.set_mesh(mesh(context=2)):
    for documents in wrong:
      with pytest.raises(ValueError, match='got another order'):
        layer(x, zigzag, segments=documents)
      assert jnp.isnan(run(layer, x, zigzag, documents)).all()
    for documents in (one, two):
      assert jnp.isfinite(run(layer, x, pos, documents)).all()
