import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.heads import product
from posjax.schemes import tener, transformer_xl
from tests.support import loops
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('tener')
CODE = {'key_term': True, 'endpoint': True, 'key_minus_query': True}
HEADS, KV_HEADS = 6, 2
attend = jax.jit(posjax.attend, static_argnums=3)
make = functools.cache(tener.scheme)


def _heads(width=6):
  """Two rows, 4 queries and 7 keys, 2 key heads for 6 queries': the same shapes compile once."""
  draw = np.random.default_rng(0).normal
  shapes = (2, 4, HEADS, width), (2, 7, KV_HEADS, width), (2, 7, KV_HEADS, width)
  return [draw(size=shape).astype(np.float32) for shape in shapes]


def _params(width=6):
  draw = np.random.default_rng(1).normal
  return {name: 0.7 * draw(size=(HEADS, width)).astype(np.float32) for name in ('u', 'v')}


def _out(scheme, params, q_pos, k_pos, heads=None):
  ids = {'q_pos': np.broadcast_to(q_pos, (2, 4)), 'k_pos': np.broadcast_to(k_pos, (2, 7))}
  ids = {name: jnp.asarray(pos, jnp.int32) for name, pos in ids.items()}
  q, k, v = map(jnp.asarray, heads or _heads())
  return attend(q, k, v, scheme, jax.tree.map(jnp.asarray, params), **ids)


def _sinusoid(offset, width, endpoint=False, even=False):
  """R in float64: the sines (even: zeros), the cosines, and a zero if the width is odd."""
  half = width // 2
  exponent = np.arange(half) / (half - 1) if endpoint else 2 * np.arange(half) / width
  angle = offset * 10000.0**-exponent
  return np.concatenate([np.sin(angle) * (not even), np.cos(angle), np.zeros(width % 2)])


def _logit(
  q,
  k,
  u,
  v,
  offset,
  scaled=False,
  key_term=False,
  endpoint=False,
  key_minus_query=False,
  even=False,
):
  """One pair: the paper's four terms, and what the code adds. `offset` is q_pos - k_pos."""
  width = len(q)
  offset = -offset if key_minus_query else offset
  relative = _sinusoid(offset, width, endpoint, even)
  logit = q @ k + q @ relative + u @ k + v @ relative
  if key_term:
    logit += k @ _sinusoid(-offset, width, endpoint, even)
  return logit / np.sqrt(width) if scaled else logit


PLACES = {
  'last': (np.arange(3, 7), np.arange(7)),
  'arbitrary': (np.array([3, 0, 900, 4]), np.array([4, 40, 0, -5, 9, 9, 1200])),
  'far': (2**31 - 1 - np.arange(4), 2**31 - 8 + np.arange(7)),
}


@pytest.mark.parametrize(
  ('options', 'width'),
  [
    ({}, 6),
    (CODE, 6),
    (CODE, 5),
    ({'scaled': True, 'key_term': True}, 6),
    ({'endpoint': True}, 5),
    ({'even': True, 'key_term': True}, 5),
  ],
)
def test_it_is_the_papers_four_terms_and_the_codes_fifth(options, width):
  q, k, v = _heads(width)
  params = _params(width)
  for q_pos, k_pos in PLACES.values():
    out = _out(make(**options), params, q_pos, k_pos, (q, k, v))
    logits = np.zeros((2, HEADS, 4, 7))
    for b, h, i, j in np.ndindex(logits.shape):
      pair = q[b, i, h], k[b, j, h * KV_HEADS // HEADS], params['u'][h], params['v'][h]
      pair = [x.astype(np.float64) for x in pair]
      logits[b, h, i, j] = _logit(*pair, int(q_pos[i]) - int(k_pos[j]), **options)
    assert error(out, loops.attention(logits, np.True_, v)[0]) < 1e-5


@pytest.mark.parametrize('case', ['c0', 'c2'])
def test_a_layer_and_its_gradients_equal_the_authors(case):
  get = lambda name: jnp.asarray(GOLDEN[f'{case}_{name}'], jnp.float32)
  scheme = make(scaled=case == 'c2', **CODE)
  params = {'u': get('r_r_bias_u_content'), 'v': get('r_w_bias_v_position')}
  batch, length, _ = get('x').shape
  tokens = jnp.asarray(GOLDEN[f'{case}_mask_true_is_token']).reshape(batch, 1, 1, length)
  seen, pos = jnp.broadcast_to(tokens, (batch, 1, length, length)), jnp.arange(length)

  def layer(x, weights, params):
    heads = (batch, length, *params['u'].shape)
    q, k, v = (part.reshape(heads) for part in jnp.split(x @ weights.T, 3, axis=-1))
    out = posjax.attend(q, k, v, scheme, params, q_pos=pos, k_pos=pos, mask=seen)
    return out.reshape(batch, length, -1)

  @jax.jit
  def run(cotangent, *arguments):
    out, back = jax.vjp(layer, *arguments)
    return out, *back(cotangent)

  out, x, weights, grads = run(get('cotangent'), get('x'), get('W_qkv'), params)
  assert error(out, GOLDEN[f'{case}_out']) < 1e-5
  assert error(x, GOLDEN[f'{case}_grad_x']) < 1e-5
  assert error(weights, GOLDEN[f'{case}_grad_W_qkv']) < 1e-5
  assert error(grads['u'], GOLDEN[f'{case}_grad_r_r_bias']) < 1e-5
  assert error(grads['v'], GOLDEN[f'{case}_grad_r_w_bias']) < 1e-5


def _table(offsets, width, **options):
  """R(offset) [N, D], number by number: the logits of unit queries with keys of zeros."""
  scheme = make(scaled=True, **options)
  params = {'u': jnp.zeros((width, width)), 'v': jnp.zeros((width, width))}
  q, k = jnp.eye(width).reshape(1, 1, width, width), jnp.zeros((1, len(offsets), 1, width))
  here, there = jnp.zeros((1, 1), jnp.int32), jnp.asarray(offsets, jnp.int32)[None]

  @jax.jit
  def read(q, k):
    return product(scheme.query(params, q, here), scheme.key(params, k, -there))

  return np.asarray(read(q, k))[0, :, 0].T


@pytest.mark.parametrize('width', [4, 5, 8, 30])
def test_r_equals_the_authors_table(width):
  expected = GOLDEN[f'relpos_d{width}_L6_f64']  # of -6 .. 5
  assert error(_table(np.arange(-6, 6), width, endpoint=True), expected) < 1e-6


def test_a_negative_offset_differs_in_the_half_of_the_sines_only():
  offsets = np.array([1, 2, 3, 50, 1000])
  for endpoint in (False, True):
    ahead, back = (_table(o, 6, endpoint=endpoint) for o in (offsets, -offsets))
    np.testing.assert_allclose(back[:, :3], -ahead[:, :3], atol=1e-6)
    np.testing.assert_allclose(back[:, 3:], ahead[:, 3:], atol=1e-6)
    assert abs(ahead[:, :3]).min() > 1e-5  # and in all of it
    assert error(ahead, [_sinusoid(o, 6, endpoint) for o in offsets]) < 1e-6


def test_queries_without_sines_cannot_tell_left_from_right():
  q, k, v = _heads()
  params = _params()
  q[..., :3], params['v'][:, :3] = 0, 0
  outs = [_out(make(), params, 4, 4 + side * np.arange(7), (q, k, v)) for side in (1, -1)]
  assert error(*outs) < 1e-6
  # No more can it where the sines are zero, whatever queries and v are; else it can.
  outs = [_out(make(even=True), _params(), 4, 4 + side * np.arange(7)) for side in (1, -1)]
  assert error(*outs) < 1e-6
  outs = [_out(make(), _params(), 4, 4 + side * np.arange(7)) for side in (1, -1)]
  assert error(*outs) > 1e-2


@pytest.mark.parametrize('options', [{}, {'key_term': True, 'endpoint': True}])
def test_the_direction_is_the_sign_of_the_sines_weights(options):
  """As if the first half of W_Q's, W_K's, u's and v's numbers were negated."""
  (q, k, v), params = _heads(), _params()
  sign = np.array([-1, -1, -1, 1, 1, 1], np.float32)
  ids = PLACES['arbitrary']
  out = _out(make(**options), params, *ids)
  negated = {name: sign * leaf for name, leaf in params.items()}
  other = _out(make(**options, key_minus_query=True), negated, *ids, (sign * q, sign * k, v))
  assert error(other, out) < 1e-5


def test_logits_depend_on_the_distance_only_at_every_position():
  back = np.array([0, 1, 5, 100, 5000, 65536, 131072])
  near = _out(make(**CODE), _params(), 0, -back)
  for start in (10**6, 10**9, 2**31 - 1):
    assert error(_out(make(**CODE), _params(), start, start - back), near) < 1e-5


def test_scaled_it_is_transformer_xl_without_a_projection():
  params, ids = _params(), PLACES['arbitrary']
  identity = np.broadcast_to(np.eye(6, dtype=np.float32).reshape(6, 1, 6), (6, HEADS, 6))
  expected = _out(transformer_xl.scheme(), {**params, 'w_r': identity}, *ids)
  assert error(_out(make(scaled=True), params, *ids), expected) < 1e-5


def test_initial_values_are_glorot_normal(key):
  params = jax.jit(lambda key: posjax.init(make(), key, posjax.Dims(512, 16, 240)))(key)
  deviation = np.sqrt(2 / (16 + 240))
  for leaf in params.values():
    assert leaf.shape == (16, 240)
    np.testing.assert_allclose(np.asarray(leaf).std(), deviation, rtol=0.05)
  assert abs(params['u'] - params['v']).max() > deviation


def test_a_head_too_narrow_for_a_sine_and_a_cosine_is_refused():
  x, pos = jnp.zeros((1, 2, 3, 1)), jnp.zeros((1, 2), jnp.int32)
  params = {'u': jnp.zeros((3, 1)), 'v': jnp.zeros((3, 1))}
  for side in (make().query, make().key):
    with pytest.raises(ValueError, match='so heads of width 2, but got 1'):
      side(params, x, pos)
