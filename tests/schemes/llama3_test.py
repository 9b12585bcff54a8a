import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math import angles
from posjax.schemes import llama3, rope
from tests.support.loops import error
from tests.support.rotations import GOLDEN, attended, compiled, golden, heads, reading

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _authors(width, factor, length, base, low=1.0, high=4.0):
  """By wavelengths, frequency by frequency."""
  found = []
  for k in range(width // 2):
    frequency = base ** (-2 * k / width)
    wavelength = 2 * np.pi / frequency
    if wavelength < length / high:
      found.append(frequency)
    elif wavelength > length / low:
      found.append(frequency / factor)
    else:
      smooth = (length / wavelength - low) / (high - low)
      found.append((1 - smooth) * frequency / factor + smooth * frequency)
  return found


@pytest.mark.parametrize('interleaved', [False, True])
@pytest.mark.parametrize(('width', 'queries'), [(10, 7), (24, 3)])
def test_attention_is_the_authors(width, queries, interleaved):
  q, k, v, q_pos, k_pos = heads(width, queries)
  scheme = compiled(llama3.scheme(6.0, 700, 500.0, 0.5, 3.0, interleaved=interleaved))
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos, causal=True)
  frequencies = _authors(width, 6.0, 700, 500.0, 0.5, 3.0)
  assert error(out, attended(q, k, v, q_pos, k_pos, frequencies, interleaved=interleaved)) < 1e-5


@golden('llama3')
def test_it_is_hugging_faces_llama_3p1_by_default(config, frequencies, factor):
  found, grown = reading(llama3.scheme().query, config['head_dim'], frequencies)
  np.testing.assert_allclose(found, frequencies, rtol=5e-6)
  np.testing.assert_allclose(grown, factor, rtol=1e-6)


def test_cos_and_sin_are_hugging_faces():
  pos = jnp.asarray(GOLDEN['position_ids'], jnp.int32)[None]
  x = jnp.concatenate([jnp.ones((1, 10, 1, 64)), jnp.zeros((1, 10, 1, 64))], axis=-1)
  out = compiled(llama3.scheme()).key({}, x, pos)[0, :, 0]
  expected = [GOLDEN[f'llama3p1_8b__{name}'] for name in ('cos', 'sin')]
  expected = np.concatenate(expected, axis=-1)
  assert error(out[:5], expected[:5]) < 1e-5
  assert error(out, expected) < 1e-2  # their float32 angles at position 131071


def test_fast_pairs_are_untouched_slow_ones_divided_and_those_between_mixed():
  own = angles.frequencies(128, 5e5)
  wavelength = 2 * np.pi / own
  divided = own / llama3.frequencies(128, 32.0)
  fast, slow = wavelength < 8192 / 4, wavelength > 8192
  between = ~fast & ~slow
  assert min(fast.sum(), slow.sum(), between.sum()) > 3
  np.testing.assert_allclose(divided[fast], 1, rtol=1e-12)
  np.testing.assert_allclose(divided[slow], 32, rtol=1e-12)
  assert ((divided[between] > 1) & (divided[between] < 32)).all()
  assert (np.diff(divided[between]) > 0).all()


@pytest.mark.parametrize('options', [{}, {'fraction': 0.5, 'interleaved': True}])
def test_at_factor_1_it_is_rope(key, options):
  x, pos = jax.random.normal(key, (1, 3, 2, 16)), jnp.array([[1, 40, 30000]])
  found = compiled(llama3.scheme(factor=1.0, **options)).query({}, x, pos)
  assert error(found, compiled(rope.scheme(base=5e5, **options)).query({}, x, pos)) < 1e-6


def test_with_all_pairs_slow_it_is_interpolation():
  made = llama3.frequencies(64, 4.0, original_length=6)
  np.testing.assert_allclose(made, angles.frequencies(64, 5e5) / 4, rtol=1e-12)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'low_frequency_factor': 4.0}, 'must be above the low one, .* but got 4.0 and 4.0'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    llama3.scheme(**arguments)
