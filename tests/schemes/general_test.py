import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import general
from tests.support.loops import attention, content, error
from tests.support.paths import load_golden

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
similarity = jax.jit(general.similarity)
GOLDEN = load_golden('attention_similarities')


def _heads(batch=2, queries=5, keys=7, heads=6, kv_heads=2, width=5):
  draw = np.random.default_rng(0).normal
  q = draw(size=(batch, queries, heads, width)).astype(np.float32)
  k, v = draw(size=(2, batch, keys, kv_heads, width)).astype(np.float32)
  weights = draw(size=(heads, width, width)).astype(np.float32) / width
  return tuple(map(jnp.asarray, (q, k, v, weights)))


def _logits(weights, q, k):
  """q W k in float64, number by number."""
  weights, q, k = (np.asarray(x, np.float64) for x in (weights, q, k))
  group = q.shape[2] // k.shape[2]
  logits = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(logits.shape):
    for i, j in np.ndindex(weights.shape[1:]):
      logits[b, h, t, s] += q[b, t, h, i] * weights[h, i, j] * k[b, s, h // group, j]
  return logits


@pytest.mark.parametrize(
  'sizes', [{}, {'queries': 1, 'width': 3}, {'batch': 1, 'heads': 1, 'kv_heads': 1}]
)
def test_the_logits_are_a_bilinear_form(sizes):
  q, k, v, weights = _heads(**sizes)
  ids = {'q_pos': 3 + jnp.arange(q.shape[1]), 'k_pos': jnp.arange(k.shape[1])}
  expected, _ = attention(_logits(weights, q, k), True, np.asarray(v))
  out = attend(q, k, v, general.scheme(), {'weights': weights}, **ids)
  assert error(out, expected) < 1e-5
  assert error(similarity(weights, q, k), _logits(weights, q, k)) < 1e-6


def test_values_and_gradients_equal_text_004():
  get = lambda name: jnp.asarray(GOLDEN[f'c0_{name}'], jnp.float32)
  s, h = get('s')[None, :, None], get('h')[None, :, None]
  ids = {'q_pos': jnp.arange(s.shape[1]), 'k_pos': jnp.arange(h.shape[1])}

  def context(s, h, weights):
    return attend(s, h, h, general.scheme(), {'weights': weights}, **ids)[0, :, 0]

  weights = get('W_general')[None]
  assert error(similarity(weights, s, h)[0, 0], get('general_score')) < 1e-6
  found, back = jax.vjp(context, s, h, weights)
  assert error(found, get('general_context')) < 1e-5
  of_s, of_h, of_weights = back(get('cotangent'))
  assert error(of_s[0, :, 0], get('general_grad_s')) < 1e-5
  assert error(of_h[0, :, 0], get('general_grad_h')) < 1e-5
  assert error(of_weights[0], get('general_grad_W_general')) < 1e-5


def test_with_the_identity_it_is_the_unscaled_dot_product():
  q, k, v, _ = _heads()
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  params = {'weights': jnp.tile(jnp.eye(5), (6, 1, 1))}
  plain = attend(q, k, v, posjax.get('unscaled'), {}, **ids)
  np.testing.assert_array_equal(attend(q, k, v, general.scheme(), params, **ids), plain)


def test_with_a_scaled_identity_it_is_the_default():
  q, k, v, _ = _heads()
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  params = {'weights': jnp.tile(jnp.eye(5) / np.sqrt(5), (6, 1, 1))}
  plain = attend(q, k, v, posjax.Scheme(), {}, **ids)
  assert error(attend(q, k, v, general.scheme(), params, **ids), plain) < 1e-5


def test_it_is_not_symmetric_in_query_and_key():
  q, _, _, weights = _heads(heads=2, kv_heads=2)
  forth = similarity(weights, q, q)
  back = similarity(weights.swapaxes(1, 2), q, q)
  assert error(back.swapaxes(2, 3), forth) < 1e-6
  assert error(forth.swapaxes(2, 3), forth) > 0.1


def test_schemes_chained_later_turn_the_transformed_query():
  q, k, v, weights = _heads(width=4)
  ids = {'q_pos': 3 + jnp.arange(5), 'k_pos': jnp.arange(7)}
  turn = jax.jit(lambda x, pos: posjax.get('rope').query({}, x, jnp.tile(pos, (2, 1))))
  transformed = np.einsum('bthd,hde->bthe', q, weights).astype(np.float32)
  turned = turn(jnp.asarray(transformed), ids['q_pos']), turn(k, ids['k_pos'])
  logits = content(*map(np.asarray, turned), scale=1.0)
  expected, _ = attention(logits, True, np.asarray(v))
  out = attend(q, k, v, posjax.get('general+rope'), ({'weights': weights}, {}), **ids)
  assert error(out, expected) < 1e-5


def test_initial_logits_have_the_variance_of_an_unscaled_dot_product(key):
  q, k, *_ = _heads(1, 200, 200, 4, 4, 64)
  params = general.scheme().init(key, posjax.Dims(256, 4, 64))
  assert params['weights'].shape == (4, 64, 64)
  limit = np.sqrt(6 / 128)
  assert 0.98 * limit < abs(params['weights']).max() <= limit
  assert 0.9 < similarity(params['weights'], q, k).var() / 64 < 1.1


def test_a_pair_costs_a_dot_product_and_no_more(key):
  x, params = jnp.zeros((1, 64, 1, 8)), general.scheme().init(key, posjax.Dims(8, 1, 8))
  pos = jnp.arange(64)
  cost = lambda scheme, params: (
    jax.jit(lambda q: posjax.attend(q, x, x, scheme, params, q_pos=pos, k_pos=pos))
    .lower(x)
    .compile()
    .cost_analysis()['flops']
  )
  more = cost(general.scheme(), params) - cost(posjax.Scheme(), {})
  assert more < 64 * 8 * 8 * 2 + 64 * 64  # the transformation, and less than one for each pair
