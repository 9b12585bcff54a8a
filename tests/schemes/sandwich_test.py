import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import sandwich, sinusoidal
from tests.support.loops import attention, causal, content, error

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _reference(num_heads, distance, width, base):
  """Products of two sinusoidal codes, less width/2, over 8 h / H; float64, pair by pair."""
  found = np.zeros((num_heads, *np.shape(distance)))
  for h in range(num_heads):
    for at in np.ndindex(np.shape(distance)):
      terms = [np.cos(distance[at] / base ** (2 * i / width)) for i in range(width // 2)]
      found[(h, *at)] = (sum(terms) - width / 2) / (8 * (h + 1) / num_heads)
  return found


@pytest.mark.parametrize(('width', 'base'), [(128, 10000.0), (6, 100.0)])
def test_attention_is_the_papers_formula_pair_by_pair(key, width, base):
  scheme = sandwich.scheme(width, base)
  params = scheme.init(key, posjax.Dims(24, 6, 4, 2))
  draw = np.random.default_rng(0).normal
  q, k, v = draw(size=(2, 5, 6, 4)), draw(size=(2, 7, 2, 4)), draw(size=(2, 7, 2, 3))
  q_pos = np.array([[3, 0, 9, 4, 4], [0, 1, 2, 3, 4]])
  k_pos = np.array([[0, 3, 4, 5, 8, 9, 1000]] * 2)
  distance = q_pos[:, :, None] - k_pos[:, None]
  logits = content(q, k) + np.moveaxis(_reference(6, distance, width, base), 0, 1)
  single = [jnp.asarray(x, jnp.float32) for x in (q, k, v)]
  for seen, how in ((True, {}), (causal(q_pos, k_pos), {'causal': True})):
    expected = attention(logits, seen, v)[0]
    out = attend(*single, scheme, params, q_pos=q_pos, k_pos=k_pos, **how)
    assert error(out, expected) < 1e-5


def test_the_bias_is_the_formula_at_near_and_far_distances():
  distance = np.array([0, 1, -1, 2, 63, 64, -500, 8191, 131071, -(2**20), 10**9 + 7])
  ratios = jnp.asarray(sandwich.ratios(12), jnp.float32)
  found = sandwich.bias(ratios, jnp.asarray(distance, jnp.int32))
  expected = _reference(12, distance, 128, 10000.0)
  assert error(found, expected) < 1e-6
  near = abs(distance) <= 2  # each to its own size: nothing cancels
  np.testing.assert_allclose(found[:, near], expected[:, near], rtol=1e-6)


def test_it_is_the_inner_product_of_sinusoidal_positions_less_half_the_width():
  pos = jnp.array([0, 5, 17, 300])
  codes = np.asarray(sinusoidal.encoding(pos, 32), np.float64)
  found = sandwich.bias(jnp.ones(1), pos[:, None] - pos[None], width=32)[0]
  np.testing.assert_allclose(found, codes @ codes.T - 16, atol=2e-5)


def test_subtracting_half_the_width_changes_no_attention(key):
  scheme = sandwich.scheme(16)
  params = scheme.init(key, posjax.Dims(24, 6, 4))
  back = (8 / params['ratios'])[:, None, None, None]
  as_published = scheme._replace(bias=lambda p, d: scheme.bias(p, d) + back)
  q, k, v = jax.random.normal(key, (3, 2, 7, 6, 4))
  pos = jnp.arange(7)
  outs = [attend(q, k, v, s, params, q_pos=pos, k_pos=pos) for s in (scheme, as_published)]
  assert error(*outs) < 1e-5


def test_the_bias_is_even_zero_at_the_token_itself_and_negative_elsewhere():
  found = sandwich.bias(jnp.ones(1), jnp.arange(-2000, 2001))[0]
  np.testing.assert_array_equal(found, found[::-1])
  assert found[2000] == 0
  assert (found.at[2000].set(-1) < 0).all()
  assert found.min() >= -128


def test_it_falls_like_a_logarithm():
  distance = np.unique(np.geomspace(4, 4000, 200).astype(int))
  found = sandwich.bias(jnp.ones(1), jnp.asarray(distance))[0]
  assert np.corrcoef(np.log(distance), found)[0, 1] < -0.97
  assert np.corrcoef(distance, found)[0, 1] > -0.9


def test_a_width_of_two_is_one_cosine():
  found = sandwich.bias(jnp.array([2.0]), jnp.arange(20), width=2)[0]
  np.testing.assert_allclose(found, (np.cos(np.arange(20)) - 1) / 2, atol=1e-6)


def test_later_heads_are_flatter_and_the_ratio_of_the_last_is_eight():
  np.testing.assert_array_equal(sandwich.ratios(8), np.arange(1, 9))
  for heads in (1, 3, 12):
    assert sandwich.ratios(heads)[-1] == 8
    np.testing.assert_allclose(sandwich.ratios(heads), 8 * np.arange(1, heads + 1) / heads)
  bias = sandwich.bias(jnp.asarray(sandwich.ratios(3), jnp.float32), jnp.arange(1, 50))
  np.testing.assert_allclose(bias[0] / bias[2], 3, rtol=1e-6)


def test_any_shape_of_distances_gives_the_same_numbers():
  distance = np.arange(-9, 12).reshape(3, 7)
  ratios = jnp.array([2.0])
  expected = _reference(1, distance, 128, 10000.0) * 4
  assert error(sandwich.bias(ratios, jnp.asarray(distance)), expected) < 1e-6
  flat = sandwich.bias(ratios, jnp.asarray(distance.ravel()))
  assert error(flat, expected.reshape(1, -1)) < 1e-6
  assert error(sandwich.bias(ratios, jnp.asarray(distance[2, 3])), expected[:, 2, 3]) < 1e-6
  assert sandwich.bias(ratios, jnp.zeros((0, 3))).shape == (1, 0, 3)


def test_fractions_of_a_token_are_allowed():
  found = sandwich.bias(jnp.ones(1), jnp.array([0.5, -0.5]), width=2)[0]
  np.testing.assert_allclose(found, np.cos(0.5) - 1, rtol=1e-5)


def test_nothing_is_trained(key):
  params = sandwich.scheme().init(key, posjax.Dims(24, 6, 4))
  assert posjax.split(sandwich.scheme(), params) == ({}, params)


def test_no_pair_holds_a_number_for_each_frequency():
  ratios = jnp.asarray(sandwich.ratios(2), jnp.float32)
  pairs = jax.ShapeDtypeStruct((1024, 1024), jnp.int32)
  memory = jax.jit(lambda d: sandwich.bias(ratios, d)).lower(pairs).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 32 * 1024**2  # 64 frequencies would take 64 times 4 bytes


@pytest.mark.parametrize('width', [0, -2, 7])
def test_a_width_that_is_not_even_and_positive_is_refused(width):
  with pytest.raises(ValueError, match=f'even and at least 2, but got {width}'):
    sandwich.scheme(width)


def test_no_head_is_refused():
  with pytest.raises(ValueError, match='at least one head, but got 0'):
    sandwich.ratios(0)
