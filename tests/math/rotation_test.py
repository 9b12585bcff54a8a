import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.rotation import rotary_scheme, rotary_width, rotate
from tests.support.loops import error
from tests.support.rotations import turned

ANGLES = np.random.default_rng(1).uniform(-np.pi, np.pi, (2, 3, 4)).astype(np.float32)


def _heads(width, dtype=np.float32):
  return np.random.default_rng(0).normal(size=(2, 3, 2, width)).astype(dtype)


def _by_complex_numbers(x, angle, interleaved, factor):
  """Each pair as a complex number times factor e^(i angle), in float64; the rest is copied."""
  out, half = np.array(x, np.float64), angle.shape[-1]
  for b, t, h, k in np.ndindex(*x.shape[:3], half):
    first, second = (2 * k, 2 * k + 1) if interleaved else (k, k + half)
    pair = complex(x[b, t, h, first], x[b, t, h, second])
    pair *= factor * np.exp(1j * float(angle[b, t, k]))
    out[b, t, h, first], out[b, t, h, second] = pair.real, pair.imag
  return out


@pytest.mark.parametrize('interleaved', [False, True])
@pytest.mark.parametrize('width', [8, 9, 12])
def test_each_pair_is_multiplied_by_a_complex_number_and_the_rest_is_copied(width, interleaved):
  x = _heads(width)
  out = jax.jit(rotate, static_argnums=(2, 3))(x, ANGLES, interleaved, 1.5)
  assert error(out, _by_complex_numbers(x, ANGLES, interleaved, 1.5)) < 1e-6
  np.testing.assert_array_equal(out[..., 8:], x[..., 8:])


def test_a_rotation_keeps_lengths_and_the_opposite_angle_undoes_it():
  x = _heads(8)
  out = rotate(jnp.asarray(x), jnp.asarray(ANGLES))
  lengths = [np.linalg.norm(np.asarray(y, np.float64), axis=-1) for y in (out, x)]
  np.testing.assert_allclose(*lengths, rtol=1e-6)
  assert error(rotate(out, jnp.asarray(-ANGLES)), x) < 1e-6


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16, jnp.float32])
def test_heads_keep_their_dtype_and_are_rotated_in_float32(dtype):
  x = jnp.asarray(_heads(8)).astype(dtype)
  out = rotate(x, jnp.asarray(ANGLES))
  assert out.dtype == dtype
  rounded = rotate(x.astype(jnp.float32), jnp.asarray(ANGLES)).astype(dtype)
  np.testing.assert_array_equal(out, rounded)


@pytest.mark.parametrize(
  ('head_dim', 'fraction', 'expected'),
  [(64, 1.0, 64), (64, 0.25, 16), (50, 14 / 50, 14), (49, 4 / 49, 4)],
)
def test_the_rotated_width_is_the_share_of_the_head(head_dim, fraction, expected):
  assert rotary_width(head_dim, fraction) == expected


@pytest.mark.parametrize(('head_dim', 'fraction'), [(5, 1.0), (8, 0.3), (8, 0.375), (1, 1.0)])
def test_a_width_that_is_not_a_positive_even_integer_is_refused(head_dim, fraction):
  with pytest.raises(ValueError, match=f'and even, but fraction .* of head width {head_dim}'):
    rotary_width(head_dim, fraction)


@pytest.mark.parametrize('interleaved', [False, True])
def test_the_scheme_rotates_queries_and_keys_by_position_times_frequency(interleaved):
  x, pos = _heads(16), np.array([[0, 1, 7], [131072, 3, 40]], np.int32)
  frequencies = np.array([1.0, 0.3, 0.02, 1e-4])
  scheme = rotary_scheme(lambda width: frequencies[: width // 2], 0.5, interleaved, 0.5)
  expected = turned(x, pos, frequencies, interleaved, 0.5)
  for place in (scheme.query, scheme.key):
    assert error(jax.jit(place)({}, x, jnp.asarray(pos)), expected) < 1e-6
  assert scheme.traits.axes == 1


def test_the_frequencies_are_asked_for_the_rotated_width():
  asked = []
  scheme = rotary_scheme(lambda width: asked.append(width) or np.ones(width // 2), fraction=0.25)
  scheme.query({}, jnp.zeros((1, 2, 1, 32)), jnp.zeros((1, 2), jnp.int32))
  assert asked == [8]


def _geometric(width, base=10000.0):
  return np.float64(base) ** (-2 * np.arange(width // 2) / width)


def _rescaled(width, base, factor):
  return _geometric(width, base * factor ** (width / (width - 2)))


def _llama3(width, factor, length, base):
  """Grattafiori et al. 2024, in the form of the released code: by wavelengths, pair by pair."""
  found = []
  for f in _geometric(width, base):
    wavelength = 2 * np.pi / f
    share = min(max((length / wavelength - 1.0) / (4.0 - 1.0), 0.0), 1.0)
    found.append(share * f + (1 - share) * f / factor)
  return np.array(found)


LISTS = 'short_factor=(1.0, 1.0, 1.0), long_factor=(1.0, 1.5, 4.0)'
TURNING = {  # of values of width 6 on axis 0, unless a second entry says which axis
  'ntk(factor=8.0, base=100.0': (_rescaled(6, 100.0, 8.0), (0, 0, 0)),
  'dynamic_ntk(length=512, original_length=128, factor=2.0': (_rescaled(6, 1e4, 7.0), (0, 0, 0)),
  f'longrope(512, 128, {LISTS}': (_geometric(6) / [1.0, 1.5, 4.0], (0, 0, 0)),
  'llama3(factor=8.0, original_length=32, base=10.0': (_llama3(6, 8.0, 32, 10.0), (0, 0, 0)),
  'axial_rope(axes=3, base=100.0': ([1.0, 1.0, 1.0], (0, 1, 2)),
  'axial_rope(axes=3, interleaved_axes=True': (_geometric(6), (0, 1, 2)),
  'mrope(sections=(1, 2)': (_geometric(6), (0, 1, 1)),
}


@pytest.mark.parametrize('line', TURNING)
def test_values_turn_as_the_formula_says_and_outputs_turn_back(line):
  """In float64; the values are narrower than queries and keys would be, and nothing scales them."""
  each, axes = TURNING[line]
  assert posjax.places(posjax.get(f'{line})')) == ('query', 'key')
  scheme = posjax.get(f'{line}, values=True)')
  assert posjax.places(scheme) == ('query', 'key', 'values')
  v = _heads(6)
  several = np.random.default_rng(2).integers(0, 500, (2, 3, max(axes) + 1))
  at = jnp.asarray(several if scheme.traits.axes > 1 else several[..., 0])
  expected = _by_complex_numbers(v, several[..., list(axes)] * np.asarray(each), False, 1.0)
  found = scheme.values.value({}, jnp.asarray(v), at)
  assert error(found, expected) < 1e-5
  assert error(found, v) > 0.1
  assert error(scheme.values.output({}, found, at), v) < 1e-6


def test_values_turn_by_neighbours_where_queries_do():
  for line in ('ntk(interleaved=True', 'axial_rope(interleaved=True'):
    scheme = posjax.get(f'{line}, values=True)')
    at = jnp.arange(6).reshape(2, 3, 1)
    at = jnp.concatenate([at, at + 7], axis=-1) if scheme.traits.axes > 1 else at[..., 0]
    v = jnp.asarray(_heads(8))
    assert error(scheme.values.value({}, v, at), scheme.query({}, v, at)) == 0


def test_the_factor_of_mrope_and_of_longrope_is_not_for_values():
  pos = jnp.arange(6).reshape(2, 3)
  v = jnp.asarray(_heads(6))
  lines = [('mrope(sections=(1, 2), attention_factor=1.5, values=True)', 2)]
  lines.append((f'longrope(512, 128, {LISTS}, values=True)', 1))
  for line, axes in lines:
    at = pos if axes == 1 else jnp.stack([pos] * axes, axis=-1)
    norms = [jnp.linalg.norm(x, axis=-1) for x in (v, posjax.get(line).values.value({}, v, at))]
    assert error(*norms) < 1e-6
