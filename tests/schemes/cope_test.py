import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import cope
from tests.support import loops
from tests.support.draws import DRAW
from tests.support.paths import load_golden

GOLDEN = load_golden('cope')


@functools.partial(jax.jit, static_argnums=3, static_argnames='causal')
def attend(q, k, v, scheme, params, **how):
  order = {f'{side}_pos': jnp.arange(x.shape[1]) for side, x in (('q', q), ('k', k))}
  return posjax.attend(q, k, v, scheme, params, **(order | how))


def _random(*shape):
  return jnp.asarray(DRAW.normal(size=shape), jnp.float32)


def _heads(queries=6, keys=6, heads=4, kv_heads=2):
  shapes = (queries, heads), *[(keys, kv_heads)] * 2
  return [_random(2, *shape, 4) for shape in shapes]


def _reference(q, k, v, table, seen, scaled=False):
  """Gates, counts and the interpolated embedding of section 4, pair by pair."""
  q, k, v, table = (np.asarray(x, np.float64) for x in (q, k, v, table))
  content = loops.content(q, k)
  logits, last = content.copy(), len(table) - 1
  seen = np.broadcast_to(seen, logits.shape)
  for b, h, i, j in np.ndindex(logits.shape):
    ahead = [m for m in range(j, k.shape[1]) if seen[b, h, i, m]]
    count = min(sum(1 / (1 + np.exp(-content[b, h, i, m])) for m in ahead), last)
    part = count - np.floor(count)
    vector = (1 - part) * table[int(np.floor(count))] + part * table[int(np.ceil(count))]
    logits[b, h, i, j] += q[b, i, h] @ vector / (np.sqrt(q.shape[-1]) if scaled else 1)
  return loops.attention(logits, seen, v)[0]


@pytest.mark.parametrize('scaled', [False, True])
@pytest.mark.parametrize('num_positions', [3, 9])
def test_it_is_the_papers_equations(num_positions, scaled):
  (q, k, v), table = _heads(), _random(num_positions, 4)
  scheme = cope.scheme(num_positions, scaled)
  out = attend(q, k, v, scheme, {'table': table}, causal=True)
  assert loops.error(out, _reference(q, k, v, table, np.tri(6, dtype=bool), scaled)) < 1e-5


def test_without_a_causal_mask_all_later_keys_count():
  (q, k, v), table = _heads(5, 7), _random(4, 4)
  out = attend(q, k, v, cope.scheme(4), {'table': table})
  assert loops.error(out, _reference(q, k, v, table, True)) < 1e-5


def test_only_keys_that_are_seen_count():
  (q, k, v), table = _heads(), _random(5, 4)
  mask = np.array(DRAW.normal(size=(2, 4, 6, 6)) > -0.5)
  segments = np.array([[1, 1, 1, 2, 2, 2], [0, 0, 1, 1, 1, 0]])
  same = (segments[:, :, None] == segments[:, None]) & (segments != 0)[:, None]
  given = {'mask': jnp.asarray(mask), 'q_segments': segments, 'k_segments': segments}
  given = jax.tree.map(jnp.asarray, given)
  out = attend(q, k, v, cope.scheme(5), {'table': table}, causal=True, **given)
  seen = mask & same[:, None] & np.tri(6, dtype=bool)
  assert loops.error(out, _reference(q, k, v, table, seen)) < 1e-5


def test_logits_and_weights_equal_x_transformers():
  get = lambda name: jnp.asarray(GOLDEN[f'interp_p6__{name}'])
  q, k = get('q').swapaxes(1, 2), get('k').swapaxes(1, 2)
  params = {'table': get('pos_emb')}
  scheme, seen = cope.scheme(len(params['table'])), np.tri(10, dtype=bool)
  content = np.where(seen, np.einsum('bthd,bshd->bhts', q, k) / 8**0.5, -1e30)
  added = jax.jit(scheme.logits)(params, jnp.asarray(content), q, k, None, None) - content
  assert loops.error(np.where(seen, added, 0), np.where(seen, get('cope_logits'), 0)) < 1e-5
  # Values that are the keys' names give the weights.
  names = jnp.broadcast_to(jnp.eye(10)[:, None], (2, 10, 2, 10))
  weights = attend(q, k, names, scheme, params, causal=True)
  assert loops.error(weights.swapaxes(1, 2), get('attn')) < 1e-5


def test_with_open_gates_positions_are_relative():
  counts = jax.jit(functools.partial(cope.positions, num_positions=64))(jnp.full((1, 6, 6), 50.0))
  np.testing.assert_array_equal(counts[0, 0], np.arange(6, 0, -1))
  causal = jnp.where(np.tri(6, dtype=bool), 50.0, -1e30)[None]
  counts = cope.positions(causal, 4)
  i, j = np.indices((6, 6))
  np.testing.assert_array_equal(counts[0], np.clip(i - j + 1, 0, 3))


def test_with_open_gates_it_is_a_table_by_distance():
  # The content is alike for all keys, and large: sigmoid(50) is 1.
  q = jnp.ones((1, 6, 1, 4)).at[..., 1:].set(_random(1, 6, 1, 3))
  k, v = jnp.zeros_like(q).at[..., 0].set(100.0), _random(1, 6, 1, 4)
  table = _random(5, 4)
  out = attend(q, k, v, cope.scheme(5), {'table': table}, causal=True)
  logits = np.zeros((1, 1, 6, 6))
  for i, j in np.ndindex(6, 6):
    logits[0, 0, i, j] = np.asarray(q, np.float64)[0, i, 0] @ table[min(max(i - j + 1, 0), 4)]
  expected = loops.attention(logits, np.tri(6, dtype=bool), np.asarray(v))[0]
  assert loops.error(out, expected) < 1e-5


def test_a_query_can_count_the_tokens_of_one_kind():
  kind = np.array([1, 0, 0, 1, 0, 1, 0])
  logits = jnp.asarray(np.where(kind, 60.0, -60.0)[None, None])
  counts = cope.positions(logits, 64)[0, 0]
  np.testing.assert_allclose(counts, [3, 2, 2, 2, 1, 1, 0], atol=1e-6)


def test_a_table_of_zeros_is_no_positions():
  q, k, v = _heads()
  out = attend(q, k, v, cope.scheme(), {'table': jnp.zeros((64, 4))}, causal=True)
  expected = attend(q, k, v, posjax.Scheme(), {}, causal=True)
  np.testing.assert_allclose(out, expected, atol=1e-6)


def test_the_ids_do_not_matter():
  (q, k, v), params = _heads(), {'table': _random(5, 4)}
  mask = jnp.asarray(np.tri(6, dtype=bool))
  out = attend(q, k, v, cope.scheme(5), params, mask=mask)
  ids = jnp.array([7, 7, -2, 10**6, 3, 0])
  moved = attend(q, k, v, cope.scheme(5), params, mask=mask, q_pos=ids, k_pos=ids)
  np.testing.assert_array_equal(moved, out)


def test_between_two_positions_the_embedding_is_between():
  by_position = jnp.array([[1.0, 3.0, 11.0]])
  at = jnp.array([[0.0, 0.25, 1.0, 1.5, 2.0]])
  np.testing.assert_allclose(cope.interpolated(by_position, at), [[1, 1.5, 3, 7, 11]])


def test_gates_have_gradients_through_the_positions():
  # d p / d logit = g (1 - g) for the keys not before; d value / d p = the step of the table.
  by_position = jnp.array([[1.0, 3.0, 11.0, 11.0]])

  def second(logits):
    return cope.interpolated(by_position, cope.positions(logits, 4))[0, 1]

  grad = jax.jit(jax.grad(second))(jnp.array([[0.3, 0.2, 0.9]]))[0]
  gate = 1 / (1 + np.exp(-np.array([0.3, 0.2, 0.9])))
  assert 1 < gate[1:].sum() < 2
  np.testing.assert_allclose(grad, [0, *(8 * gate * (1 - gate))[1:]], rtol=1e-5)


def test_gradients_are_finite_where_positions_are_clamped_or_nothing_is_seen():
  (q, k, v), table = _heads(), jnp.ones((2, 4))
  mask = jnp.asarray(np.tri(6, k=-1, dtype=bool))

  def loss(q, k, table):
    return attend.__wrapped__(q, 30 * k, v, cope.scheme(2), {'table': table}, mask=mask).sum()

  grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, table)
  assert all(np.isfinite(grad).all() for grad in grads)


def test_each_layer_has_a_table_of_zeros_for_all_heads():
  dims = posjax.Dims(48, 6, 8)
  params = cope.scheme(32).init(None, dims)
  np.testing.assert_array_equal(params['table'], np.zeros((32, 8)))
  assert cope.scheme().init(None, dims)['table'].shape == (64, 8)
  assert cope.scheme().init_model(None, dims) == {}
