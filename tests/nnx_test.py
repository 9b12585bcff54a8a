"""The NNX layer: `attend` between projections."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posjax
from posjax.nnx import Attention, Constant, Parameters
from tests.loops import error
from tests.toy_schemes import TOYS

BATCH, LENGTH, WIDTH = 8, 6, 16
TOLERANCE = 1e-5
SHARED, TABLES = TOYS['shared_table'], TOYS['two_tables']
CHAINED = posjax.chain(TOYS['forgetful'], posjax.get('alibi'), SHARED)


def layer(scheme=CHAINED, num_heads=4, **kwargs):
  kwargs = {'num_kv_heads': 2, 'causal': True, 'rngs': nnx.Rngs(0)} | kwargs
  return Attention(WIDTH, num_heads, scheme, **kwargs)


@pytest.fixture
def x():
  return jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))


POS = jnp.arange(LENGTH)


def run(one, x, pos, **kwargs):
  return jax.jit(functools.partial(one, **kwargs))(x, pos)


def numbers(module, kind):
  return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, kind)))


def test_the_layer_is_attend_between_projections(x):
  one = layer(TABLES, use_bias=True, sinks=True, logit_cap=2.0, window=3, scale=0.3)
  one.sinks[...] = jnp.array([1.0, -1.0, 0.5, 3.0])
  q, k, v = (jnp.einsum('btm,mhd->bthd', x, p.kernel[...]) for p in (one.query, one.key, one.value))
  params = {name: variable[...] for name, variable in one.scheme_params.items()}
  out = posjax.attend(
    q, k, v, TABLES, params, q_pos=POS, k_pos=POS, causal=True, sinks=one.sinks[...],
    logit_cap=2.0, window=3, scale=0.3,
  )  # fmt: skip
  assert error(run(one, x, POS), jnp.einsum('bthd,hdm->btm', out, one.out.kernel[...])) < TOLERANCE


def test_cross_attention_is_attend_with_two_sides(x):
  one = layer(posjax.chain(TABLES, posjax.get('rope')), causal=False)
  y, kv_pos = x[:, :4] * 2, jnp.array([7, 1, 3, 2])
  segments = jnp.array([1, 1, 1, 0]), jnp.array([1, 1, 1, 1, 1, 1])
  found = run(one, x, POS, x_kv=y, kv_pos=kv_pos, segments=segments[1], kv_segments=segments[0])
  expected = run(one, x, POS, x_kv=y[:, :3], kv_pos=kv_pos[:3])
  assert error(found, expected) < TOLERANCE
  assert error(run(one, x, POS, x_kv=x, kv_pos=POS), run(one, x, POS)) < TOLERANCE


def test_each_side_of_cross_attention_is_prepared_from_its_own_input(x):
  one = layer(TOYS['forgetful'], causal=False)
  y = x[:, :4] * 2
  q, k, v = one.query(x), one.key(y), one.value(y)
  params = {'w': one.scheme_params['w'][...]}
  prepare = one.layer.scheme.prepare
  out = posjax.attend(
    q, k, v, one.layer.scheme, params, q_pos=POS, k_pos=POS[:4],
    q_at=prepare(params, x, POS, None)[1], k_at=prepare(params, y, POS[:4], None)[1],
  )  # fmt: skip
  assert error(run(one, x, POS, x_kv=y, kv_pos=POS[:4]), one.out(out)) < TOLERANCE


def test_a_mask_an_order_and_segments_hide_what_they_say(x):
  one = layer(posjax.get('alibi'), causal=False)
  expected = run(layer(posjax.get('alibi')), x, POS)
  assert error(run(one, x, POS, mask=POS[:, None] >= POS[None]), expected) < TOLERANCE
  reverse = run(layer(posjax.get('alibi')), x[:, ::-1], POS[::-1], order=POS[::-1])[:, ::-1]
  assert error(reverse, expected) < TOLERANCE
  packed = run(layer(posjax.get('alibi')), x, POS, segments=jnp.array([1, 1, 1, 2, 2, 2]))
  assert error(packed[:, 3:], run(layer(posjax.get('alibi')), x[:, 3:], POS[3:])) < TOLERANCE


def test_later_tokens_have_exactly_zero_gradients(x):
  def earlier(x):
    return jnp.square(run(layer(), x, POS)[:, :3]).sum()

  gradient = jax.jit(jax.grad(earlier))(x)
  np.testing.assert_array_equal(gradient[:, 3:], 0)
  assert (abs(gradient[:, :3]).max(axis=-1) > 0).all()


def test_two_ids_per_token_need_an_order_to_be_causal(x):
  one = layer(TOYS['streets'])
  pos = jnp.stack([POS // 3, POS % 3], axis=-1)
  with pytest.raises(ValueError, match='2 ids per token, so causal and window need q_order'):
    run(one, x, pos)
  whole = run(one, x, pos, order=POS)
  assert error(whole[:, :4], run(one, x[:, :4], pos[:4], order=POS[:4])) < TOLERANCE


def test_dropout_needs_a_key_and_is_a_function_of_it(x):
  one = layer(posjax.get('rope'), dropout_rate=0.5)
  assert error(run(one, x, POS), run(layer(posjax.get('rope')), x, POS)) == 0
  dropped = run(one, x, POS, dropout_key=jax.random.key(1))
  assert error(run(one, x, POS, dropout_key=jax.random.key(1)), dropped) == 0
  assert error(run(one, x, POS, dropout_key=jax.random.key(2)), dropped) > 0.1
  still = layer(posjax.get('rope'))
  assert error(run(still, x, POS, dropout_key=jax.random.key(1)), run(still, x, POS)) == 0


def test_bfloat16_is_near_float32(x):
  narrow = run(layer(dtype=jnp.bfloat16), x, POS)
  assert narrow.dtype == jnp.bfloat16
  assert error(narrow.astype(jnp.float32), run(layer(), x, POS)) < 0.03
  weights = layer(param_dtype=jnp.bfloat16)
  assert weights.query.kernel[...].dtype == jnp.bfloat16
  assert weights(x.astype(jnp.bfloat16), POS).dtype == jnp.bfloat16


def test_parameters_are_the_projections_and_the_scheme_and_constants_are_apart():
  plain = 16 * 4 * 4 * 2 + 16 * 2 * 4 * 2
  assert numbers(layer(posjax.get('rope')), nnx.Param) == plain
  assert numbers(layer(posjax.get('rope'), use_bias=True), nnx.Param) == plain + 16 * 2 + 8 * 2
  assert numbers(layer(posjax.get('rope'), sinks=True), nnx.Param) == plain + 4
  assert numbers(layer(posjax.get('rope'), head_dim=6), nnx.Param) == plain * 6 // 4
  assert numbers(layer(posjax.get('alibi')), nnx.Param) == plain
  assert numbers(layer(posjax.get('alibi')), Constant) == 4
  assert numbers(layer(TABLES), nnx.Param) == plain + 2 * 9 * 4
  shared, own = 9 * 16, 2 * 16 * 4 * 4
  assert numbers(layer(SHARED), nnx.Param) == plain + shared + own
  assert numbers(layer(SHARED, model_params=False), nnx.Param) == plain + own


def test_parameters_have_plain_names():
  state = nnx.to_pure_dict(nnx.state(layer(CHAINED)))
  assert set(state) == {'query', 'key', 'value', 'out', 'scheme_params', 'model_params'}
  assert {name: set(part) for name, part in state['scheme_params'].items()} == {
    '0': {'w'}, '1': {'slopes'}, '2': {'w_q', 'w_k'}
  }  # fmt: skip
  assert {name: set(part) for name, part in state['model_params'].items()} == {'2': {'table'}}


def test_shared_parameters_are_given_or_held(x):
  held, bare = layer(CHAINED), layer(CHAINED, model_params=False)
  with pytest.raises(ValueError, match='this layer holds none, so model_params must be given'):
    run(bare, x, POS)
  shared = CHAINED.init_model(jax.random.key(9), held.layer.dims)
  given = run(bare, x, POS, model_params=shared)
  assert error(run(held, x, POS, model_params=shared), given) < TOLERANCE
  held.model_params['2']['table'][...] = shared[2]['table']
  assert error(run(held, x, POS), given) < TOLERANCE


def mesh():
  return jax.make_mesh((4, 2), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)


def test_nothing_is_annotated_by_default_and_names_are_placed_where_asked():
  kept = layer().query.kernel.get_metadata()
  assert not {'out_sharding', 'sharding', 'sharding_names'} & set(kept)
  with jax.set_mesh(mesh()):
    one = layer(sharding=(None, 'model', None), use_bias=True, sinks=True)
    specs = nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(one)))
  split = PartitionSpec(None, 'model', None)
  assert specs['query'] == {'kernel': split, 'bias': PartitionSpec('model', None)}
  assert specs['out'] == {'kernel': PartitionSpec('model', None, None), 'bias': PartitionSpec(None)}
  assert specs['sinks'] == PartitionSpec('model')
  assert one.key.kernel[...].sharding.spec == split


def test_eight_devices_say_what_one_says(x):
  one = layer(sinks=True)
  expected = run(one, x, POS)
  grid = mesh()
  with jax.set_mesh(grid):
    many = layer(sinks=True, sharding=(None, 'model', None))
    graph, state = nnx.split(many)
    rows = NamedSharding(grid, PartitionSpec('data'))
    step = jax.jit(lambda state, x: nnx.merge(graph, state)(x, POS), out_shardings=rows)
    found = step(state, jax.device_put(x, rows))
  assert len(found.sharding.device_set) == 8
  assert error(found, expected) < TOLERANCE


def test_new_ids_do_not_retrace(x):
  one, traces = layer(posjax.get('rope+alibi')), []

  @jax.jit
  def call(pos):
    traces.append(1)
    return run(one, x, pos)

  for start in (0, 5, 2**20):
    call(POS + start)
  assert len(traces) == 1


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'num_heads': 3}, 'heads must divide the width unless head_dim is given, but got 3 and 16'),
    ({'num_kv_heads': 3}, 'key heads must divide the query heads, but got 3 and 4'),
    ({'window': 0}, 'window must be at least 1, the query itself, but got 0'),
    ({'dropout_rate': 1.0}, r'dropout rate must be in \[0, 1\), but got 1.0'),
  ],
)
def test_wrong_sizes_are_refused(kwargs, message):
  with pytest.raises(ValueError, match=message):
    layer(**kwargs)


def test_wrong_inputs_are_refused(x, unchecked):
  one = layer()
  with pytest.raises(ValueError, match=r'x must be \[B, T, 16\], but got shape \(6, 16\)'):
    one(x[0], POS)
  with pytest.raises(ValueError, match=r'pos must be \(8, 6\) or \(6,\), but got \(5,\)'):
    run(one, x, POS[:5])
  with pytest.raises(ValueError, match='x_kv needs kv_pos, the ids of its tokens, but got none'):
    run(one, x, POS, x_kv=x)
  with pytest.raises(ValueError, match='kv_pos, kv_order belong to x_kv, but got no x_kv'):
    run(one, x, POS, kv_pos=POS, kv_order=POS)


def test_heads_default_to_one_key_head_each_and_no_positions(x):
  one = Attention(WIDTH, 4, rngs=nnx.Rngs(0))
  assert one.layer.scheme == posjax.Scheme()
  assert one.key.kernel[...].shape == (16, 4, 4)
  moved = functools.partial(jnp.roll, shift=2, axis=1)  # an encoder without positions
  assert error(one(moved(x), POS), moved(run(one, x, POS))) < TOLERANCE


def test_a_model_holds_shared_parameters_trained_apart_from_constants():
  scheme, dims = posjax.get('t5+alibi'), posjax.Dims(8, 2, 4)
  shared = Parameters(scheme, posjax.init(scheme, jax.random.key(0), dims))
  trained = jax.tree.leaves(nnx.state(shared, nnx.Param))
  constant = jax.tree.leaves(nnx.state(shared, Constant))
  assert [x.shape for x in trained] == [(32, 2)]
  assert [x.shape for x in constant] == [(2,)]
  table, slopes = shared()
  assert table['table'].shape == (32, 2)
  np.testing.assert_allclose(slopes['slopes'], [2**-4, 2**-8])
