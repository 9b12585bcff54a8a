import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.softplus import inverse_softplus
from posjax.schemes import alibi, kerple
from tests.support.loops import attention, causal, content, error

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
DIMS = posjax.Dims(24, 6, 4, 2)
POWER = [False, True]


def _log(r1, r2, d):
  return -r1 * np.log(1 + r2 * abs(d))


def _power(r1, r2, d):
  return -r1 * abs(d) ** r2


def _trained(params, power):
  """r1 and r2 in float64, from the definitions of softplus and of the sigmoid."""
  raw = {name: np.asarray(value, np.float64) for name, value in params.items()}
  r1 = np.log(1 + np.exp(raw['raw_factor']))
  r2 = 2 / (1 + np.exp(-raw['raw_exponent'])) if power else np.log(1 + np.exp(raw['raw_rate']))
  return r1, r2


@pytest.mark.parametrize('power', POWER)
@pytest.mark.parametrize('kv_heads', [2, 6])
def test_attention_is_the_papers_formula_pair_by_pair(key, power, kv_heads):
  scheme = kerple.scheme(power)
  params = scheme.init(key, DIMS)
  draw = np.random.default_rng(0).normal
  q, k, v = draw(size=(2, 5, 6, 4)), draw(size=(2, 7, kv_heads, 4)), draw(size=(2, 7, kv_heads, 3))
  q_pos = np.array([[3, 0, 9, 4, 4], [0, 1, 2, 3, 4]])
  k_pos = np.array([[0, 3, 4, 5, 8, 9, 1000]] * 2)
  logits = content(q, k)
  r1, r2 = _trained(params, power)
  for b, h, t, s in np.ndindex(logits.shape):
    d = float(q_pos[b, t] - k_pos[b, s])
    logits[b, h, t, s] += (_power if power else _log)(r1[h], r2[h], d)
  single = [jnp.asarray(x, jnp.float32) for x in (q, k, v)]
  for seen, how in ((True, {}), (causal(q_pos, k_pos), {'causal': True})):
    expected = attention(logits, seen, v)[0]
    out = attend(*single, scheme, params, q_pos=q_pos, k_pos=k_pos, **how)
    assert error(out, expected) < 1e-5


@pytest.mark.parametrize('power', POWER)
def test_the_bias_is_exact_up_to_far_distances_of_both_signs(power):
  r1, r2 = np.array([0.01, 0.7, 2.0]), np.array([0.01, 1.0, 1.9])
  d = np.array([0, 1, -1, 2, 255, 256, 257, -4097, 131071, 2**20 + 1, -(2**31), 2**31 - 1])
  given = (jnp.asarray(r1, jnp.float32), jnp.asarray(r2, jnp.float32), jnp.asarray(d, jnp.int32))
  found = (kerple.power_bias if power else kerple.log_bias)(*given)
  for h in range(3):
    expected = (_power if power else _log)(r1[h], r2[h], d.astype(np.float64))
    np.testing.assert_allclose(found[h], expected, rtol=2e-6)


@pytest.mark.parametrize('make', [kerple.log_bias, kerple.power_bias])
def test_the_bias_is_symmetric_zero_at_the_token_itself_and_falls(make):
  found = make(jnp.array([0.3, 1.2]), jnp.array([0.2, 1.7]), jnp.arange(-30, 31))
  np.testing.assert_array_equal(found, found[:, ::-1])
  np.testing.assert_array_equal(found[:, 30], 0)
  assert (np.diff(found[:, 30:]) < 0).all()


def test_power_one_is_alibi(key):
  slopes = jnp.asarray(alibi.slopes(6), jnp.float32)
  params = {'raw_factor': inverse_softplus(slopes), 'raw_exponent': jnp.zeros(6)}
  q, k, v = jax.random.normal(key, (3, 2, 9, 6, 4))
  how = {'q_pos': jnp.arange(9), 'k_pos': jnp.arange(9), 'causal': True}
  found = attend(q, k, v, kerple.scheme(power=True), params, **how)
  assert error(found, attend(q, k, v, alibi.scheme(), {'slopes': slopes}, **how)) < 1e-6


def test_a_small_rate_makes_the_logarithm_alibi():
  slopes, rate = alibi.slopes(6), 1e-6
  found = kerple.log_bias(
    jnp.asarray(slopes / rate, jnp.float32), jnp.full(6, rate), jnp.arange(-50, 51)
  )
  assert error(found, alibi.bias(jnp.asarray(slopes, jnp.float32), jnp.arange(-50, 51))) < 1e-4


def test_the_ratio_of_two_distances_is_kept_at_any_scale_by_the_power():
  found = kerple.power_bias(jnp.ones(1), jnp.array([0.5]), jnp.array([1, 4, 1000, 4000]))[0]
  np.testing.assert_allclose(found[1::2] / found[::2], 2, rtol=1e-6)


@pytest.mark.parametrize('make', [kerple.log_bias, kerple.power_bias])
def test_gradients_are_finite_at_distance_zero_and_those_of_the_formula(make):
  distance = jnp.array([0.0, 0.0, 3.0, -2.5])
  loss = lambda r1, r2, d: make(r1, r2, d).sum()
  by_r1, by_r2, by_d = jax.grad(loss, (0, 1, 2))(jnp.array([0.7]), jnp.array([0.4]), distance)
  far = np.array([3.0, 2.5])
  if make is kerple.power_bias:
    expected = (-(far**0.4).sum(), -(0.7 * far**0.4 * np.log(far)).sum())
    slope = -0.7 * 0.4 * far ** (0.4 - 1)
  else:
    expected = (-np.log(1 + 0.4 * far).sum(), -(0.7 * far / (1 + 0.4 * far)).sum())
    slope = -0.7 * 0.4 / (1 + 0.4 * far)
  np.testing.assert_allclose([by_r1[0], by_r2[0]], expected, rtol=1e-6)
  np.testing.assert_allclose(by_d[2:], slope * [1, -1], rtol=1e-6)
  assert jnp.isfinite(by_d).all()
  if make is kerple.power_bias:
    np.testing.assert_array_equal(by_d[:2], 0)


@pytest.mark.parametrize('power', POWER)
def test_initial_values_are_those_of_the_authors(key, power):
  many = posjax.Dims(8, 4000, 2)
  r1, r2 = _trained(kerple.scheme(power).init(key, many), power)
  for found, bound in ((r1, 1 if power else 2), (r2, 2 if power else 1)):
    assert 0.0099 < found.min() < 0.02 * bound
    assert 0.98 * bound < found.max() < bound
    assert abs(found.mean() - bound / 2) < 0.03 * bound  # 4000 uniform numbers


@pytest.mark.parametrize('power', POWER)
def test_wherever_training_leads_the_bias_falls_and_learns(power):
  extreme = jnp.array([-12.0, 0.0, 12.0])
  second = 'raw_exponent' if power else 'raw_rate'
  params = {'raw_factor': extreme, second: extreme[::-1]}
  scheme = kerple.scheme(power)
  assert (scheme.bias(params, jnp.arange(1, 9)) < 0).all()
  for grad in jax.grad(lambda p: scheme.bias(p, jnp.arange(9)).sum())(params).values():
    assert (abs(grad) > 1e-8).all()


def test_the_maps_into_the_ranges_have_inverses():
  values = jnp.array([0.01, 0.5, 1.0, 1.99])
  np.testing.assert_allclose(kerple.positive(inverse_softplus(values)), values, rtol=1e-5)
  np.testing.assert_allclose(kerple.exponent(kerple.raw_exponent(values)), values, rtol=1e-5)
  np.testing.assert_allclose(kerple.positive(inverse_softplus(jnp.array([50.0]))), 50)


def test_bfloat16_parameters_count_every_token():
  half = jnp.array([1.0], jnp.bfloat16)
  found = kerple.power_bias(half, half, jnp.array([256, 257, 131071]))
  assert found.dtype == jnp.float32
  np.testing.assert_array_equal(found[0], [-256, -257, -131071])
