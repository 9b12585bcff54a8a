import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from posjax.math.angles import angles, assigned_angles, cos_sin, frequencies, learned_angles

FAR = [0, 1, -1, 1000, -1000, 131072, 10**6, 10**7, -(10**7), 2**31 - 5, 2**31 - 1, -(2**31)]


def _exact(positions, radians_per_token, function):
  with mpmath.workprec(200):
    turned = [
      [mpmath.mpf(int(p)) * mpmath.mpf(float(f)) for f in radians_per_token] for p in positions
    ]
    return np.array([[float(function(a)) for a in row] for row in turned])


def _worst(angle, positions, radians_per_token):
  angle = np.asarray(angle, np.float64)
  sin = abs(np.sin(angle) - _exact(positions, radians_per_token, mpmath.sin))
  cos = abs(np.cos(angle) - _exact(positions, radians_per_token, mpmath.cos))
  return max(sin.max(), cos.max())


@pytest.mark.parametrize('width', [2, 9, 64, 128])
@pytest.mark.parametrize('base', [1e3, 1e4, 5e5])
def test_sine_and_cosine_are_exact_at_every_int32_position(width, base):
  f = frequencies(width, base)
  pos = jnp.array(FAR, jnp.int32)
  assert _worst(angles(pos, f), FAR, f) < 3e-7
  assert _worst(jax.jit(lambda p: angles(p, f))(pos), FAR, f) < 3e-7


def test_sine_and_cosine_are_exact_at_random_positions():
  f = frequencies(32)
  positions = np.random.default_rng(0).integers(-(2**31), 2**31, 200)
  angle = angles(jnp.asarray(positions, jnp.int32), f)
  assert _worst(angle, positions, f) < 3e-7
  on_device = jnp.stack([jnp.sin(angle), jnp.cos(angle)])
  exact = np.stack([_exact(positions, f, g) for g in (mpmath.sin, mpmath.cos)])
  assert abs(np.asarray(on_device) - exact).max() < 1e-6


def test_integer_angles_lie_in_one_turn_around_zero():
  angle = angles(jnp.arange(-2000, 2000, dtype=jnp.int32), frequencies(64))
  assert angle.dtype == jnp.float32
  assert -np.pi <= angle.min() < -3.1
  assert 3.1 < angle.max() <= np.float32(np.pi)


def test_frequencies_beyond_one_turn_and_negative_ones_are_exact():
  f = np.array([100.0, 7.5, -0.3])
  assert _worst(angles(jnp.array(FAR, jnp.int32), f), FAR, f) < 3e-7


@pytest.mark.parametrize(
  ('dtype', 'positions'),
  [
    (jnp.int8, [-128, 127]),
    (jnp.int16, [-(2**15), 2**15 - 1]),
    (jnp.uint8, [255]),
    (jnp.uint16, [2**16 - 1]),
    (jnp.uint32, [2**31, 2**32 - 1]),
  ],
)
def test_narrow_and_unsigned_integers_mean_what_they_say(dtype, positions):
  f = frequencies(16)
  assert _worst(angles(jnp.array(positions, dtype), f), positions, f) < 3e-7


def test_int64_positions_are_exact_beyond_int32():
  positions = [2**31, -(2**31) - 1, 2**33 + 12345, -(10**11)]
  f = frequencies(8)
  with jax.enable_x64(True):
    angle = angles(jnp.array(positions, jnp.int64), f)
  assert angle.dtype == jnp.float32
  # 64 bits of a turn: 3.4e-19 of it times 1e11 tokens is still nothing.
  assert _worst(angle, positions, f) < 4e-7


@pytest.mark.parametrize('position', [0.25, 1000.5, -3.75, 131072.125, 8388607.5, 2.0**31 - 128])
def test_float32_positions_are_taken_as_given(position):
  f = frequencies(32)
  pos = jnp.array([position], jnp.float32)
  with mpmath.workprec(200):
    exact = [float(mpmath.sin(mpmath.mpf(float(pos[0])) * mpmath.mpf(float(w)))) for w in f]
  assert abs(np.sin(np.asarray(angles(pos, f), np.float64))[0] - exact).max() < 5e-7


def test_whole_floats_equal_integers():
  pos = jnp.array([0, 5, -7, 131072, 2**24], jnp.int32)
  whole, floats = angles(pos, frequencies(16)), angles(pos.astype(jnp.float32), frequencies(16))
  np.testing.assert_array_equal(whole, floats)


def test_float_positions_have_the_frequencies_as_gradients():
  f = frequencies(8)
  slope = jax.jacfwd(lambda p: angles(p, f))(jnp.float32(1000.25))
  np.testing.assert_allclose(slope, f, rtol=1e-6)


def test_float64_positions_give_float64():
  f = frequencies(8)
  with jax.enable_x64(True):
    angle = angles(jnp.array([1000.5], jnp.float64), f)
    assert angle.dtype == jnp.float64
  np.testing.assert_allclose(np.sin(angle[0]), np.sin(1000.5 * f), atol=1e-8)


def test_frequencies_are_geometric():
  np.testing.assert_allclose(frequencies(8, 1e4), 1e4 ** (-np.arange(4) / 4), rtol=1e-15)
  np.testing.assert_allclose(frequencies(7, 1e4), 1e4 ** (-2 * np.arange(3) / 7), rtol=1e-15)
  with_end = frequencies(8, 1e3, endpoint=True)
  np.testing.assert_allclose(with_end, 1e3 ** (-np.arange(4) / 3), rtol=1e-15)
  assert frequencies(2, 1e4, endpoint=True).tolist() == [1.0]
  assert frequencies(1).shape == (0,)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_ids_of_narrow_floats_are_refused(dtype):
  with pytest.raises(TypeError, match='Ids must be integers, float32 or float64, but got'):
    angles(jnp.zeros(3, dtype), frequencies(4))


@pytest.mark.parametrize('base', [0.0, -1.0, float('nan')])
def test_a_base_that_is_not_positive_is_refused(base):
  with pytest.raises(ValueError, match='The base must be positive, but got'):
    frequencies(4, base)


learned = jax.jit(learned_angles)


@pytest.mark.parametrize('pos', [0, 1, -1, 999, 131_072, -(2**20) - 3, 2**31 - 1, -(2**31)])
def test_angles_of_learned_frequencies_are_exact_at_every_int32_position(pos):
  draw, carrying = np.random.default_rng(0), [2.4019721, 1.6550331, 0.64737076, 0.54257095]
  frequency = [*draw.uniform(-3, 3, 9), *10 ** draw.uniform(-7, 3, 9), 0, 1, -1, 1e-30, *carrying]
  frequency = np.array(frequency, np.float32)
  found = np.asarray(learned(jnp.array([pos]), jnp.asarray(frequency)[None])[0], np.float64)
  assert abs(found).max() <= np.float32(np.pi)
  with mpmath.workprec(100):
    exact = [complex(mpmath.expj(mpmath.mpf(float(w)) * pos)) for w in frequency]
  assert abs(np.exp(1j * found) - exact).max() <= 3e-7


def test_learned_frequencies_take_float_ids_as_they_are_and_have_gradients_to_both():
  pos, w = jnp.array([100_000.25, -2.75], jnp.float32), jnp.array([[0.3], [1.7]], jnp.float32)
  exact = np.asarray(pos, np.float64) * np.asarray(w, np.float64)[:, 0]
  assert (
    abs(np.exp(1j * np.asarray(learned(pos, w), np.float64))[:, 0] - np.exp(1j * exact)).max()
    < 1e-6
  )
  both = jax.jit(jax.grad(lambda p, w: jnp.sin(learned(p, w)).sum(), argnums=(0, 1)))(pos, w)
  np.testing.assert_allclose(both[0], np.asarray(w)[:, 0] * np.cos(exact), rtol=1e-5)
  np.testing.assert_allclose(both[1][:, 0], np.asarray(pos) * np.cos(exact), rtol=1e-5)
  whole = jax.jit(jax.grad(lambda w: jnp.sin(learned(jnp.array([7, -9]), w)).sum()))(w)
  np.testing.assert_allclose(whole[:, 0], [7 * np.cos(2.1), -9 * np.cos(15.3)], rtol=1e-5)


def test_learned_frequencies_that_are_not_finite_give_nan():
  found = learned(jnp.array([0, 3]), jnp.array([[jnp.nan, jnp.inf, -jnp.inf, 2.0]]))
  np.testing.assert_array_equal(jnp.isnan(found), [[1, 1, 1, 0]] * 2)


def test_learned_frequencies_refuse_narrow_float_ids():
  with pytest.raises(TypeError, match='integers, float32 or float64, but got bfloat16'):
    learned_angles(jnp.zeros(3, jnp.bfloat16), jnp.ones((1, 2)))


def test_each_frequency_multiplies_the_id_of_its_axis():
  pos = np.array([[[3, 700, -2], [131072, 0, 5]]], np.int32)
  radians, axis = np.array([1.0, 0.2, 0.5, 0.01, 3.0]), np.array([2, 0, 1, 0, 2])
  found = np.asarray(assigned_angles(jnp.asarray(pos), radians, axis), np.float64)
  for b, t, k in np.ndindex(1, 2, 5):
    product = float(pos[b, t, axis[k]]) * radians[k]
    assert abs(np.exp(1j * found[b, t, k]) - np.exp(1j * product)) < 3e-7


@pytest.mark.parametrize('shape', [(), (5,), (2, 3, 4), (0, 4)])
def test_cosines_and_sines_are_both_computed_in_the_shape_of_the_angles(shape):
  angle = np.random.default_rng(0).uniform(-np.pi, np.pi, shape).astype(np.float32)
  cos, sin = jax.jit(cos_sin)(angle)
  assert cos.shape == sin.shape == shape
  wide = angle.astype(np.float64)
  np.testing.assert_allclose(cos, np.cos(wide), atol=1e-6)
  np.testing.assert_allclose(sin, np.sin(wide), atol=1e-6)


def test_cosines_and_sines_of_nan_are_nan_and_gradients_are_those_of_cosine_and_sine():
  assert all(jnp.isnan(part).all() for part in cos_sin(jnp.full(3, jnp.nan)))
  angle = jnp.array([0.3, -2.0])
  slopes = jax.jvp(cos_sin, (angle,), (jnp.ones(2),))[1]
  np.testing.assert_allclose(slopes, [-np.sin(angle), np.cos(angle)], atol=1e-6)
