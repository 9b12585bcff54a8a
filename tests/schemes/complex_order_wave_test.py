"""Claim 1 of the paper: which functions of the position a wave can be."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import complex_order, sinusoidal
from posjax.schemes.complex_order import scheme
from tests.support.loops import error

DIMS = posjax.Dims(width=6, num_heads=2, head_dim=3, vocab=7)
WAVE = scheme(phases=True, origin=0)
embed = jax.jit(lambda scheme, *args: scheme.embed(*args), static_argnums=0)
solution = jax.jit(complex_order.solution)


# Claim 1.


@pytest.fixture
def wave(key):
  """g(pos) of word 4 as a function of integer ids, its z1 and z2, with initial phases."""
  params = WAVE.init_model(key, DIMS)
  r = np.random.default_rng(1).normal(size=6).astype(np.float32)

  def g(pos):
    x = jnp.broadcast_to(jnp.asarray(r), (1, len(pos), 6))
    tokens = jnp.full(x.shape[:2], 4)
    return np.asarray(embed(WAVE, params, x, tokens, jnp.asarray(pos)[None])[0])

  z1 = np.exp(1j * np.asarray(params['frequency'][4], np.float64))
  return g, z1, r * np.exp(1j * np.asarray(params['phase'][4], np.float64))


@pytest.mark.parametrize('n', [1, 17, 100_003])
def test_an_offset_multiplies_by_a_factor_that_knows_no_position(wave, n):
  g, z1, _ = wave
  pos = np.array([0, 1, 2, 50, 4096, 131_072, 2**30])
  np.testing.assert_allclose(g(pos + n), z1**n * g(pos), atol=3e-6)


def test_it_is_bounded_by_its_value_at_0_and_keeps_its_size(wave):
  g, _, z2 = wave
  waves = g(2 ** np.arange(31))
  chex.assert_shape(waves, (31, 6))
  chex.assert_tree_all_finite(waves)
  chex.assert_trees_all_close(abs(waves), np.tile(abs(z2), (31, 1)), rtol=1e-6)


def test_it_is_the_general_solution_with_z1_on_the_circle(wave):
  g, z1, z2 = wave
  pos = np.arange(1000)
  narrow = [jnp.asarray(z, jnp.complex64) for z in (z1, z2)]
  assert error(g(pos), z2 * z1 ** pos[:, None]) <= 1e-6
  assert error(solution(jnp.asarray(pos[:50]), *narrow), g(pos[:50])) <= 1e-5


def test_the_general_solution_vanishes_inside_the_circle_stays_on_it_and_grows_outside():
  turn = np.exp(0.7j)
  z1 = jnp.asarray(np.array([0.0, 0.5, 0.99, 1.0, 1.01]) * turn, jnp.complex64)
  z2 = jnp.full(5, 3 - 4j, jnp.complex64)
  size = abs(np.asarray(solution(jnp.arange(3001), z1, z2)))
  np.testing.assert_allclose(size[0], 5, rtol=1e-6)
  assert (np.diff(size[:20, 1:3], axis=0) < 0).all()
  assert size[1:, 0].max() == 0
  assert size[-1, 1:3].max() < 1e-11
  np.testing.assert_allclose(size[:, 3], 5, rtol=1e-3)  # float32's |z1| is not quite 1
  assert size[-1, 4] > 1e12


def factors(g):
  """w(n) = g(n) / g(0), and whether g(pos + n) = w(n) g(pos) for all pos and n."""
  w, half = g / g[0], len(g) // 2
  defects = [abs(g[n : n + half] - w[n] * g[:half]).max() for n in range(half)]
  return w, max(defects) / abs(g).max()


def test_conversely_what_is_position_free_and_bounded_is_z2_times_z1_to_the_position(wave):
  g, z1, _ = wave
  values = g(np.arange(40))
  w, defect = factors(values)
  assert defect <= 1e-5
  for n in range(20):  # w(n1) w(n2) = w(n1 + n2), so that w(n) = w(1)^n
    np.testing.assert_allclose(w[n] * w[:20], w[n : n + 20], atol=1e-5)
  np.testing.assert_allclose(w[1], z1, atol=1e-5)
  np.testing.assert_allclose(values[0] * w[1] ** np.arange(40)[:, None], values, atol=1e-4)
  assert abs(w[1]).max() <= 1 + 1e-6


def test_other_functions_of_the_position_have_no_such_factors():
  pos = np.arange(40.0)[:, None]
  chirp, sum_of_two, added = np.exp(0.01j * pos**2), 1 + np.exp(0.3j * pos), 2 + np.sin(pos + 1)
  for g in (chirp, sum_of_two, added, 1 / (1 + pos)):
    assert factors(g)[1] > 0.05


def test_with_the_sinusoids_frequencies_it_is_the_sinusoid():
  how = scheme(per_word=False, origin=0)
  params = how.init_model(jax.random.key(0), DIMS)
  pos = jnp.arange(300)
  found = embed(how, params, jnp.ones((1, 300, 6)), None, pos)[0]
  expected = np.asarray(sinusoidal.encoding(pos, 12))
  np.testing.assert_allclose(found.imag, expected[:, 0::2], atol=2e-5)
  np.testing.assert_allclose(found.real, expected[:, 1::2], atol=2e-5)
  np.testing.assert_allclose(params['frequency'][0], 10000.0 ** (-2 * np.arange(6) / 12), rtol=1e-6)
