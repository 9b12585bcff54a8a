import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import cosine
from tests.support.loops import attention, error
from tests.support.paths import load_golden

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
similarity = jax.jit(cosine.similarity)
GOLDEN = load_golden('attention_similarities')


def _heads(batch=2, queries=5, keys=7, heads=6, kv_heads=2, width=5):
  draw = np.random.default_rng(0).normal
  q = draw(size=(batch, queries, heads, width)).astype(np.float32)
  k, v = draw(size=(2, batch, keys, kv_heads, width)).astype(np.float32)
  return tuple(map(jnp.asarray, (q, k, v)))


def _cosines(q, k):
  """In float64, pair by pair."""
  q, k = (np.asarray(x, np.float64) for x in (q, k))
  group = q.shape[2] // k.shape[2]
  found = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(found.shape):
    one, other = q[b, t, h], k[b, s, h // group]
    lengths = np.sqrt(one @ one) * np.sqrt(other @ other)
    found[b, h, t, s] = one @ other / lengths if lengths else 0
  return found


@pytest.mark.parametrize('temperature', [1.0, 0.05])
@pytest.mark.parametrize(
  'sizes', [{}, {'queries': 1, 'width': 3}, {'batch': 1, 'heads': 1, 'kv_heads': 1, 'width': 1}]
)
def test_the_logits_are_cosines_over_the_temperature(sizes, temperature):
  q, k, v = _heads(**sizes)
  ids = {'q_pos': 3 + jnp.arange(q.shape[1]), 'k_pos': jnp.arange(k.shape[1])}
  expected, _ = attention(_cosines(q, k) / temperature, True, np.asarray(v))
  assert error(attend(q, k, v, cosine.scheme(temperature), {}, **ids), expected) < 1e-5


def test_values_and_gradients_equal_text_004():
  get = lambda name: jnp.asarray(GOLDEN[f'c0_{name}'], jnp.float32)
  s, h = get('s')[None, :, None], get('h')[None, :, None]
  ids = {'q_pos': jnp.arange(s.shape[1]), 'k_pos': jnp.arange(h.shape[1])}
  assert error(similarity(s, h)[0, 0], get('cosine_score')) < 1e-6
  found, back = jax.vjp(lambda s, h: attend(s, h, h, cosine.scheme(), {}, **ids)[0, :, 0], s, h)
  assert error(found, get('cosine_context')) < 1e-5
  for grad, of in zip(back(get('cotangent')), ('s', 'h'), strict=True):
    assert error(grad[0, :, 0], get(f'cosine_grad_{of}')) < 1e-5


def test_the_lengths_of_queries_and_keys_do_not_matter():
  q, k, v = _heads()
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  stretch = np.exp(3 * np.random.default_rng(1).normal(size=(2, 7, 2, 1))).astype(np.float32)
  whole = attend(q, k, v, cosine.scheme(), {}, **ids)
  assert error(attend(1e3 * q, stretch * k, v, cosine.scheme(), {}, **ids), whole) < 1e-5


def test_on_unit_vectors_it_is_the_unscaled_dot_product():
  q, k, v = _heads()
  q, k = (x / jnp.sqrt(jnp.square(x).sum(-1, keepdims=True)) for x in (q, k))
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  plain = attend(q, k, v, posjax.get('unscaled'), {}, **ids)
  assert error(attend(q, k, v, cosine.scheme(), {}, **ids), plain) < 1e-5


def test_the_cosine_with_zeros_is_0_and_its_gradients_are_finite():
  q, k, _ = _heads()
  q, k = q.at[0, 0].set(0), k.at[1, 2].set(0)
  found, back = jax.vjp(similarity, q, k)
  np.testing.assert_array_equal(found[0, :, 0], 0)
  np.testing.assert_array_equal(found[1, :, :, 2], 0)
  for grad in back(jnp.ones(found.shape)):
    assert jnp.isfinite(grad).all()
    assert abs(grad).max() < 1e7  # 7 keys, each at most 1e6


def test_gradients_are_those_of_float64_differences():
  q, k, _ = _heads(batch=1, queries=2, keys=2, heads=1, kv_heads=1)
  weights = np.array([[1.0, -2.0], [0.5, 3.0]])
  grad = jax.grad(lambda q: (similarity(q, k)[0, 0] * weights).sum())(q)
  base = np.asarray(q, np.float64)
  for index in np.ndindex(q.shape):
    step = np.zeros(q.shape)
    step[index] = 1e-5
    ends = [(_cosines(base + sign * step, k)[0, 0] * weights).sum() for sign in (1, -1)]
    np.testing.assert_allclose(grad[index], (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-5)


def test_cosines_stay_within_1_for_vectors_of_any_size():
  q, k, _ = _heads(width=64)
  for size in (1e-5, 1.0, 1e15):
    found = similarity(size * q, size * k)
    assert error(found, _cosines(q, k)) < 1e-5
    assert abs(found).max() <= 1 + 1e-6


def test_weights_differ_by_no_more_than_e_squared():
  q, k, _ = _heads(queries=20, keys=20)
  weights = np.exp(np.asarray(similarity(100 * q, 100 * k), np.float64))
  assert (weights.max(-1) / weights.min(-1)).max() < np.exp(2) + 1e-5


def test_a_learned_temperature_begins_as_it_is_declared_and_has_one_value_per_head(key):
  q, k, v = _heads()
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  scheme = cosine.scheme(0.1, learned=True)
  params = scheme.init(key, posjax.Dims(30, 6, 5, 2))
  assert params['log_strength'].shape == (6,)
  begun = attend(q, k, v, scheme, params, **ids)
  assert error(begun, attend(q, k, v, cosine.scheme(0.1), {}, **ids)) < 1e-5
  each = np.array([0.02, 0.1, 0.3, 1.0, 2.0, 7.0])
  own = attend(q, k, v, scheme, {'log_strength': -jnp.log(jnp.asarray(each))}, **ids)
  expected, _ = attention(_cosines(q, k) / each[:, None, None], True, np.asarray(v))
  assert error(own, expected) < 1e-5


def test_a_learned_temperature_is_never_below_a_hundredth():
  q, k, v = _heads()
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(7)}
  cold = {'log_strength': jnp.full(6, 9.0)}
  out = attend(q, k, v, cosine.scheme(learned=True), cold, **ids)
  assert error(out, attend(q, k, v, cosine.scheme(0.01), {}, **ids)) < 1e-5


def test_it_replaces_the_content_and_later_schemes_add_to_it(key):
  q, k, v = _heads(width=4)
  ids = {'q_pos': 2 + jnp.arange(5), 'k_pos': jnp.arange(7)}
  replaced = attend(q, k, v, posjax.get('rope+cosine'), ({}, {}), **ids)
  np.testing.assert_array_equal(replaced, attend(q, k, v, cosine.scheme(), {}, **ids))
  chained = posjax.get('cosine+shaw(max_distance=2, values=False)+alibi(geometric=True)')
  params = posjax.init(chained, key, posjax.Dims(24, 6, 4, 2))
  offset = np.subtract.outer(np.arange(7), 2 + np.arange(5)).T  # k_pos - q_pos
  rows = np.asarray(params[1]['keys'], np.float64)[np.clip(offset, -2, 2) + 2]
  shaw = np.einsum('bthd,tsd->bhts', np.asarray(q, np.float64), rows) / 2
  slopes = 2.0 ** (-8 * np.arange(1, 7) / 6)
  logits = _cosines(q, k) + shaw - slopes[:, None, None] * abs(offset)
  expected, _ = attention(logits, True, np.asarray(v))
  assert error(attend(q, k, v, chained, params, **ids), expected) < 1e-5


def test_arguments_out_of_range_are_refused():
  with pytest.raises(ValueError, match=r'must begin at 0\.01 or above, but got 0\.005'):
    cosine.scheme(temperature=0.005, learned=True)
