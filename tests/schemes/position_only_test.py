import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import factored, position_only
from tests.support.loops import attention, error
from tests.support.paths import load_golden

GOLDEN = load_golden('position_only')
DIMS = posjax.Dims(width=6, num_heads=4, head_dim=3, num_kv_heads=2)
attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='scale')


def _heads(key):
  q = jax.random.normal(key, (2, 5, 4, 3))
  k, v = jax.random.normal(jax.random.fold_in(key, 1), (2, 2, 7, 2, 3))
  q_pos = jnp.array([[3, 0, 11, 4, 4], [0, 1, 2, 3, 4]])
  k_pos = jnp.array([[0, 3, 4, 5, 8, 9, 11], [6, 5, 4, 3, 2, 1, 0]])
  return q, k, v, {'q_pos': q_pos, 'k_pos': k_pos}


def test_logits_are_the_projected_positions_pair_by_pair(key):
  scheme = position_only.scheme(12)
  params = posjax.init(scheme, key, DIMS)
  q, k, v, ids = _heads(key)
  table, to_q, to_k = (np.asarray(params[n], np.float64) for n in ('table', 'query', 'key'))
  logits = np.zeros((2, 4, 5, 7))
  for b, h, t, s in np.ndindex(logits.shape):
    one = table[ids['q_pos'][b, t]] @ to_q[:, h]
    other = table[ids['k_pos'][b, s]] @ to_k[:, h // 2]
    logits[b, h, t, s] = sum(one * other) / np.sqrt(3)
  expected, _ = attention(logits, np.array(True), np.asarray(v))
  assert error(attend(q, k, v, scheme, params, **ids), expected) < 1e-5


def _norm(x):
  """The authors' layer norm of 2018: unbiased deviation, and 1e-3 added to it."""
  get = lambda name: jnp.asarray(GOLDEN[f'old_position_only_param_layer_norm.{name}'], jnp.float32)
  scaled = (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + 1e-3)
  return scaled * get('a_2')[None] + get('b_2')[None]


def test_values_and_gradients_equal_the_authors_layer_of_position_alone():
  get = lambda name: jnp.asarray(GOLDEN[f'old_position_only_{name}'], jnp.float32)
  weights = {name: get(f'param_w_{name}s').swapaxes(0, 1) for name in 'qkv'}
  params = {'table': get('qk_inp'), 'query': weights['q'], 'key': weights['k']}
  pos, packed = jnp.arange(8), jnp.array([1] * 5 + [2] * 3)  # a row of the table for each token
  where = {'q_pos': pos, 'k_pos': pos, 'q_segments': packed, 'k_segments': packed}
  nothing = jnp.zeros((8, 2, 4))
  scheme = position_only.scheme(8)
  mixed = lambda v: posjax.attend(nothing, nothing, v, scheme, params, **where, scale=8**-0.5)

  def layer(x):
    out = mixed(jnp.einsum('tm,mhd->thd', x, weights['v'])).reshape(8, 8)
    return _norm(x + out @ get('param_proj.weight').T)

  @jax.jit
  def backward(x, cotangent):
    out, back = jax.vjp(layer, x)
    return out, back(cotangent)[0]

  out, grad = backward(get('x_packed'), get('cotangent'))
  assert error(out, GOLDEN['old_position_only_out_packed']) < 1e-5
  assert error(grad, GOLDEN['old_position_only_grad_x']) < 1e-5
  each = jax.jit(mixed)(jnp.broadcast_to(jnp.eye(8)[:, None], (8, 2, 8))).swapaxes(0, 1)
  expected = GOLDEN['old_position_only_attn_headmajor'].reshape(2, 2, 5, 5)
  assert error(each[:, :5, :5], expected[:, 0]) < 1e-5
  assert error(each[:, 5:, 5:], expected[:, 1, :3, :3]) < 1e-5


def test_words_do_not_decide_whom_a_token_looks_at(key):
  q, k, v, ids = _heads(key)
  scheme = position_only.scheme(12)
  params = posjax.init(scheme, key, DIMS)
  out = attend(q, k, v, scheme, params, **ids)
  np.testing.assert_array_equal(out, attend(-3 * q, 1 - k, v, scheme, params, **ids))
  assert error(attend(q, k, 2 * v, scheme, params, **ids), 2 * out) < 1e-6


def test_the_factored_scheme_without_content_is_this_one_divided_by_the_root_of_two(key):
  q, k, v, ids = _heads(key)
  scheme, other = position_only.scheme(12), factored.scheme(12, content=False)
  params = posjax.init(scheme, key, DIMS)
  chex.assert_trees_all_equal(params, posjax.init(other, key, DIMS))
  found = attend(q, k, v, other, params, **ids, scale=(2 / 3) ** 0.5)
  assert error(found, attend(q, k, v, scheme, params, **ids)) < 1e-6


def test_with_one_row_a_hot_table_gives_the_product_of_two_tables(key):
  # Where the table is the identity, W_q and W_k are tables of queries and keys themselves.
  scheme = position_only.scheme(6)
  params = {**scheme.init(key, DIMS), 'table': jnp.eye(6)}
  pos = jnp.arange(6)[None]
  np.testing.assert_array_equal(
    scheme.query(params, jnp.zeros((1, 6, 4, 3)), pos)[0], params['query']
  )
  np.testing.assert_array_equal(scheme.key(params, jnp.zeros((1, 6, 2, 3)), pos)[0], params['key'])


def test_ids_outside_the_table_give_nan(key):
  scheme = position_only.scheme(4)
  params = posjax.init(scheme, key, DIMS)
  placed = scheme.key(params, jnp.zeros((1, 5, 2, 3)), jnp.array([[3, 4, -1, 2**31 - 1, 0]]))
  np.testing.assert_array_equal(jnp.isnan(placed).all((0, 2, 3)), [0, 1, 1, 1, 0])
  np.testing.assert_array_equal(jnp.isnan(placed).any((0, 2, 3)), [0, 1, 1, 1, 0])


def test_float_ids_are_refused(key):
  scheme = position_only.scheme(4)
  params = posjax.init(scheme, key, DIMS)
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    scheme.query(params, jnp.zeros((1, 2, 4, 3)), jnp.zeros((1, 2)))
