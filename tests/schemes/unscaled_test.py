import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import unscaled
from tests.support.loops import attention, content, error
from tests.support.paths import load_golden

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames=('causal', 'scale'))
GOLDEN = load_golden('attention_similarities')


def _heads(batch=2, queries=5, keys=7, heads=6, kv_heads=2, width=5):
  draw = np.random.default_rng(0).normal
  q = draw(size=(batch, queries, heads, width)).astype(np.float32)
  k, v = draw(size=(2, batch, keys, kv_heads, width)).astype(np.float32)
  return tuple(map(jnp.asarray, (q, k, v)))


@pytest.mark.parametrize(
  'sizes', [{}, {'queries': 1, 'width': 3}, {'heads': 1, 'kv_heads': 1, 'width': 64}]
)
def test_the_logits_are_dot_products(sizes):
  q, k, v = _heads(**sizes)
  ids = {'q_pos': 3 + jnp.arange(q.shape[1]), 'k_pos': jnp.arange(k.shape[1])}
  expected, _ = attention(content(*map(np.asarray, (q, k)), scale=1.0), True, np.asarray(v))
  assert error(attend(q, k, v, unscaled.scheme(), {}, **ids), expected) < 1e-5
  assert error(unscaled.similarity(q, k), content(*map(np.asarray, (q, k)), scale=1.0)) < 1e-6


@pytest.mark.parametrize(
  ('name', 'scheme'), [('dot', unscaled.scheme()), ('scaled_dot', posjax.Scheme())]
)
def test_values_and_gradients_equal_text_004_and_the_default_is_its_scaled_dot(name, scheme):
  get = lambda name: jnp.asarray(GOLDEN[f'c0_{name}'], jnp.float32)
  s, h = get('s')[None, :, None], get('h')[None, :, None]
  ids = {'q_pos': jnp.arange(s.shape[1]), 'k_pos': jnp.arange(h.shape[1])}
  found, back = jax.vjp(lambda s, h: attend(s, h, h, scheme, {}, **ids)[0, :, 0], s, h)
  assert error(found, get(f'{name}_context')) < 1e-5
  for grad, of in zip(back(get('cotangent')), ('s', 'h'), strict=True):
    assert error(grad[0, :, 0], get(f'{name}_grad_{of}')) < 1e-5


def test_it_is_the_default_at_scale_1():
  q, k, v = _heads()
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  plain = attend(q, k, v, posjax.Scheme(), {}, **ids, scale=1.0)
  assert error(attend(q, k, v, unscaled.scheme(), {}, **ids), plain) < 1e-5
  assert error(attend(q, k, v, posjax.Scheme(), {}, **ids), plain) > 0.01


def test_positions_of_other_schemes_stay():
  # Turned first or afterwards: a turn keeps the factor.
  q, k, v = _heads(width=8)
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  turned = attend(q, k, v, posjax.get('rope'), {}, **ids, scale=1.0)
  for line in ('rope+unscaled', 'unscaled+rope'):
    assert error(attend(q, k, v, posjax.get(line), ({}, {}), **ids), turned) < 1e-5


def test_a_bias_is_not_scaled(key):
  q, k, v = _heads()
  ids = {'q_pos': 2 + jnp.arange(5), 'k_pos': jnp.arange(7)}
  chained = posjax.get('unscaled+alibi(geometric=True)')
  params = posjax.init(chained, key, posjax.Dims(30, 6, 5))
  distance = abs(np.subtract.outer(2 + np.arange(5), np.arange(7)))
  slopes = 2.0 ** (-8 * np.arange(1, 7) / 6)
  logits = content(*map(np.asarray, (q, k)), scale=1.0) - slopes[:, None, None] * distance
  expected, _ = attention(logits, True, np.asarray(v))
  assert error(attend(q, k, v, chained, params, **ids), expected) < 1e-5


def test_bfloat16_queries_are_scaled_in_float32():
  q = jnp.full((1, 1, 1, 3), 1.0, jnp.bfloat16)
  placed = unscaled.scheme().query({}, q, None)
  assert placed.dtype == jnp.bfloat16
  np.testing.assert_array_equal(placed, jnp.full(q.shape, np.sqrt(3)).astype(jnp.bfloat16))
