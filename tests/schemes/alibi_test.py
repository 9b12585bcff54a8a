import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import alibi
from tests.support.paths import load_golden

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
GOLDEN = load_golden('alibi')


def _error(got, expected):
  return abs(np.asarray(got, np.float64) - expected).max() / abs(np.asarray(expected)).max()


def _attention(key, scheme, params, heads=6, tokens=7, **how):
  q, k, v = jax.random.normal(key, (3, 2, tokens, heads, 4))
  pos = jnp.arange(tokens)
  return attend(q, k, v, scheme, params, q_pos=pos, k_pos=pos, **how)


def test_the_bias_is_minus_slope_times_distance_and_symmetric():
  distance = np.arange(-20, 21)
  expected = -np.array([[0.25], [0.0625]]) * abs(distance)
  got = alibi.bias(jnp.array([0.25, 0.0625]), jnp.asarray(distance))
  np.testing.assert_array_equal(got, expected)
  np.testing.assert_array_equal(got, got[:, ::-1])


@pytest.mark.parametrize('name', [n for n in GOLDEN.files if n.startswith('slopes_bloom')])
def test_slopes_equal_bloom_for_every_number_of_heads(name):
  assert _error(alibi.slopes(int(name.split('_h')[1])), GOLDEN[name]) < 5e-7


@pytest.mark.parametrize('name', [n for n in GOLDEN.files if 'slopes' in n and 'bloom' not in n])
def test_slopes_equal_the_authors(name):
  assert _error(alibi.slopes(int(name.split('_h')[1])), GOLDEN[name]) < 1e-12


def test_slopes_of_a_power_of_two_are_the_papers_geometric_sequence():
  np.testing.assert_array_equal(alibi.slopes(8), 2.0 ** -np.arange(1, 9))
  for heads in (1, 2, 4, 16, 64):
    np.testing.assert_array_equal(alibi.slopes(heads), alibi.geometric_slopes(heads))


def test_the_geometric_option_follows_the_text_of_the_paper(key):
  dims = posjax.Dims(24, 6, 4)
  params = alibi.scheme(geometric=True).init(key, dims)
  np.testing.assert_allclose(params['slopes'], 2 ** (-8 * np.arange(1, 7) / 6), rtol=1e-6)
  assert abs(alibi.slopes(6) - params['slopes']).max() > 0.01


def test_it_equals_deepminds_biases_without_their_half():
  for name in (n for n in GOLDEN.files if n.startswith('alibi_h')):
    heads, queries, keys = GOLDEN[name].shape
    distance = jnp.arange(queries)[:, None] - jnp.arange(keys)[None]
    got = alibi.bias(jnp.asarray(alibi.slopes(heads), jnp.float32), distance)
    half = 0.5 * np.tri(queries, keys, -1)  # of a token, below the diagonal
    expected = GOLDEN[name] - alibi.slopes(heads)[:, None, None] * half
    assert _error(got, expected) < 1e-6


def test_under_a_causal_mask_blooms_key_only_form_is_the_same(key):
  # Rows: full, left-padded by 2, right-padded by 2; the softmax forgets what a row shares.
  real = GOLDEN['bloom_attention_mask'].astype(bool)
  bloom = GOLDEN['bloom_alibi_h6'].reshape(3, 6, 1, 7)
  slopes = jnp.asarray(alibi.slopes(6), jnp.float32)
  pos = posjax.positions.from_mask(jnp.asarray(real))
  ours = np.asarray(alibi.bias(slopes, pos[:, :, None] - pos[:, None]))
  logits = np.random.default_rng(0).normal(size=(3, 6, 7, 7))
  seen = np.tri(7, dtype=bool) & (real[:, None] & real[:, :, None])
  both = []
  for bias in (bloom, ours.swapaxes(0, 1)):
    masked = np.where(seen[:, None], logits + bias, -np.inf)
    rows = masked.transpose(0, 2, 1, 3)[real]  # padded queries see nothing
    weights = np.exp(rows - rows.max(-1, keepdims=True))
    both.append(weights / weights.sum(-1, keepdims=True))
  assert _error(both[1], both[0]) < 1e-6


def test_without_a_mask_blooms_form_rewards_later_keys():
  # From the query 0: ours falls with the distance, theirs rises.
  ours = alibi.bias(jnp.array([0.5]), 0 - jnp.arange(4))[0]
  np.testing.assert_array_equal(ours, -0.5 * np.arange(4))
  slopes, key_only = alibi.slopes(6), GOLDEN['bloom_alibi_h6'].reshape(3, 6, 7)[0]
  assert _error(key_only, slopes[:, None] * np.arange(7)) < 1e-6


def test_attention_has_the_bias_after_the_scaling(key):
  scheme = alibi.scheme()
  params = scheme.init(key, posjax.Dims(24, 6, 4))
  out = _attention(key, scheme, params, causal=True)
  q, k, v = np.asarray(jax.random.normal(key, (3, 2, 7, 6, 4)), np.float64)
  distance = np.subtract.outer(np.arange(7), np.arange(7))
  logits = np.einsum('bthd,bshd->bhts', q, k) / 2
  logits = logits - alibi.slopes(6)[:, None, None] * abs(distance)
  weights = np.exp(np.where(distance >= 0, logits, -np.inf))
  weights /= weights.sum(-1, keepdims=True)
  assert _error(out, np.einsum('bhts,bshd->bthd', weights, v)) < 1e-5


def test_slopes_of_zero_are_no_positions(key):
  out = _attention(key, alibi.scheme(), {'slopes': jnp.zeros(6)})
  np.testing.assert_allclose(out, _attention(key, posjax.Scheme(), {}), atol=1e-6)


def test_an_infinite_slope_attends_to_the_token_itself(key):
  out = _attention(key, alibi.scheme(), {'slopes': jnp.full(6, 1e6)})
  np.testing.assert_allclose(out, jax.random.normal(key, (3, 2, 7, 6, 4))[2], atol=1e-6)


def test_learned_slopes_have_gradients_and_constant_ones_exactly_none(key):
  params = alibi.scheme().init(key, posjax.Dims(24, 6, 4))
  loss = lambda params, scheme: (_attention(key, scheme, params) ** 2).sum()
  constant = jax.grad(loss)(params, alibi.scheme())
  np.testing.assert_array_equal(constant['slopes'], 0)
  learned = jax.grad(loss)(params, alibi.scheme(learned=True))['slopes']
  assert abs(learned).min() > 0
  step = params['slopes'].at[5].add(1e-2), params['slopes'].at[5].add(-1e-2)
  ends = [loss({'slopes': s}, alibi.scheme(learned=True)) for s in step]
  np.testing.assert_allclose(learned[5], (ends[0] - ends[1]) / 2e-2, rtol=1e-2)


def test_only_constant_slopes_are_fixed(key):
  params = alibi.scheme().init(key, posjax.Dims(24, 6, 4))
  assert posjax.split(alibi.scheme(), params) == ({}, params)
  assert posjax.split(alibi.scheme(learned=True), params) == (params, {})


def test_bfloat16_slopes_count_every_token():
  distance = jnp.array([256, 257, 131071, 131072])
  got = alibi.bias(jnp.array([0.5], jnp.bfloat16), distance)
  assert got.dtype == jnp.float32
  np.testing.assert_array_equal(got[0], -0.5 * np.asarray(distance))


def test_fractions_of_a_token_are_allowed():
  np.testing.assert_array_equal(alibi.bias(jnp.ones(1), jnp.array([-1.5, 0.25])), [[-1.5, -0.25]])


@pytest.mark.parametrize('make', [alibi.slopes, alibi.geometric_slopes])
@pytest.mark.parametrize('heads', [0, -2])
def test_no_head_is_refused(make, heads):
  with pytest.raises(ValueError, match='at least one head, but got'):
    make(heads)
