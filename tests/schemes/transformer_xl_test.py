import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import shaw, transformer_xl
from tests.support import loops
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('transformer_xl')
CASES = ['c0', 'c2', 'c4']  # causal; with a memory, norm first; every query as many keys, clamp 3
attend = jax.jit(posjax.attend, static_argnums=3)
make = functools.cache(transformer_xl.scheme)
PLAIN, SHAW = posjax.Scheme(), shaw.scheme(2, values=False, per_head=True)
WIDTH, HEADS, KV_HEADS, HEAD_DIM = 8, 6, 2, 5


def _heads():
  """Two rows, 4 queries and 7 keys, 2 key heads for 6 queries': the same shapes compile once."""
  draw = np.random.default_rng(0).normal
  shapes = (2, 4, HEADS, HEAD_DIM), (2, 7, KV_HEADS, HEAD_DIM), (2, 7, KV_HEADS, HEAD_DIM)
  return [draw(size=shape).astype(np.float32) for shape in shapes]


def _params():
  draw = np.random.default_rng(1).normal
  shapes = {'u': (HEADS, HEAD_DIM), 'v': (HEADS, HEAD_DIM), 'w_r': (WIDTH, HEADS, HEAD_DIM)}
  return {n: 0.7 * draw(size=shape).astype(np.float32) for n, shape in shapes.items()}


def _out(scheme, params, q_pos, k_pos, seen=True, heads=None):
  ids = {'q_pos': np.broadcast_to(q_pos, (2, 4)), 'k_pos': np.broadcast_to(k_pos, (2, 7))}
  ids = {name: jnp.asarray(pos, jnp.int32) for name, pos in ids.items()}
  mask = np.broadcast_to(seen, (2, 1, 4, 7))
  q, k, v = map(jnp.asarray, heads or _heads())
  return attend(q, k, v, scheme, jax.tree.map(jnp.asarray, params), **ids, mask=jnp.asarray(mask))


def _sinusoid(distance, base=10000.0):
  """R of section 3.3 in float64, sines first."""
  angle = distance * base ** (-2.0 * np.arange(WIDTH // 2) / WIDTH)
  return np.concatenate([np.sin(angle), np.cos(angle)])


def _expected(params, q_pos, k_pos, seen=True, clip=None):
  """Attention by the four terms over sqrt(D), in float64, pair by pair. Ids [B, T] and [B, S]."""
  q, k, value = (x.astype(np.float64) for x in _heads())
  u, v, w_r = (params[name].astype(np.float64) for name in ('u', 'v', 'w_r'))
  logits = np.zeros((2, HEADS, 4, 7))
  for b, h, i, j in np.ndindex(logits.shape):
    distance = int(q_pos[b, i]) - int(k_pos[b, j])
    if clip is not None:
      distance = min(max(distance, -clip), clip)
    key = k[b, j, h * KV_HEADS // HEADS]
    relative = _sinusoid(distance) @ w_r[:, h]
    terms = q[b, i, h] @ key, q[b, i, h] @ relative, u[h] @ key, v[h] @ relative
    logits[b, h, i, j] = sum(terms) / np.sqrt(HEAD_DIM)
  return loops.attention(logits, seen, value)[0]


PLACES = {
  'memory': (np.arange(3, 7), np.arange(7)),  # the queries are the last tokens
  'arbitrary': (np.array([3, 0, 900, 4]), np.array([4, 40, 0, -5, 9, 9, 1200])),
  'far': (2**31 - 1 - np.arange(4), 2**31 - 8 + np.arange(7)),
}


@pytest.mark.parametrize('max_distance', [None, 2])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('place', PLACES)
def test_it_is_the_papers_four_terms(place, causal, max_distance):
  # A second row: the same ids, reversed.
  q_pos, k_pos = (np.stack([pos, pos[::-1]]) for pos in PLACES[place])
  seen = loops.causal(q_pos, k_pos) if causal else np.True_
  out = _out(make(max_distance=max_distance), _params(), q_pos, k_pos, seen)
  assert error(out, _expected(_params(), q_pos, k_pos, seen, max_distance)) < 1e-5


def _layer(weights, case, w):
  """The authors' layer around `attend`: normalization, projections, the residual. Time first."""
  get = lambda name: jnp.asarray(GOLDEN[f'{case}_{name}'], jnp.float32)
  queries, memory, _, heads, width, head_dim, norm_first = GOLDEN[f'{case}_meta']

  def norm(x):
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x * get('ln_g').reshape(1, 1, -1) + get('ln_b').reshape(1, 1, -1)

  tokens = jnp.concatenate([get('mems'), w]) if memory else w
  tokens = norm(tokens) if norm_first else tokens
  projected = (tokens @ weights['W_qkv'].T).swapaxes(0, 1)
  q, k, v = (x.reshape(*x.shape[:2], heads, head_dim) for x in jnp.split(projected, 3, axis=-1))
  w_r = weights['W_r'].T.reshape(width, heads, head_dim)
  scheme = transformer_xl.scheme(max_distance=3 if case == 'c4' else None)
  out = posjax.attend(
    *(q[:, memory:], k, v, scheme, {'u': weights['u'], 'v': weights['v'], 'w_r': w_r}),
    q_pos=memory + jnp.arange(queries),
    k_pos=jnp.arange(memory + queries),
    mask=~jnp.asarray(GOLDEN[f'{case}_mask_true_is_blocked']),
  )
  out = w + out.swapaxes(0, 1).reshape(*w.shape[:2], -1) @ weights['W_o'].T
  return out if norm_first else norm(out)


@pytest.mark.parametrize('case', CASES)
def test_a_layer_and_its_gradients_equal_the_authors(case):
  get = lambda name: jnp.asarray(GOLDEN[f'{case}_{name}'], jnp.float32)
  weights = {name: get(name) for name in ('W_qkv', 'W_r', 'W_o')}
  weights |= {'u': get('r_w_bias_u'), 'v': get('r_r_bias_v')}

  @jax.jit
  def run(weights, w, cotangent):
    out, back = jax.vjp(lambda weights, w: _layer(weights, case, w), weights, w)
    return out, *back(cotangent)

  out, grads, grad_w = run(weights, get('w'), get('cotangent'))
  assert error(out, GOLDEN[f'{case}_out']) < 1e-5
  for name, grad in {**grads, 'w': grad_w}.items():
    assert error(grad, GOLDEN[f'{case}_grad_{name}']) < 1e-5, name


@pytest.mark.parametrize(('case', 'clamp'), [('c0', None), ('c2', None), ('c4', 3)])
def test_the_sinusoid_equals_the_authors(case, clamp):
  # Their rows fall from the farthest distance to 0, and so do the first ones of the table.
  expected = GOLDEN[f'{case}_r']
  farthest, width = clamp or len(expected) - 1, expected.shape[1]
  identity = jnp.eye(width).reshape(width, 1, width)
  rows = np.asarray(jax.jit(transformer_xl.table, static_argnums=1)(identity, farthest)[0])
  assert error(rows[: farthest + 1], expected[-farthest - 1 :]) < 1e-6


def test_logits_depend_on_the_distance_only_at_every_position():
  back = np.array([0, 1, 5, 100, 5000, 65536, 131072])
  near = _out(make(), _params(), 0, -back)
  for start in (10**6, 10**9, 2**31 - 1):
    assert error(_out(make(), _params(), start, start - back), near) < 1e-5


@pytest.mark.parametrize('max_distance', [None, 2])
def test_all_zeros_are_no_positions(max_distance):
  params = jax.tree.map(np.zeros_like, _params())
  ids = np.arange(3, 7), np.arange(7)
  plain = _out(PLAIN, {}, *ids)
  assert error(_out(make(max_distance=max_distance), params, *ids), plain) < 1e-6


def _without_vectors(w_r):
  zeros = np.zeros((HEADS, HEAD_DIM), np.float32)
  return {'u': zeros, 'v': zeros, 'w_r': w_r}


@pytest.mark.parametrize(
  ('max_distance', 'q_pos'),
  [
    (None, np.array([2, 1, 2, 1])),  # no distance is above 2
    (2, np.array([9, 0, 4, 1])),
  ],
)
def test_without_the_two_vectors_it_is_shaws_key_term(max_distance, q_pos):
  """Text 000: of the four terms, Shaw's logits have the first two, with a table for W_R R."""
  w_r, k_pos = _params()['w_r'], np.array([0, 1, 2, 3, 3, 2, 0])
  # The table in float64, from the offset -2 on: the distance 2.
  rows = [_sinusoid(distance) for distance in (2, 1, 0, -1, -2)]
  keys = np.einsum('nm,mhd->hnd', rows, w_r.astype(np.float64)).astype(np.float32)
  expected = _out(SHAW, {'keys': keys}, q_pos, k_pos)
  found = _out(make(max_distance=max_distance), _without_vectors(w_r), q_pos, k_pos)
  assert error(found, expected) < 1e-5


def test_every_table_of_shaws_is_the_projection_of_some_w_r():
  """As soon as the model is wide enough for the sinusoids of 5 distances to be independent."""
  keys = np.random.default_rng(2).normal(size=(HEADS, 5, HEAD_DIM))  # of the offsets -2 .. 2
  rows = np.stack([_sinusoid(distance, 3.0) for distance in (2, 1, 0, -1, -2)])
  w_r = np.einsum('mn,hnd->mhd', np.linalg.pinv(rows), keys).astype(np.float32)
  ids = np.array([9, 0, 4, 1]), np.arange(7)
  out = _out(make(max_distance=2, base=3.0), _without_vectors(w_r), *ids)
  assert error(out, _out(SHAW, {'keys': keys.astype(np.float32)}, *ids)) < 1e-5


def test_without_queries_keys_have_a_score_and_distances_have_one():
  """The third and the fourth term: u . k, and a bias by distance."""
  params, (q, k, v) = _params(), _heads()
  ids = np.arange(3, 7), np.arange(7)
  out = _out(make(), params, *ids, heads=(0 * q, k, v))
  by_distance = [_sinusoid(distance) for distance in range(-6, 7)]
  scores = np.einsum('nm,mhd,hd->hn', by_distance, params['w_r'], params['v']) / np.sqrt(HEAD_DIM)
  bias = lambda params, distance: jnp.asarray(scores, jnp.float32)[:, distance + 6]
  same = np.broadcast_to(params['u'], q.shape)
  assert error(out, _out(posjax.Scheme(bias=bias), {}, *ids, heads=(same, k, v))) < 1e-5


def test_with_a_clamp_it_is_relative_beside_rope():
  scheme = posjax.chain(posjax.get('rope'), make(max_distance=2))
  even = lambda x: np.concatenate([x, x], axis=-1)  # RoPE needs an even width
  heads, params = list(map(even, _heads())), jax.tree.map(even, _params())
  near, far = (
    _out(scheme, ({}, params), start + 3, start + np.arange(7), heads=heads) for start in (0, 10**6)
  )
  assert error(far, near) < 1e-5


@pytest.mark.parametrize('max_distance', [None, 3])
def test_it_never_holds_a_vector_for_each_pair(key, max_distance):
  tokens, width = 48, 24
  x, pos = jnp.zeros((1, tokens, 2, width)), jnp.arange(tokens)
  scheme = transformer_xl.scheme(max_distance=max_distance)
  params = posjax.init(scheme, key, posjax.Dims(48, 2, width))
  loss = lambda q, p: posjax.attend(q, x, x, scheme, p, q_pos=pos, k_pos=pos).sum()
  jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, params)
  assert 2 * tokens * tokens <= _largest(jaxpr.jaxpr) < tokens * tokens * width


def _largest(jaxpr):
  """The size of the largest array of floats in a jaxpr."""
  sizes = [0]
  for equation in jaxpr.eqns:
    arrays = [v.aval for v in equation.outvars]
    sizes += [a.size for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, 'jaxpr')):
      if hasattr(inner, 'jaxpr'):
        sizes.append(_largest(inner.jaxpr))
  return max(sizes)


def test_the_two_vectors_are_shared_by_all_layers_or_are_each_layers_own(key):
  dims = posjax.Dims(WIDTH, HEADS, HEAD_DIM, KV_HEADS)
  tied, untied = make(), make(shared=False)
  shapes = lambda init: {
    name: leaf.shape for name, leaf in jax.eval_shape(lambda key: init(key, dims), key).items()
  }
  names = lambda init: sorted(shapes(init))
  assert (names(tied.init_model), names(tied.init)) == (['u', 'v'], ['w_r'])
  assert (names(untied.init_model), names(untied.init)) == ([], ['u', 'v', 'w_r'])
  assert shapes(untied.init) == {name: leaf.shape for name, leaf in _params().items()}


def test_initial_values_have_the_authors_deviation(key):
  dims = posjax.Dims(32, 8, 64)
  init = jax.jit(lambda key: [posjax.init(s, key, dims) for s in (make(), make(shared=False))])
  for params in init(key):
    u, v, w_r = (np.asarray(params[name]) for name in ('u', 'v', 'w_r'))
    assert all(0.018 < leaf.std() < 0.022 for leaf in (u, v, w_r))
    assert abs(u - v).max() > 0.01
    assert abs(u - w_r[0]).max() > 0.01


def test_float_ids_have_gradients_where_nothing_is_clamped():
  q, k, _ = (x[:1, :1, :1] for x in _heads())
  params = {'u': _params()['u'][:1], 'v': _params()['v'][:1], 'w_r': _params()['w_r'][:, :1]}
  arrays = jax.tree.map(jnp.asarray, params)

  def logit(pos):
    ids = jnp.full((1, 1), pos), jnp.full((1, 1), 0.25)
    sides = make().query(arrays, jnp.asarray(q), ids[0]), make().key(arrays, jnp.asarray(k), ids[1])
    return (sides[0] * sides[1]).sum()

  value, slope = jax.jit(jax.value_and_grad(logit))(jnp.float32(3.0))
  codes = [_sinusoid(distance) for distance in (2.75, 2.75 + 1e-5, 2.75 - 1e-5)]
  by_distance = np.einsum('nm,mhd,hd->n', codes, params['w_r'], q[0, 0] + params['v'])
  content = ((q[0, 0] + params['u']) * k[0, 0]).sum()
  np.testing.assert_allclose(value, content + by_distance[0], rtol=1e-5)
  np.testing.assert_allclose(slope, (by_distance[1] - by_distance[2]) / 2e-5, rtol=1e-5)


def test_a_clamp_needs_integer_ids():
  q, k, _ = map(jnp.asarray, _heads())
  params, pos = jax.tree.map(jnp.asarray, _params()), jnp.zeros((2, 7))
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    make(max_distance=2).logits(params, jnp.zeros(()), q, k, pos[:, :4], pos)


def test_an_odd_width_of_the_model_is_refused(key):
  message = 'as many sines as cosines, so an even width, but got 9'
  with pytest.raises(ValueError, match=message):
    transformer_xl.scheme().init(key, posjax.Dims(9, 3, 3))
  q, pos = jnp.zeros((1, 2, 3, 3)), jnp.zeros((1, 2), jnp.int32)
  params = {'u': jnp.zeros((3, 3)), 'v': jnp.zeros((3, 3)), 'w_r': jnp.zeros((9, 3, 3))}
  for side in (transformer_xl.scheme().query, transformer_xl.scheme().key):
    with pytest.raises(ValueError, match=message):
      side(params, q, pos)
  with pytest.raises(ValueError, match=message):
    transformer_xl.table(params['w_r'], 2)
