import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import t5, tupe
from tests.support import loops
from tests.support.draws import DRAW

DIMS = posjax.Dims(6, 4, 4, 2)


@functools.partial(jax.jit, static_argnums=3)
def attend(q, k, v, scheme, params, q_pos, k_pos):
  ready, q_at = posjax.prepare(scheme, params, q[:, :, 0], q_pos)
  k_at = posjax.prepare(scheme, params, k[:, :, 0], k_pos)[1]
  named = {'q_pos': q_pos, 'k_pos': k_pos, 'q_at': q_at, 'k_at': k_at}
  return posjax.attend(q, k, v, scheme, ready, **named)


def _shapes(scheme, dims=DIMS):
  return jax.eval_shape(lambda: posjax.init(scheme, jax.random.key(0), dims))


def _parameters(scheme):
  """Random numbers of size 1/2 in place of the small initial ones."""
  return jax.tree.map(
    lambda x: jnp.asarray(DRAW.normal(size=x.shape) / 2, x.dtype), _shapes(scheme)
  )


def _heads(queries=5, keys=7, kv_heads=2):
  shapes = (queries, 4), *[(keys, kv_heads)] * 2
  return [jnp.asarray(DRAW.normal(size=(2, *shape, 4)), jnp.float32) for shape in shapes]


IDS = np.array([[3, 0, 9, 4, 4], [0, 1, 2, 3, 0]]), np.array([[0, 3, 4, 5, 8, 9, 1]] * 2)


def _reference(q, k, v, params, q_pos, k_pos, bias=None, untie_cls=False):
  """Sections 3.1 and 3.2 pair by pair; `bias(h, j - i)` is T5's."""
  p = {name: np.asarray(x, np.float64) for name, x in params.items()}
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  width, group = q.shape[3], q.shape[2] // k.shape[2]
  table = p['table'] - p['table'].mean(-1, keepdims=True)
  table = table / np.sqrt((table**2).mean(-1, keepdims=True) + 1e-5) * p['scale'] + p['offset']
  logits = loops.content(q, k, scale=(2 * width) ** -0.5)
  for b, h, t, s in np.ndindex(logits.shape):
    i, j = q_pos[b][t], k_pos[b][s]
    positional = (table[i] @ p['u_q'][:, h]) @ (table[j] @ p['u_k'][:, h // group])
    positional /= np.sqrt(2 * width)
    if bias is not None:
      positional += bias(h, j - i)
    if untie_cls and i == 0:
      positional = p['theta'][0, h]
    elif untie_cls and j == 0:
      positional = p['theta'][1, h]
    logits[b, h, t, s] += positional
  return loops.attention(logits, True, v)[0]


def _buckets(table):
  """T5's bias for 4 buckets of each direction with max_distance 8: 0, 1, 2-3, 4 and farther."""

  def bias(h, offset):
    row = [0, 1, 2, 2, *[3] * 9][abs(offset)] + 4 * (offset > 0)
    return float(table[row, h])

  return bias


@pytest.mark.parametrize('untie_cls', [False, True])
@pytest.mark.parametrize('num_buckets', [None, 8])
def test_it_is_the_papers_equations(untie_cls, num_buckets):
  scheme = tupe.scheme(10, untie_cls, num_buckets, max_distance=8)
  params, (q, k, v) = _parameters(scheme), _heads()
  out = attend(q, k, v, scheme, params, *map(jnp.asarray, IDS))
  bias = None if num_buckets is None else _buckets(np.asarray(params['buckets']))
  assert loops.error(out, _reference(q, k, v, params, *IDS, bias, untie_cls)) < 1e-5


def test_with_cls_tied_the_relative_variant_is_a_chain_with_t5():
  both, (q, k, v) = tupe.scheme(10, num_buckets=8, max_distance=8), _heads()
  params, pos = _parameters(both), [jnp.asarray(ids) for ids in IDS]
  chained = posjax.chain(tupe.scheme(10), t5.scheme(8, 8, bidirectional=True))
  parts = ({n: x for n, x in params.items() if n != 'buckets'}, {'table': params['buckets']})
  out = attend(q, k, v, both, params, *pos)
  assert loops.error(attend(q, k, v, chained, parts, *pos), out) < 1e-6


def _positional(scheme, params, pos):
  """The logits of heads of zeros at `pos`: the positional term alone, [H, T, T]."""
  pos = jnp.asarray(pos)[None]
  zero = jnp.zeros((1, pos.shape[1], 4, 4))
  params, at = posjax.prepare(scheme, params, zero[:, :, 0], pos)
  q, k = scheme.query(params, zero, at), scheme.key(params, zero[:, :, :2], at)
  product = posjax.math.heads.product(q, k) / 2
  return np.asarray(scheme.logits(params, product, zero, zero[:, :, :2], at, at))[0]


def test_an_untied_cls_stands_nowhere():
  scheme = tupe.scheme(6, untie_cls=True)
  params = _parameters(scheme)
  tied = _positional(tupe.scheme(6), params, range(6))
  found = _positional(scheme, params, range(6))
  theta = np.asarray(params['theta'])
  np.testing.assert_allclose(found[:, 0], np.tile(theta[0][:, None], (1, 6)), rtol=1e-6)
  np.testing.assert_allclose(found[:, 1:, 0], np.tile(theta[1][:, None], (1, 5)), rtol=1e-6)
  np.testing.assert_allclose(found[:, 1:, 1:], tied[:, 1:, 1:], rtol=1e-6)


def test_the_relative_bias_leaves_an_untied_cls_alone():
  with_bias = tupe.scheme(6, untie_cls=True, num_buckets=8)
  params = _parameters(with_bias)
  found = _positional(with_bias, params, range(6))
  without = _positional(tupe.scheme(6, untie_cls=True), params, range(6))
  for row in ((slice(None), 0), (slice(None), slice(None), 0)):
    np.testing.assert_array_equal(found[row], without[row])
  assert (abs(found - without)[:, 1:, 1:] > 1e-3).all()


def test_the_positional_term_is_the_same_for_every_content():
  # With keys all alike, the content of a query cannot prefer one, and the weights are positions'.
  scheme, pos = tupe.scheme(10), jnp.broadcast_to(jnp.arange(5), (2, 5))
  params, (q, k, v) = _parameters(scheme), _heads(5, 5)
  alike = jnp.broadcast_to(k[:, :1], k.shape)
  out = attend(q, alike, v, scheme, params, pos, pos)
  np.testing.assert_allclose(attend(-3 * q, alike, v, scheme, params, pos, pos), out, atol=2e-5)


def test_projections_of_zeros_are_content_over_the_root_of_2():
  scheme, (q, k, v) = tupe.scheme(10), _heads()
  params = _parameters(scheme) | {'u_q': jnp.zeros((6, 4, 4))}
  out = attend(q, k, v, scheme, params, *map(jnp.asarray, IDS))
  q, k, v = map(np.asarray, (q, k, v))
  expected = loops.attention(loops.content(q, k) / np.sqrt(2), True, v)[0]
  assert loops.error(out, expected) < 1e-5


@pytest.mark.parametrize('untie_cls', [False, True])
def test_ids_beyond_the_table_give_nan(untie_cls):
  scheme, (q, k, v) = tupe.scheme(10, untie_cls), _heads(4, 4)
  params = _parameters(scheme)
  q_pos = jnp.array([[1, 10, -1, 2**31 - 1], [9, 8, 7, 6]])
  k_pos = jnp.array([[1, 2, 3, 4], [1, 2, 3, 4]])
  out = attend(q, k, v, scheme, params, q_pos, k_pos)
  np.testing.assert_array_equal(np.isnan(out).all((2, 3)), [[0, 1, 1, 1], [0, 0, 0, 0]])
  np.testing.assert_array_equal(np.isnan(out).any((2, 3)), [[0, 1, 1, 1], [0, 0, 0, 0]])


def test_every_parameter_is_the_models(key):
  scheme, dims = tupe.scheme(64, True, 32), posjax.Dims(64, 6, 8, 2)
  assert scheme.init(key, dims) == {}
  made = jax.tree.map(np.asarray, jax.jit(lambda: scheme.init_model(key, dims))())
  shapes = {'table': (64, 64), 'u_q': (64, 6, 8), 'u_k': (64, 2, 8), 'buckets': (32, 6)}
  for name, shape in shapes.items():
    assert made[name].shape == shape
    np.testing.assert_allclose(made[name].std(), 0.02, rtol=0.15)
  assert abs(made['u_q'][:, :2] - made['u_k']).max() > 0.01
  np.testing.assert_array_equal(made['theta'], np.zeros((2, 6)))
  np.testing.assert_array_equal([made['scale'], made['offset']], [np.ones(64), np.zeros(64)])
  assert set(_shapes(tupe.scheme())) == {'table', 'u_q', 'u_k', 'scale', 'offset'}
  assert _shapes(tupe.scheme())['table'].shape == (512, 6)


def test_theta_has_gradients_from_its_own_pairs_only():
  cls = jnp.array([[True, False, False]])
  weights = jnp.arange(9.0).reshape(1, 1, 3, 3)
  loss = lambda theta: (tupe.untied(theta, cls, cls) * weights).sum()
  grad = jax.jit(jax.grad(loss))(jnp.ones((2, 1)))
  np.testing.assert_array_equal(grad, [[0 + 1 + 2], [3 + 6]])


def test_float_ids_are_refused():
  scheme, x = tupe.scheme(10), jnp.zeros((1, 2, 4, 4))
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    scheme.query({'u_q': jnp.zeros((10, 4, 4))}, x, jnp.zeros((1, 2)))


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_buckets': 7}, 'even number of buckets, but got 7'),
    ({'num_buckets': 2}, 'at least 2 buckets for each direction, but got 1'),
    ({'num_buckets': 32, 'max_distance': 8}, 'max_distance of 16 buckets must be above 8'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    tupe.scheme(**arguments)
