"""The NNX layer: `attend` between projections."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posjax
from posjax.layers.tokens import Tokens
from posjax.nnx import Attention, Constant, Latent, Norm, Parameters
from tests.support.loops import error
from tests.support.toy_schemes import TOYS

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
  one = layer(TABLES, use_bias=True, sinks=True, logit_cap=2.0, window=(2, 0), scale=0.3)
  bias = jax.random.normal(jax.random.key(5), (4, LENGTH, LENGTH))
  one.sinks[...] = jnp.array([1.0, -1.0, 0.5, 3.0])
  params = {name: variable[...] for name, variable in one.scheme_params.items()}

  def expected(x):
    sides = one.query, one.key, one.value
    q, k, v = (jnp.einsum('btm,mhd->bthd', x, side.kernel[...]) for side in sides)
    out = posjax.attend(
      q, k, v, TABLES, params, q_pos=POS, k_pos=POS, causal=True, sinks=one.sinks[...],
      logit_cap=2.0, window=3, scale=0.3, bias=bias,
    )  # fmt: skip
    return jnp.einsum('bthd,hdm->btm', out, one.out.kernel[...])

  assert error(run(one, x, POS, bias=bias), jax.jit(expected)(x)) < TOLERANCE


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
  params = {'w': one.scheme_params['w'][...]}
  prepare = functools.partial(posjax.prepare, one.layer.scheme)

  def expected(x, y):
    q, k, v = one.query(x), one.key(y), one.value(y)
    out = posjax.attend(
      q, k, v, one.layer.scheme, params, q_pos=POS, k_pos=POS[:4],
      q_at=prepare(params, x, POS)[1], k_at=prepare(params, y, POS[:4])[1],
    )  # fmt: skip
    return one.out(out)

  assert error(run(one, x, POS, x_kv=y, kv_pos=POS[:4]), jax.jit(expected)(x, y)) < TOLERANCE


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
  one, still = layer(posjax.get('rope'), dropout_rate=0.5), layer(posjax.get('rope'))
  dropped = run(one, x, POS, dropout_key=jax.random.key(1))
  assert error(run(one, x, POS, dropout_key=jax.random.key(1)), dropped) == 0
  assert error(run(one, x, POS, dropout_key=jax.random.key(2)), dropped) > 0.1
  assert error(run(still, x, POS, dropout_key=jax.random.key(1)), run(still, x, POS)) == 0


def test_dropout_without_a_key_is_refused_unless_the_call_is_deterministic(x, unchecked):
  one, still = layer(posjax.get('rope'), dropout_rate=0.5), layer(posjax.get('rope'))
  with pytest.raises(ValueError, match='needs a dropout_key, or deterministic=True to drop none'):
    one(x, POS)
  with pytest.raises(ValueError, match=r'rate of 0\.5, so a call needs a dropout_key'):
    one(x, POS, deterministic=False)
  expected = still(x, POS)
  assert error(one(x, POS, deterministic=True), expected) == 0
  assert error(one(x, POS, deterministic=True, dropout_key=jax.random.key(1)), expected) == 0
  assert error(nnx.view(one, deterministic=True)(x, POS), expected) == 0
  one.eval()
  assert error(one(x, POS), expected) == 0
  one.train()
  with pytest.raises(ValueError, match='but got neither'):
    one(x, POS)
  with pytest.raises(TypeError, match=r'dropout_key must be one random key, as .* but got 7'):
    one(x, POS, dropout_key=7)
  with pytest.raises(TypeError, match="deterministic must be True or False, but got 'no'"):
    one(x, POS, deterministic='no')


BEFORE = ('sinusoidal', 'learned', 'fourier', 'sinusoidal+rope', 'interpolated+rope', 'randomized')


@pytest.mark.parametrize('line', BEFORE)
def test_a_scheme_that_acts_before_the_layers_needs_a_model_that_calls_it(line):
  scheme = posjax.get(line)
  place = 'place 1, x = scheme.embed' if 'embed' in posjax.places(scheme) else 'place 0, ids = sch'
  told = 'model must call this, and say so by model_places=True, but got model_places=False'
  with pytest.raises(ValueError, match=f'acts before the first layer .{place}.*{told}'):
    layer(scheme)
  with pytest.raises(ValueError, match=told):
    posjax.attention_fn(scheme, {}, q_pos=POS)
  assert layer(scheme, model_places=True).layer.scheme == scheme


def test_a_model_that_calls_the_first_places_knows_the_order_of_tokens(x):
  scheme = posjax.get('sinusoidal')
  one = Attention(WIDTH, 4, scheme, model_places=True, rngs=nnx.Rngs(0))
  row = x[:1]
  model = jax.jit(lambda x: one(scheme.embed({}, x, None, POS[None]), POS))
  moved = row[:, ::-1]
  assert error(model(moved)[:, ::-1], model(row)) > 0.1
  bare = lambda x: posjax.attend(*[jnp.einsum('btm,mhd->bthd', x, p.kernel[...]) for p in (
    one.query, one.key, one.value)], scheme, {},
    q_pos=POS, k_pos=POS, model_places=True)  # fmt: skip
  placed = one.out(bare(scheme.embed({}, row, None, POS[None])))
  assert error(model(row), placed) < TOLERANCE


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


@pytest.mark.usefixtures('eight_devices')
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


@pytest.mark.usefixtures('eight_devices')
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


NAN, HUGE = float('nan'), 2**31
WRONG = [
  ({'num_heads': 3}, 'heads must divide the width unless head_dim is given, but got 3 and 16'),
  ({'num_kv_heads': 3}, 'key heads must divide the query heads, but got 3 and 4'),
  ({'num_kv_heads': 0}, 'num_kv_heads must be an integer of at least 1 .*, but got 0'),
  ({'num_heads': 0}, 'num_heads must be an integer of at least 1 .*, but got 0'),
  (
    {'num_heads': -4, 'num_kv_heads': -2},
    'num_heads must be an integer of at least 1 .*, but got -4',
  ),
  ({'num_heads': 0, 'head_dim': 4}, 'num_heads must be an integer of at least 1 .*, but got 0'),
  ({'num_heads': 4.0}, 'num_heads must be an integer, but got 4.0'),
  ({'num_heads': True}, 'num_heads must be an integer, but got True'),
  ({'num_kv_heads': '2'}, "num_kv_heads must be an integer, but got '2'"),
  ({'head_dim': 0}, 'head_dim must be an integer of at least 1 .*, but got 0'),
  ({'head_dim': 2.5}, 'head_dim must be an integer, but got 2.5'),
  ({'window': 0}, 'window must be an integer of at least 1 .*, but got 0'),
  ({'window': 1.5}, 'window must be an integer .* or None, but got 1.5'),
  ({'window': NAN}, 'window must be an integer .* or None, but got nan'),
  ({'window': HUGE}, 'window must be an integer .* below 2.31, .* but got 2147483648'),
  ({'logit_cap': NAN}, 'The logit cap must be a finite number above 0, but got nan'),
  ({'logit_cap': 0.0}, 'logit cap must be a finite number above 0, but got 0.0'),
  ({'logit_cap': '2'}, "The logit cap must be a finite number above 0, or None, but got '2'"),
  ({'scale': float('inf')}, 'The scale must be a finite number, but got inf'),
  (
    {'scale': np.ones(2)},
    r'The scale must be a finite number or None, but got an array float64\[2\]',
  ),
  ({'dropout_rate': 1.0}, r'dropout rate must be a finite number .* below 1, but got 1.0'),
  ({'dropout_rate': NAN}, r'dropout rate must be a finite number .* below 1, but got nan'),
  ({'dropout_rate': None}, 'The dropout rate must be a finite number, but got None'),
  ({'causal': 'no'}, "causal must be True or False, but got 'no'"),
  ({'use_bias': 1}, 'use_bias must be True or False, but got 1'),
  ({'sinks': None}, 'sinks must be True or False, but got None'),
  ({'out_bias': 'no'}, "out_bias must be True or False or None, but got 'no'"),
  ({'value_dim': 0}, 'value_dim must be an integer of at least 1 .*, but got 0'),
  ({'value_dim': 2.5}, 'value_dim must be an integer .* or None, but got 2.5'),
  (
    {'value_dim': 3, 'scheme': posjax.get('shaw')},
    r'adds vectors of head_dim numbers .*, so value_dim must be head_dim, 4, .* but got 3',
  ),
  ({'qk_norm': 'l2'}, "qk_norm must be one of 'rms', 'layer', but got 'l2'"),
  ({'qk_norm': True}, "qk_norm must be None, 'rms', 'layer' or a Norm, but got True"),
  ({'qk_norm': Norm('rms', 0.0)}, r'qk_norm\.epsilon must be a finite number above 0, but got 0.0'),
  (
    {'qk_norm': Norm('rms', heads='all')},
    r"qk_norm\.heads must be one of 'alike', 'apart', 'together', but got 'all'",
  ),
  ({'latent': 4}, 'latent must be a Latent or None, but got 4'),
  ({'latent': Latent(0)}, r'latent\.rank must be an integer of at least 1 .*, but got 0'),
  (
    {'latent': Latent(4, shared=4)},
    r'latent\.shared must be below head_dim, 4, .*, but got 4',
  ),
  ({'latent': Latent(4, 2, 2.5)}, r'latent\.query_rank must be an integer .*, but got 2\.5'),
  ({'bias_init': 0.0}, 'bias_init must be an initializer, but got 0.0'),
  ({'model_params': 'False'}, "model_params must be True or False, but got 'False'"),
  ({'model_places': 1}, 'model_places must be True or False, but got 1'),
  ({'scheme': 'rope'}, r"scheme must be a posjax\.Scheme, .* but got 'rope'"),
  ({'implementation': 'flash'}, "must be None or one of .*'dense'.*, but got 'flash'"),
  ({'implementation': ['dense']}, r"must be None or one of .*, but got .'dense'"),
  ({'dtype': np.ones(2)}, 'dtype must be a dtype of real or complex numbers, but got an array'),
  ({'dtype': 'float33'}, "dtype must be a dtype of real or complex numbers, but got 'float33'"),
  ({'dtype': jnp.int32}, 'dtype must be a dtype of real or complex numbers, but got .*int32'),
  ({'param_dtype': None}, 'param_dtype must be a dtype of real or complex numbers, but got None'),
  ({'kernel_init': 1.0}, 'kernel_init must be an initializer, but got 1.0'),
  ({'sharding': 'model'}, "sharding must be a tuple of three mesh axes, but got 'model'"),
  ({'sharding': (3, None, None)}, 'a mesh axis, a tuple of mesh axes, or None .* but got 3'),
  ({'sharding': ((), None, None)}, r'None for each of M, H and D, but got \(\)'),
  ({'sharding': (('m', 3), None, None)}, r"or None for each of M, .* got \('m', 3\)"),
  ({'sharding': ('model',)}, r"sharding must name the mesh axes .*, but got \('model',\)"),
]  # what linen refuses alike; see linen_test


LISTED = ({'sharding': (['m'], None, None)}, r"or None for each of M, .* got \['m'\]")
# A module of linen makes a tuple of a list by itself.


@pytest.mark.parametrize(('kwargs', 'message'), [*WRONG, LISTED], ids=lambda v: str(v)[:40])
def test_wrong_arguments_are_refused(kwargs, message, unchecked):
  with pytest.raises((TypeError, ValueError), match=message):
    layer(**kwargs)(ONES, POS)


def test_wrong_widths_and_random_streams_are_refused(unchecked):
  for width, message in (
    (0, 'an integer of at least 1 .*, but got 0'),
    ('16', "an integer, but got '16'"),
  ):
    with pytest.raises((TypeError, ValueError), match=f'width must be {message}'):
      Attention(width, 4, rngs=nnx.Rngs(0))
  for rngs in (jax.random.key(0), 0, None):
    with pytest.raises(TypeError, match=r'rngs must be nnx\.Rngs, but got'):
      layer(rngs=rngs)
  with pytest.raises(ValueError, match='must have a stream params'):
    layer(rngs=nnx.Rngs(dropout=0))


def test_numbers_of_numpy_and_of_jax_are_numbers(unchecked):
  one = layer(
    num_heads=np.int64(4), scale=np.float32(0.5), logit_cap=jnp.array(2.0), window=np.int32(2)
  )
  assert (one.layer.scale, one.layer.logit_cap) == (0.5, 2.0)


PAST = Tokens(jnp.ones((BATCH, 2, WIDTH)), POS[:2])
ONES = jnp.ones((BATCH, LENGTH, WIDTH))
WRONG_INPUTS = [
  ({'x': ONES[0]}, r'x must be \[B, T, 16\], but got shape \(6, 16\)'),
  ({'x': ONES[..., :8]}, r'x must be \[B, T, 16\], but got shape \(8, 6, 8\)'),
  ({'x': [[[1.0] * 16]]}, 'x must be an array, but got list'),
  ({'x': None}, 'x must be an array, but got NoneType'),
  ({'x': ONES > 0}, 'x must be numbers, but got bool'),
  ({'pos': POS[:5]}, r'pos must be \(8, 6\) or \(6,\), but got \(5,\)'),
  ({'pos': range(6)}, 'pos must be an array, but got range'),
  ({'pos': POS > 0}, 'pos must be signed integers or float32, but got bool'),
  ({'pos': POS.astype(jnp.bfloat16)}, 'pos must be signed integers or float32, but got bfloat16'),
  ({'pos': jnp.ones((8, 6, 2), int)}, r'pos must be \(8, 6\) or \(6,\), but got \(8, 6, 2\)'),
  ({'order': POS[:3]}, r'order must be \(8, 6\) or \(6,\), but got \(3,\)'),
  ({'order': ONES}, r'order must be \(8, 6\) or \(6,\), but got \(8, 6, 16\)'),
  ({'order': 'left'}, 'order must be an array, but got str'),
  ({'segments': POS[:, None]}, r'segments must be \(8, 6\) or \(6,\), but got \(6, 1\)'),
  ({'segments': POS * 1.0}, 'segments must be integers, but got float32'),
  ({'segments': [1] * 6}, 'segments must be an array, but got list'),
  ({'x_kv': ONES}, 'x_kv needs kv_pos, the ids of its tokens, but got none'),
  ({'kv_pos': POS, 'kv_order': POS}, 'kv_pos, kv_order belong to x_kv, but got no x_kv'),
  ({'x_kv': ONES[..., :3], 'kv_pos': POS}, r'x_kv must be \[B, T, 16\], but got shape \(8, 6, 3'),
  ({'x_kv': ONES[:2], 'kv_pos': POS}, r'x_kv must have the rows of x, 8, but got shape \(2, 6, 16'),
  ({'x_kv': ONES, 'kv_pos': POS[:2]}, r'kv_pos must be \(8, 6\) or \(6,\), but got \(2,\)'),
  ({'x_kv': ONES, 'kv_pos': POS, 'kv_order': 1}, 'kv_order must be an array, but got int'),
  ({'x_kv': ONES, 'kv_pos': POS, 'segments': POS}, 'segments need kv_segments as well'),
  ({'x_kv': ONES, 'kv_pos': POS, 'kv_segments': POS}, 'kv_segments need segments as well'),
  ({'mask': [True]}, 'mask must be an array of JAX or NumPy, but got'),
  ({'mask': POS * 1.0}, 'mask must be boolean, True may attend, but got float32'),
  ({'past': ONES}, 'past must be posjax.layers.tokens.Tokens, but got an object of type'),
  ({'past': PAST._replace(pos=POS)}, r'past.pos must be \(8, 2\) or \(2,\), but got \(6,\)'),
  ({'past': PAST._replace(x=ONES[..., :2])}, r'past.x must be \[B, T, 16\], but got shape'),
  ({'past': PAST, 'order': POS}, 'with past there can be no x_kv and no order'),
  ({'model_params': 3}, 'model_params must be a tuple of 3 dicts.* got 3'),
  ({'model_params': {}}, r'model_params must be a tuple of 3 dicts.* got \{\}'),
  ({'model_params': ({},)}, 'model_params must be a tuple of 3 dicts, .* but got 1 dicts'),
]  # what linen refuses alike; see linen_test


def test_wrong_inputs_are_refused(unchecked):
  one = layer()
  for kwargs, message in WRONG_INPUTS:
    with pytest.raises((TypeError, ValueError), match=message):
      one(**{'x': ONES, 'pos': POS, **kwargs})


WRONG_CACHES = [
  ({'batch': 0}, 'batch must be an integer of at least 1 .*, but got 0'),
  ({'batch': 2.0}, 'batch must be an integer, but got 2.0'),
  ({'capacity': None}, 'needs a capacity, the tokens in all, but got none'),
  ({'capacity': 0}, 'capacity must be an integer of at least 1 .*, but got 0'),
  ({'capacity': '9'}, "capacity must be an integer, but got '9'"),
  ({'dtype': 'int8'}, "dtype must be a dtype of real or complex numbers, but got 'int8'"),
  ({'pos_dtype': 'bfloat16'}, "pos_dtype must be int32 or float32, but got 'bfloat16'"),
  ({'pos_dtype': None}, 'pos_dtype must be int32 or float32, but got None'),
  ({'axes': 0}, 'axes must be an integer of at least 1 .*, but got 0'),
  ({'axes': 2}, 'axes must be 1, as the scheme has it, but got 2'),
]


def test_wrong_caches_are_refused(unchecked):
  one = layer()
  for kwargs, message in WRONG_CACHES:
    with pytest.raises((TypeError, ValueError), match=message):
      one.init_cache(**{'batch': BATCH, 'capacity': 9, **kwargs})
  cache = one.init_cache(BATCH, 9)
  extend = lambda **kwargs: one.extend(**{'x': ONES, 'cache': cache, 'pos': POS, **kwargs})
  with pytest.raises(TypeError, match='cache must be one of init_cache, but got NoneType'):
    extend(cache=None)
  with pytest.raises(TypeError, match='cache must be one of init_cache, but got tuple'):
    extend(cache=tuple(cache))
  with pytest.raises(TypeError, match='k of the cache must be an array, but got NoneType'):
    extend(cache=cache._replace(k=None))
  with pytest.raises(ValueError, match=r'must be that of one layer, whose k has 4 axes, but got'):
    extend(cache=jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), cache))
  with pytest.raises(ValueError, match=r'must have the rows of x, 2, but got segments \(8, 9\)'):
    extend(x=ONES[:2])
  with pytest.raises(ValueError, match=r'k must be \(8, 6, 4, 4\) for this cache, but got'):
    extend(cache=layer(num_kv_heads=4).init_cache(BATCH, 9))
  with pytest.raises(ValueError, match=r'x must be \[B, T, 16\], but got shape \(8, 6, 3\)'):
    extend(x=ONES[..., :3])
  with pytest.raises(ValueError, match=r'pos must be \(8, 6\) or \(6,\), but got \(2,\)'):
    extend(pos=POS[:2])
  with pytest.raises(ValueError, match=r'segments must be \(8, 6\) or \(6,\), but got \(2,\)'):
    extend(segments=POS[:2])
  with pytest.raises(ValueError, match='9 slots, 0 of them taken, so 12 tokens do not fit'):
    extend(x=jnp.ones((BATCH, 12, WIDTH)), pos=jnp.arange(12))
  with pytest.raises(ValueError, match='must be causal, but got causal=False'):
    layer(causal=False).extend(ONES, cache, POS)


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
