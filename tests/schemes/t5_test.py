from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import t5
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('t5')
bucket = jax.jit(t5.bucket, static_argnums=(1, 2, 3))
attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
SIZES = [(32, 128), (32, 512), (64, 256), (16, 20), (8, 64), (8, 20), (16, 64)]


def _papers_bucket(distance, num_buckets, max_distance, bidirectional):
  """The authors' definition in float64, with 1e-12 against logarithms that fall short."""
  relative = -np.asarray(distance, np.int64)  # k_pos - q_pos
  start = 0
  if bidirectional:
    num_buckets //= 2
    start = num_buckets * (relative > 0)
    size = abs(relative)
  else:
    size = np.maximum(-relative, 0)
  exact = num_buckets // 2
  growth = np.log(np.maximum(size, 1) / exact) / np.log(max_distance / exact)
  far = exact + np.floor(growth * (num_buckets - exact) + 1e-12).astype(int)
  return start + np.where(size < exact, size, np.minimum(far, num_buckets - 1))


@pytest.mark.parametrize('bidirectional', [False, True])
@pytest.mark.parametrize(
  ('num_buckets', 'max_distance'), [*SIZES, (6, 9), (32, 100000), (128, 999)]
)
def test_it_is_the_authors_definition(num_buckets, max_distance, bidirectional):
  arguments = num_buckets, max_distance, bidirectional
  distance = np.concatenate([np.arange(-1100, 1101), [-(2**31) + 1, 2**31 - 1, 99999, 100000]])
  got = bucket(jnp.asarray(distance, jnp.int32), *arguments)
  np.testing.assert_array_equal(got, _papers_bucket(distance, *arguments))


@pytest.mark.parametrize('name', [n for n in GOLDEN.files if n.startswith('bucket_')])
def test_buckets_equal_hugging_face(name):
  _, way, num_buckets, max_distance = name.split('_')
  distance = jnp.asarray(-GOLDEN['relative_position'], jnp.int32)
  got = bucket(distance, int(num_buckets[2:]), int(max_distance[2:]), way == 'bi')
  np.testing.assert_array_equal(got, GOLDEN[name])


@pytest.mark.parametrize('name', [n for n in GOLDEN.files if n.startswith('t5_bucket_')])
def test_buckets_equal_flaxformer(name):
  way, num_buckets, max_distance = name.split('_')[2:]
  distance = jnp.asarray(-GOLDEN['t5_rel_key_minus_query'], jnp.int32)
  got = bucket(distance, int(num_buckets[1:]), int(max_distance[3:]), way == 'bidir1')
  np.testing.assert_array_equal(got, GOLDEN[name])


@pytest.mark.parametrize('way', ['bi', 'causal'])
def test_biases_equal_hugging_face(way):
  table = jnp.asarray(GOLDEN[f'table_{way}'])
  q_pos = {
    'q24_k40': (np.arange(24), 40),
    'decode_q1_k40_offset39': (np.array([39]), 40),
    'lastrows_q200_k200': (np.array([198, 199]), 200),
  }
  for name, (rows, keys) in q_pos.items():
    distance = jnp.asarray(rows[:, None] - np.arange(keys))
    got = t5.bias(table, distance, bidirectional=way == 'bi')
    np.testing.assert_array_equal(got, GOLDEN[f'bias_{way}_{name}'][0])


@pytest.mark.parametrize('way', ['bidir', 'causal'])
def test_biases_equal_flaxformer(way):
  table = jnp.asarray(GOLDEN['t5_table_heads_buckets'].T, jnp.float32)
  distance = jnp.arange(5)[:, None] - jnp.arange(7)[None]
  got = t5.bias(table, distance, bidirectional=way == 'bidir')
  np.testing.assert_array_equal(got, GOLDEN[f't5_bias_q5_k7_{way}'].astype(np.float32))


@pytest.mark.parametrize(('num_buckets', 'max_distance'), [*SIZES, (5, 7), (2, 2), (20, 2**31 - 1)])
def test_thresholds_are_the_least_distances_of_their_buckets(num_buckets, max_distance):
  thresholds = t5.thresholds(num_buckets, max_distance)
  exact = num_buckets // 2
  rest = num_buckets - exact
  assert thresholds.shape == (num_buckets - 1,)
  np.testing.assert_array_equal(thresholds[:exact], np.arange(1, exact + 1))
  for j, least in enumerate(thresholds[exact:].tolist(), 1):
    # least / exact >= (max_distance / exact)^(j / rest) > (least - 1) / exact, exactly
    bound = Fraction(max_distance, exact) ** j
    assert Fraction(least, exact) ** rest >= bound > Fraction(least - 1, exact) ** rest


@pytest.mark.parametrize('bidirectional', [False, True])
def test_the_farthest_distances_fall_into_the_last_buckets(bidirectional):
  ends = jnp.array([2**31 - 1, -(2**31), -(2**31) + 1], jnp.int32)
  expected = [15, 31, 31] if bidirectional else [31, 0, 0]
  np.testing.assert_array_equal(bucket(ends, 32, 128, bidirectional), expected)
  largest = bucket(ends, 32, 2**31 - 1, bidirectional)
  assert largest[0] == expected[0]


@pytest.mark.parametrize('bidirectional', [False, True])
def test_only_the_two_directions_differ_beyond_the_sign(bidirectional):
  distance = jnp.arange(1, 300)
  ahead, back = bucket(-distance, 32, 128, bidirectional), bucket(distance, 32, 128, bidirectional)
  np.testing.assert_array_equal(ahead, back + 16 if bidirectional else jnp.zeros_like(back))
  assert (jnp.diff(back) >= 0).all()


def test_a_table_of_equal_steps_is_alibi_where_each_distance_has_a_bucket():
  slopes = jnp.array([0.5, 0.125])
  table = jnp.outer(-jnp.arange(64.0), slopes)
  distance = jnp.arange(32)
  alibi = posjax.get('alibi(learned=True)').bias({'slopes': slopes}, distance)
  np.testing.assert_array_equal(t5.bias(table, distance), alibi)


def test_a_table_of_zeros_is_no_positions(key):
  q, k, v = jax.random.normal(key, (3, 2, 5, 2, 4))
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(5)}
  out = attend(q, k, v, t5.scheme(), {'table': jnp.zeros((32, 2))}, **ids)
  most = 0 if jax.default_backend() == 'cpu' else 1e-6  # a GPU fuses the two in other ways
  assert error(out, attend(q, k, v, posjax.Scheme(), {}, **ids)) <= most


def test_attention_has_the_bias_after_the_scaling(key):
  scheme = t5.scheme(8, 20, bidirectional=True)
  params = posjax.init(scheme, key, posjax.Dims(4, 2, 4))
  q, k, v = jax.random.normal(key, (3, 1, 9, 2, 4))
  out = attend(q, k, v, scheme, params, q_pos=jnp.arange(9), k_pos=jnp.arange(9))
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  buckets = _papers_bucket(np.subtract.outer(np.arange(9), np.arange(9)), 8, 20, True)
  logits = np.einsum('bthd,bshd->bhts', q, k) / 2
  logits += np.moveaxis(np.asarray(params['table'], np.float64)[buckets], -1, 0)
  weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  expected = np.einsum('bhts,bshd->bthd', weights, v)
  assert abs(out - expected).max() / abs(expected).max() < 1e-5


def test_the_gradient_of_a_row_is_the_sum_over_its_distances():
  table = jnp.zeros((8, 1))
  weights = jnp.arange(1.0, 31.0)
  loss = lambda table: (t5.bias(table, jnp.arange(30), max_distance=20)[0] * weights).sum()
  expected = np.bincount(_papers_bucket(np.arange(30), 8, 20, False), weights, 8)
  np.testing.assert_allclose(jax.grad(loss)(table)[:, 0], expected)


def test_the_table_is_the_models_or_the_layers(key):
  dims = posjax.Dims(width=400, num_heads=50, head_dim=8)
  shared, own = t5.scheme(), t5.scheme(shared=False)
  table = shared.init_model(key, dims)['table']
  assert table.shape == (32, 50)
  assert shared.init(key, dims) == own.init_model(key, dims) == {}
  np.testing.assert_array_equal(own.init(key, dims)['table'], table)
  np.testing.assert_allclose(table.std(), 400**-0.5, rtol=0.05)


def test_float_ids_are_refused():
  with pytest.raises(TypeError, match='T5 counts whole tokens and needs integer ids, but'):
    t5.scheme().bias({'table': jnp.zeros((32, 1))}, jnp.zeros((2, 2)))


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_buckets': 31, 'bidirectional': True}, 'even number of buckets, but got 31'),
    ({'num_buckets': 2, 'bidirectional': True}, 'at least 2 buckets for each direction, but got 1'),
    ({'num_buckets': 1}, 'at least 2 buckets for each direction, but got 1'),
    ({'max_distance': 16}, 'of 32 buckets must be above 16, .* but got 16'),
    ({'max_distance': 8, 'bidirectional': True}, 'of 16 buckets must be above 8, .* but got 8'),
    ({'max_distance': 2**31}, 'max_distance must be an integer of 32 bits, but got 2147483648'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    t5.scheme(**arguments)
