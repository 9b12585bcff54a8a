import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import additive
from tests.support.loops import attention, error
from tests.support.paths import load_golden

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
similarity = jax.jit(additive.similarity)
GOLDEN = load_golden('attention_similarities')
NAMES = ('query', 'key', 'vector')


def _heads(batch=2, queries=5, keys=7, heads=6, kv_heads=2, width=5):
  draw = np.random.default_rng(0).normal
  q = draw(size=(batch, queries, heads, width)).astype(np.float32)
  k, v = draw(size=(2, batch, keys, kv_heads, width)).astype(np.float32)
  return tuple(map(jnp.asarray, (q, k, v)))


def _scores(params, q, k):
  """v . tanh(W [q; k]) in float64, with one W for the two stacked, pair by pair."""
  q, k, *matrices, vector = (np.asarray(x, np.float64) for x in (q, k, *map(params.get, NAMES)))
  group = q.shape[2] // k.shape[2]
  found = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(found.shape):
    both = np.concatenate([q[b, t, h], k[b, s, h // group]])
    matrix = np.concatenate([part[h] for part in matrices]).T
    found[b, h, t, s] = vector[h] @ np.tanh(matrix @ both)
  return found


@pytest.mark.parametrize(
  ('sizes', 'hidden'),
  [({}, 9), ({'queries': 1, 'width': 3}, None), ({'batch': 1, 'heads': 1, 'kv_heads': 1}, 1)],
)
def test_the_logits_are_those_of_a_network_with_one_hidden_layer(key, sizes, hidden):
  q, k, v = _heads(**sizes)
  ids = {'q_pos': 3 + jnp.arange(q.shape[1]), 'k_pos': jnp.arange(k.shape[1])}
  scheme = additive.scheme(hidden)
  params = scheme.init(key, posjax.Dims(30, q.shape[2], q.shape[3], k.shape[2]))
  expected, _ = attention(_scores(params, q, k), True, np.asarray(v))
  assert error(attend(q, k, v, scheme, params, **ids), expected) < 1e-5


def test_values_and_gradients_equal_text_004():
  get = lambda name: jnp.asarray(GOLDEN[f'c0_{name}'], jnp.float32)
  s, h = get('s')[None, :, None], get('h')[None, :, None]
  ids = {'q_pos': jnp.arange(s.shape[1]), 'k_pos': jnp.arange(h.shape[1])}
  of_s, of_h = jnp.split(get('W_add').T[None], 2, axis=1)  # the text stacks s above h
  params = {'query': of_s, 'key': of_h, 'vector': get('v_add')[None]}
  score = similarity(params['query'], params['key'], params['vector'], s, h)
  assert error(score[0, 0], get('additive_score')) < 1e-6

  def context(s, h, params):
    return attend(s, h, h, additive.scheme(of_s.shape[-1]), params, **ids)[0, :, 0]

  found, back = jax.vjp(context, s, h, params)
  assert error(found, get('additive_context')) < 1e-5
  grad_s, grad_h, grads = back(get('cotangent'))
  assert error(grad_s[0, :, 0], get('additive_grad_s')) < 1e-5
  assert error(grad_h[0, :, 0], get('additive_grad_h')) < 1e-5
  weights = jnp.concatenate([grads['query'][0], grads['key'][0]])
  assert error(weights.T, get('additive_grad_W_add')) < 1e-5
  assert error(grads['vector'][0], get('additive_grad_v_add')) < 1e-5


def test_scores_are_bounded_however_large_the_heads(key):
  q, k, _ = _heads()
  params = additive.scheme().init(key, posjax.Dims(30, 6, 5, 2))
  bound = abs(params['vector']).sum(-1)[None, :, None, None]
  for size in (1.0, 1e4, 1e30):
    scores = similarity(params['query'], params['key'], params['vector'], size * q, size * k)
    assert (abs(scores) <= bound * (1 + 1e-6)).all()


def test_for_short_heads_it_is_a_sum_of_a_query_term_and_a_key_term(key):
  # tanh(x) is x: the query's term is the same for all keys, and the softmax forgets it.
  q, k, v = _heads()
  q, k = 1e-3 * q, 1e-3 * k
  scheme = additive.scheme(4)
  params = scheme.init(key, posjax.Dims(30, 6, 5, 2))
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  out = attend(q, k, v, scheme, params, **ids)
  vectors = np.einsum('hdw,hw->hd', params['key'], params['vector'], dtype=np.float64)
  logits = np.einsum('bshd,hd->bhs', np.repeat(np.asarray(k, np.float64), 3, axis=2), vectors)
  expected, _ = attention(np.repeat(logits[:, :, None], 5, axis=2), True, np.asarray(v))
  assert error(out, expected) < 1e-5


def test_a_vector_of_zeros_attends_to_all_alike(key):
  q, k, v = _heads()
  params = additive.scheme().init(key, posjax.Dims(30, 6, 5, 2)) | {'vector': jnp.zeros((6, 5))}
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  out = attend(q, k, v, additive.scheme(), params, **ids)
  mean = np.repeat(np.asarray(v, np.float64).mean(1, keepdims=True), 3, axis=2)
  assert error(out, np.broadcast_to(mean, out.shape)) < 1e-6


def test_it_replaces_the_content_and_biases_add_to_it(key):
  q, k, v = _heads(width=4)
  ids = {'q_pos': 2 + jnp.arange(5), 'k_pos': jnp.arange(7)}
  chained = posjax.get('rope+additive+alibi(geometric=True)')
  params = posjax.init(chained, key, posjax.Dims(24, 6, 4, 2))
  distance = abs(np.subtract.outer(2 + np.arange(5), np.arange(7)))
  slopes = 2.0 ** (-8 * np.arange(1, 7) / 6)
  logits = _scores(params[1], q, k) - slopes[:, None, None] * distance
  expected, _ = attention(logits, True, np.asarray(v))
  assert error(attend(q, k, v, chained, params, **ids), expected) < 1e-5


@pytest.mark.parametrize(('width', 'hidden'), [(None, 64), (32, 32)])
def test_initial_values_are_glorot_uniform(key, width, hidden):
  params = additive.scheme(width).init(key, posjax.Dims(256, 4, 64))
  limit = np.sqrt(6 / (128 + hidden))
  for name in ('query', 'key'):
    assert params[name].shape == (4, 64, hidden)
    assert 0.98 * limit < abs(params[name]).max() <= limit
  assert params['vector'].shape == (4, hidden)
  limit = np.sqrt(6 / (hidden + 1))
  assert 0.95 * limit < abs(params['vector']).max() <= limit


def test_the_scores_hold_no_number_for_each_pair_and_hidden_unit(key):
  heads, tokens, hidden = 2, 128, 64
  params = additive.scheme(hidden).init(key, posjax.Dims(16, heads, 8))
  x = jnp.zeros((1, tokens, heads, 8))
  compiled = similarity.lower(params['query'], params['key'], params['vector'], x, x).compile()
  held = compiled.memory_analysis().temp_size_in_bytes
  assert held < heads * tokens * tokens * hidden * 4 / 8
