import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.tables import position_heads
from posjax.schemes import factored
from tests.support.loops import attention, error
from tests.support.paths import load_golden

GOLDEN = load_golden('factored')
DIMS = posjax.Dims(width=6, num_heads=4, head_dim=3, num_kv_heads=2)
attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='scale')


def _logits(q, k, params, q_pos, k_pos, content=True, position=True):
  """q_c . k_c + q_p . k_p over the root of both widths, pair by pair. [B, H, T, S], float64."""
  q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
  table, to_q, to_k = (np.asarray(params[n], np.float64) for n in ('table', 'query', 'key'))
  batch, queries, heads, width = q.shape
  shared = heads // k.shape[2]
  logits = np.zeros((batch, heads, queries, k.shape[1]))
  for b, h, t, s in np.ndindex(logits.shape):
    q_half = table[q_pos[b, t]] @ to_q[:, h]
    k_half = table[k_pos[b, s]] @ to_k[:, h // shared]
    words = sum(q[b, t, h] * k[b, s, h // shared])
    places = sum(q_half * k_half)
    logits[b, h, t, s] = (content * words + position * places) / np.sqrt(width + len(q_half))
  return logits


def _heads(key, tokens=5):
  q = jax.random.normal(key, (2, tokens, 4, 3))
  k, v = jax.random.normal(jax.random.fold_in(key, 1), (2, 2, 7, 2, 3))
  q_pos = np.array([[3, 0, 11, 4, 4, 1], [0, 1, 2, 3, 4, 5]])[:, :tokens]
  k_pos = np.array([[0, 3, 4, 5, 8, 9, 11], [6, 5, 4, 3, 2, 1, 0]])
  return q, k, v, q_pos, k_pos


@pytest.mark.parametrize('tokens', [1, 5])
@pytest.mark.parametrize('halves', [(True, True), (True, False), (False, True)])
def test_it_is_the_papers_sum_of_two_dot_products(key, tokens, halves):
  scheme = factored.scheme(12, *halves)
  params = posjax.init(scheme, key, DIMS)
  q, k, v, q_pos, k_pos = _heads(key, tokens)
  out = attend(q, k, v, scheme, params, q_pos=jnp.asarray(q_pos), k_pos=jnp.asarray(k_pos))
  expected, _ = attention(
    _logits(q, k, params, q_pos, k_pos, *halves), np.array(True), np.asarray(v)
  )
  assert error(out, expected) < 1e-5


def _partitioned(x, to_content, to_position, out_content, out_position, halves, scale=None):
  """The authors' layer around the scheme: halves of x, of the heads and of the output."""
  tokens = x.shape[0] * x.shape[1]
  words, places = jnp.split(x, 2, axis=-1)
  project = lambda x, w, i: jnp.einsum('btm,hmd->bthd', x, w[:, :, i])
  q, k = (project(words, to_content, i) for i in (0, 1))
  v = jnp.concatenate([project(words, to_content, 2), project(places, to_position, 2)], axis=-1)
  to_q, to_k = (jnp.moveaxis(to_position[:, :, i], 0, 1) for i in (0, 1))
  params = {'table': places.reshape(tokens, -1), 'query': to_q, 'key': to_k}
  pos = jnp.arange(tokens).reshape(x.shape[:2])  # a row of the table for each token
  ids = {'q_pos': pos, 'k_pos': pos}
  scheme = factored.scheme(tokens, *halves)

  def mixed(v, mask):
    return posjax.attend(q, k, v, scheme, params, **ids, mask=mask, scale=scale)

  def out(mask):
    words, places = jnp.split(mixed(v, mask), 2, axis=-1)
    both = ((words, out_content), (places, out_position))
    return jnp.concatenate([jnp.einsum('bthd,hdm->btm', y, w) for y, w in both], axis=-1)

  def weights(mask):
    each = jnp.eye(x.shape[1])[None, :, None]
    each = jnp.broadcast_to(each, (*x.shape[:2], q.shape[2], x.shape[1]))
    return mixed(each, mask).swapaxes(1, 2)

  return out, weights


def _golden(name):
  return jnp.asarray(GOLDEN[name], jnp.float32)


WEIGHTS = ('w_qkv_c', 'w_qkv_p', 'w_o_c', 'w_o_p')
MASK = jnp.asarray(GOLDEN['attn0_mask_true_token'])[:, None, None]
MASK = jnp.broadcast_to(MASK, (2, 1, 5, 5))


def _backward(function, given, cotangent):
  """The result and the gradients, compiled."""

  def both(given, cotangent):
    out, back = jax.vjp(function, *given)
    return out, back(cotangent)

  return jax.jit(both)(given, cotangent)


def test_values_and_gradients_equal_the_authors_partitioned_attention():
  given = [_golden(f'attn0_{name}') for name in ('x', *WEIGHTS)]
  layer = lambda *given: _partitioned(*given, (True, True))[0](MASK)
  out, grads = _backward(layer, given, _golden('attn0_cotangent'))
  assert error(out, GOLDEN['attn0_out']) < 1e-5
  for name, grad in zip(('x', *WEIGHTS), grads, strict=True):
    assert error(grad, GOLDEN[f'attn0_grad_{name}']) < 1e-5


@pytest.mark.parametrize(
  ('name', 'halves'),
  [('both', (True, True)), ('content_only', (True, False)), ('position_only', (False, True))],
)
def test_a_silent_half_leaves_the_other_halfs_weights_as_they_were(name, halves):
  out, weights = _partitioned(*(_golden(f'attn0_{n}') for n in ('x', *WEIGHTS)), halves)
  assert error(jax.jit(weights)(MASK), GOLDEN[f'attn0_probs_{name}_INDEP']) < 1e-5
  assert error(jax.jit(out)(MASK), GOLDEN[f'attn0_out_{name}_INDEP']) < 1e-5


def test_the_code_of_2018_divides_by_the_root_of_the_models_width():
  # Five tokens and three, packed; padded queries of the golden see every key alike.
  packed = _golden('old_factored_x_packed')
  x = jnp.stack([packed[:5], jnp.pad(packed[5:], ((0, 2), (0, 0)))])
  both = [
    jnp.stack([_golden(f'old_factored_param_w_{n}s{half}') for n in 'qkv'], axis=2)
    for half in (1, 2)
  ]
  out = [jnp.zeros((2, 2, 4))] * 2  # not looked at
  _, weights = _partitioned(x, *both, *out, (True, True), scale=(2 / 8) ** 0.5)
  found = jax.jit(weights)(MASK).swapaxes(0, 1)
  expected = GOLDEN['old_factored_attn_headmajor'].reshape(2, 2, 5, 5)
  assert error(found[:, 0], expected[:, 0]) < 1e-5
  assert error(found[:, 1, :3], expected[:, 1, :3]) < 1e-5


def test_parameters_are_the_same_whatever_is_silent(key):
  trees = [
    posjax.init(factored.scheme(9, *halves), key, DIMS)
    for halves in ((True, True), (True, False), (False, True))
  ]
  for tree in trees[1:]:
    chex.assert_trees_all_equal(trees[0], tree)
  shapes = {'table': (9, 6), 'query': (6, 4, 3), 'key': (6, 2, 3)}
  assert {name: leaf.shape for name, leaf in trees[0].items()} == shapes


def test_content_and_position_never_cross(key):
  # Where the tokens move, each logit moves by what does not depend on the words.
  scheme = factored.scheme(12)
  params = posjax.init(scheme, key, DIMS._replace(num_kv_heads=4))
  q, k = jax.random.normal(key, (2, 2, 5, 4, 3))
  here, there = jnp.array([[3, 0, 11, 4, 4]]), jnp.array([[0, 1, 2, 3, 4]])

  @jax.jit
  def logits(q, k, pos):
    pos = jnp.broadcast_to(pos, (2, 5))
    return jnp.einsum('bthd,bshd->bhts', scheme.query(params, q, pos), scheme.key(params, k, pos))

  moved = logits(q, k, here) - logits(q, k, there)
  others = logits(3 * q, 1 - k, here) - logits(3 * q, 1 - k, there)
  assert error(moved, others) < 1e-5
  assert abs(moved).max() > 0.1


def test_a_table_of_zeros_is_attention_without_positions_at_the_scale_of_both_halves(key):
  q, k, v, q_pos, k_pos = _heads(key)
  params = posjax.init(factored.scheme(12), key, DIMS)
  params['table'] = 0 * params['table']
  ids = {'q_pos': jnp.asarray(q_pos), 'k_pos': jnp.asarray(k_pos)}
  out = attend(q, k, v, factored.scheme(12), params, **ids)
  expected = attend(q, k, v, posjax.Scheme(), {}, **ids, scale=6**-0.5)
  assert error(out, expected) < 1e-5


def test_initial_halves_have_unit_variance(key):
  dims = posjax.Dims(width=256, num_heads=4, head_dim=16)
  scheme = factored.scheme(256)
  params = posjax.init(scheme, key, dims)
  np.testing.assert_allclose(params['table'].std(), 1.0, rtol=0.02)
  for name in ('query', 'key'):
    np.testing.assert_allclose(params[name].std(), 256**-0.5, rtol=0.02)
    half = position_heads(params['table'], params[name], jnp.arange(256))
    np.testing.assert_allclose(half.std(), 1.0, rtol=0.05)
  assert abs(params['query'] - params['key']).max() > 0.1


def test_the_table_is_the_models_and_the_weights_are_each_layers(key):
  scheme = factored.scheme(9)
  assert set(scheme.init_model(key, DIMS)) == {'table'}
  assert set(scheme.init(key, DIMS)) == {'query', 'key'}


def test_ids_outside_the_table_give_nan(key):
  scheme = factored.scheme(4)
  params = posjax.init(scheme, key, DIMS)
  placed = scheme.query(params, jnp.zeros((1, 5, 4, 3)), jnp.array([[3, 4, -1, 2**31 - 1, 0]]))
  np.testing.assert_array_equal(jnp.isnan(placed[..., 3:]).all((0, 2, 3)), [0, 1, 1, 1, 0])
  assert not jnp.isnan(placed[..., :3]).any()


def test_without_position_no_id_is_looked_up(key):
  scheme = factored.scheme(4, position=False)
  params = posjax.init(scheme, key, DIMS)
  placed = scheme.query(params, jnp.ones((1, 1, 4, 3)), jnp.array([[99]]))
  np.testing.assert_allclose(placed, 0.5**0.5, rtol=1e-6)


def test_float_ids_are_refused(key):
  scheme = factored.scheme(4)
  params = posjax.init(scheme, key, DIMS)
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    scheme.key(params, jnp.zeros((1, 2, 2, 3)), jnp.zeros((1, 2)))


def test_arguments_out_of_range_are_refused():
  with pytest.raises(ValueError, match='got False for both content and position'):
    factored.scheme(content=False, position=False)
