import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.network import layer_norm
from posjax.schemes import deberta
from tests.support import loops
from tests.support.draws import DRAW
from tests.support.paths import load_golden

GOLDEN = load_golden('deberta')
DIMS = posjax.Dims(6, 4, 4, 2)


@functools.partial(jax.jit, static_argnums=3)
def attend(q, k, v, scheme, params, q_pos, k_pos, mask=None):
  ready, q_at = posjax.prepare(scheme, params, q[:, :, 0], q_pos)
  k_at = posjax.prepare(scheme, params, k[:, :, 0], k_pos)[1]
  named = {'q_pos': q_pos, 'k_pos': k_pos, 'q_at': q_at, 'k_at': k_at}
  return posjax.attend(q, k, v, scheme, ready, **named, mask=mask)


@functools.partial(jax.jit, static_argnums=0)
def added(scheme, params, q, k, pos):
  """What the positions add to logits of zero."""
  ready = posjax.prepare(scheme, params, q[:, :, 0], pos)[0]
  shape = (*q.shape[:3:2], *q.shape[1:2], *k.shape[1:2])
  return scheme.logits(ready, jnp.zeros(shape), q, k, pos, pos)


def _parameters(scheme, dims=DIMS):
  """Random numbers of size 1/2 in place of the small initial ones."""
  leaves, tree = jax.tree.flatten(
    jax.eval_shape(lambda: posjax.init(scheme, jax.random.key(0), dims))
  )
  return jax.tree.unflatten(
    tree, [jnp.asarray(DRAW.normal(size=x.shape) / 2, x.dtype) for x in leaves]
  )


def _heads(dims=DIMS, queries=5, keys=7):
  shapes = (queries, dims.num_heads), *[(keys, dims.num_kv_heads)] * 2
  return [jnp.asarray(DRAW.normal(size=(2, *s, dims.head_dim)), jnp.float32) for s in shapes]


def _delta(i, j, k):
  """Eq. 3."""
  if i - j <= -k:
    return 0
  return 2 * k - 1 if i - j >= k else i - j + k


def _reference(q, k, v, params, q_pos, k_pos, span, terms, p2c_delta, bucket=lambda d: d):
  """Eq. 4 pair by pair; `p2c_delta(i, j)` is what that term looks up."""
  p = {name: np.asarray(x, np.float64) for name, x in params.items()}
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  width, group = q.shape[3], q.shape[2] // k.shape[2]
  logits = loops.content(q, k, scale=1.0)
  delta = lambda i, j: _delta(bucket(int(i) - int(j)), 0, span)
  for b, h, t, s in np.ndindex(logits.shape):
    i, j = q_pos[b][t], k_pos[b][s]
    if 'c2p' in terms:
      position_key = p['table'][delta(i, j)] @ p['w_k'][:, h // group]
      logits[b, h, t, s] += q[b, t, h] @ position_key
    if 'p2c' in terms:
      row = p['table'][delta(*p2c_delta(i, j))]
      logits[b, h, t, s] += k[b, s, h // group] @ (row @ p['w_q'][:, h] + p['b_q'][h])
  logits /= np.sqrt((1 + len(terms)) * width)
  return loops.attention(logits, True, v)[0]


IDS = np.array([[3, 0, 9, 4, 4], [0, 1, 2, 3, 4]]), np.array([[0, 3, 4, 5, 8, 9, 100]] * 2)
CODES = lambda i, j: (i, j)
PAPERS = lambda i, j: (j, i)


@pytest.mark.parametrize(
  ('arguments', 'terms', 'p2c_delta'),
  [
    ({}, ('c2p', 'p2c'), CODES),
    ({'p2c_reversed': True}, ('c2p', 'p2c'), PAPERS),
    ({'c2p': False}, ('p2c',), CODES),
    ({'p2c': False}, ('c2p',), CODES),
  ],
)
def test_it_is_the_papers_equations(arguments, terms, p2c_delta):
  scheme = deberta.scheme(4, **arguments)
  params, (q, k, v) = _parameters(scheme), _heads()
  out = attend(q, k, v, scheme, params, *map(jnp.asarray, IDS))
  expected = _reference(q, k, v, params, *IDS, 4, terms, p2c_delta)
  assert loops.error(out, expected) < 1e-5


def _codes_bucket(distance, buckets, max_distance):
  """The authors' make_log_bucket_position in float64, with 1e-9 against logarithms that exceed."""
  middle = buckets // 2
  if abs(distance) <= middle:
    return distance
  growth = np.log(abs(distance) / middle) / np.log((max_distance - 1) / middle)
  return int(np.sign(distance) * (np.ceil(growth * (middle - 1) - 1e-9) + middle))


def test_with_log_buckets_it_is_the_papers_equations():
  scheme, far = deberta.scheme(30, 6), jnp.array([[0, 2, 9, 40, 90], [0, 5, 7, 23, 29]])
  params, (q, k, v) = _parameters(scheme), _heads(keys=5)
  assert params['table'].shape == (12, 6)
  bucket = lambda d: _codes_bucket(d, 6, 30)
  expected = _reference(q, k, v, params, far, far, 6, ('c2p', 'p2c'), CODES, bucket)
  assert loops.error(attend(q, k, v, scheme, params, far, far), expected) < 1e-5


@pytest.mark.parametrize(
  ('buckets', 'max_distance'), [(256, 512), (8, 64), (32, 128), (4, 9), (10, 999)]
)
def test_buckets_are_the_authors_definition_at_every_distance(buckets, max_distance):
  distance = np.arange(-1100, 1101)
  got = deberta.bucket(jnp.asarray(distance), buckets, max_distance)
  expected = [_codes_bucket(d, buckets, max_distance) for d in distance.tolist()]
  np.testing.assert_array_equal(got, np.clip(expected, -buckets, buckets))


@pytest.mark.parametrize(('buckets', 'max_distance'), [(256, 512), (8, 64), (32, 128)])
def test_buckets_equal_hugging_face(buckets, max_distance):
  # Theirs grow on beyond the last one, where the index is clipped.
  expected = GOLDEN[f'logbucket_fn__b{buckets}_m{max_distance}'].clip(-buckets, buckets)
  distance = jnp.asarray(GOLDEN['logbucket_fn__rel'], jnp.int32)
  np.testing.assert_array_equal(deberta.bucket(distance, buckets, max_distance), expected)


def test_the_farthest_distances_are_in_the_last_buckets():
  ends = jnp.array([2**31 - 1, -(2**31), -(2**31) + 1], jnp.int32)
  np.testing.assert_array_equal(deberta.bucket(ends, 256, 512), [256, -256, -256])
  zero = jnp.array([0])
  np.testing.assert_array_equal(deberta.index(ends[:1], zero, 512, 256), [[511]])
  np.testing.assert_array_equal(deberta.index(zero, ends[:1], 512, 256), [[0]])
  assert deberta.thresholds(4, 2**31 - 1)[-1] == 2**31 - 1


@pytest.mark.parametrize('case', ['plain', 'c2ponly'])
def test_outputs_equal_hugging_face(case):
  get = lambda name: GOLDEN[f'{case}__{name}']
  weight = lambda name: get(f'w__{name}_proj.weight').T.reshape(16, 2, 8)
  offset = lambda name: get(f'w__{name}_proj.bias').reshape(2, 8)
  x = get('x')
  project = lambda name: np.einsum('btm,mhd->bthd', x, weight(name)) + offset(name)
  q, k, v = (jnp.asarray(project(name)) for name in ('query', 'key', 'value'))
  scheme = deberta.scheme(32, p2c=case == 'plain')
  params = {'table': get('rel_embeddings'), 'w_k': weight('pos_key')}
  if case == 'plain':
    params |= {'w_q': weight('pos_query'), 'b_q': offset('pos_query')}
  params = jax.tree.map(jnp.asarray, params)
  pos = jnp.broadcast_to(jnp.arange(10), (2, 10))
  mask = GOLDEN[f'{case}__mask']
  out = attend(q, k, v, scheme, params, pos, pos, jnp.asarray(mask)).reshape(2, 10, 16)
  sees = mask.any(-1)[:, 0]  # padding sees nothing: theirs is the mean of all values
  assert loops.error(out[sees], get('out')[sees]) < 1e-5
  # What is added, but for the bias of the position keys, the same for all keys of a query.
  terms = 3 if case == 'plain' else 2
  left_out = np.einsum('bthd,hd->bht', q, offset('pos_key'))[..., None] * (terms * 8) ** -0.5
  assert loops.error(added(scheme, params, q, k, pos) + left_out, get('rel_bias')) < 1e-5


def test_logits_depend_on_the_distance_only():
  scheme = deberta.scheme(6)
  params, (q, k, v) = _parameters(scheme), _heads()
  q_pos, k_pos = map(jnp.asarray, IDS)
  near = attend(q, k, v, scheme, params, q_pos, k_pos)
  for shift in (1, 10**6, -(10**9)):
    far = attend(q, k, v, scheme, params, q_pos + shift, k_pos + shift)
    np.testing.assert_array_equal(far, near)


def test_the_two_directions_of_p2c_differ_in_the_order_of_the_rows_only():
  # Between -k and k the rows of j - i are those of i - j, backwards; row 0 has no counterpart.
  q, k, v = _heads(keys=5)
  pos = jnp.broadcast_to(jnp.arange(5), (2, 5))
  code, paper = (deberta.scheme(6, c2p=False, p2c_reversed=r) for r in (False, True))
  params = _parameters(code)
  backwards = params | {'table': jnp.roll(params['table'][::-1], 1, axis=0)}
  out = attend(q, k, v, code, params, pos, pos)
  assert loops.error(attend(q, k, v, paper, backwards, pos, pos), out) < 1e-6
  assert loops.error(attend(q, k, v, paper, params, pos, pos), out) > 0.01


@pytest.mark.parametrize('terms', [0, 1, 2])
def test_a_table_of_zeros_is_content_over_the_root_of_the_terms(terms):
  scheme = deberta.scheme(6, c2p=terms > 0, p2c=terms > 1)
  params = jax.tree.map(lambda x: jnp.zeros(x.shape), _parameters(scheme))
  q, k, v = _heads()
  out = attend(q, k, v, scheme, params, *map(jnp.asarray, IDS))
  q, k, v = map(np.asarray, (q, k, v))
  expected = loops.attention(loops.content(q, k) / np.sqrt(1 + terms), True, v)[0]
  assert loops.error(out, expected) < 1e-5


def test_with_the_contents_own_projections_a_position_is_a_token():
  # share_att_key: a constant table row is then a token that every content meets twice.
  x, row, w_q, w_k = (DRAW.normal(size=s) / 2 for s in ((2, 5, 6), (6,), (6, 4, 4), (6, 4, 4)))
  q, k = (np.einsum('btm,mhd->bthd', x, w) for w in (w_q, w_k))
  params = {'table': np.tile(row, (4, 1)), 'w_q': w_q, 'w_k': w_k, 'b_q': np.zeros((4, 4))}
  params, *heads = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), [params, q, k])
  pos = jnp.broadcast_to(jnp.arange(5), (2, 5))
  token_q, token_k = (np.einsum('m,mhd->hd', row, w) for w in (w_q, w_k))
  expected = np.einsum('bthd,hd->bht', q, token_k)[..., None]
  expected = expected + np.einsum('bshd,hd->bhs', k, token_q)[:, :, None]
  assert loops.error(added(deberta.scheme(2), params, *heads, pos), expected / 12**0.5) < 1e-5


def test_normalized_rows_have_mean_0_and_variance_1():
  scheme = deberta.scheme(4, normalized=True)
  params, (q, k, v) = _parameters(scheme), _heads()
  table = np.asarray(params['table'], np.float64)
  rows = (table - table.mean(-1, keepdims=True)) / table.std(-1, keepdims=True)
  rows = rows * np.asarray(params['scale']) + np.asarray(params['offset'])
  plain = {name: params[name] for name in ('w_q', 'w_k', 'b_q')} | {'table': rows}
  out = attend(q, k, v, scheme, params, *map(jnp.asarray, IDS))
  assert loops.error(out, _reference(q, k, v, plain, *IDS, 4, ('c2p', 'p2c'), CODES)) < 1e-5


def test_a_row_of_equal_numbers_has_finite_gradients():
  norm = lambda x: (layer_norm(x, jnp.ones(4), jnp.zeros(4), 1e-7) * jnp.arange(4.0)[None]).sum()
  assert np.isfinite(jax.jit(jax.grad(norm))(jnp.full((2, 4), 3.0))).all()


def test_layers_share_the_table_and_have_their_own_projections(key):
  scheme, dims = deberta.scheme(512, 32), posjax.Dims(64, 6, 8, 2)
  shared, own = jax.jit(lambda: (scheme.init_model(key, dims), scheme.init(key, dims)))()
  assert jax.tree.map(jnp.shape, shared) == {'table': (64, 64)}
  shapes = {'w_q': (64, 6, 8), 'w_k': (64, 2, 8), 'b_q': (6, 8)}
  assert jax.tree.map(jnp.shape, own) == shapes
  for normal in (shared['table'], own['w_q'], own['w_k']):
    np.testing.assert_allclose(np.std(normal), 0.02, rtol=0.1)
  np.testing.assert_array_equal(own['b_q'], 0)
  assert abs(np.asarray(own['w_q'][:, :2]) - np.asarray(own['w_k'])).max() > 0.01
  shapes = lambda scheme: jax.eval_shape(lambda: posjax.init(scheme, key, dims))
  normalized = shapes(deberta.scheme(p2c=False, normalized=True))
  assert set(normalized) == {'table', 'scale', 'offset', 'w_k'}
  assert shapes(deberta.scheme())['table'].shape == (1024, 64)


def test_it_never_holds_a_vector_for_each_pair():
  scheme, tokens, width = deberta.scheme(3), 32, 24
  params = _parameters(scheme, posjax.Dims(8, 2, width))
  x, pos = jnp.zeros((1, tokens, 2, width)), jnp.arange(tokens)[None]
  loss = lambda q, p: attend.__wrapped__(q, x, x, scheme, p, pos, pos).sum()
  jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, params)
  assert 0 < _largest(jaxpr.jaxpr) < tokens * tokens * width


def _largest(jaxpr):
  """The size of the largest array of numbers in a jaxpr."""
  sizes = [0]
  for equation in jaxpr.eqns:
    arrays = [v.aval for v in equation.outvars]
    sizes += [a.size for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, 'jaxpr')):
      if hasattr(inner, 'jaxpr'):
        sizes.append(_largest(inner.jaxpr))
  return max(sizes)


@pytest.mark.parametrize('buckets', [None, 4])
def test_float_ids_are_refused(buckets):
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    deberta.index(jnp.arange(3.0), jnp.arange(3.0), 9, buckets)
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    deberta.bucket(jnp.zeros(2), 4, 9)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'buckets': 2}, 'even number of buckets, at least 4, but got 2'),
    ({'buckets': 7}, 'even number of buckets, at least 4, but got 7'),
    ({'buckets': 8, 'max_distance': 5}, 'of 8 buckets must be above 5, .* but got 5'),
    ({'p2c': False, 'p2c_reversed': True}, 'Only p2c can be reversed, but got p2c=False'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    deberta.scheme(**arguments)


@pytest.mark.parametrize(
  ('heads', 'kv_heads', 'first', 'count'), [(6, 3, 2, 2), (6, 3, 2, 4), (6, 6, 4, 1)]
)
def test_some_heads_get_their_own_position_keys_and_queries(heads, kv_heads, first, count):
  """Query heads share key heads, so those of the position keys are counted in key heads."""
  scheme, dims = deberta.scheme(2), posjax.Dims(8, heads, 4, kv_heads)
  params = posjax.init(scheme, jax.random.key(0), dims)
  ready, _ = scheme.prepare(params, None, None, None, None)
  shared = heads // kv_heads
  found = scheme.traits.tiled.cut_heads(ready, jnp.asarray(first), count, shared)
  queries = ready['queries'][:, first : first + count]
  keys = ready['keys'][:, first // shared : (first + count) // shared]
  np.testing.assert_array_equal(found['queries'], queries)
  np.testing.assert_array_equal(found['keys'], keys)
