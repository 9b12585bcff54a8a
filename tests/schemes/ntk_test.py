import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math import angles
from posjax.schemes import ntk, rope
from tests.support.loops import error
from tests.support.rotations import attended, compiled, golden, heads, reading

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _paper(width, base, factor):
  """Definition 1, from its changed base."""
  changed = base * factor ** (width / (width - 2))
  return [changed ** (-2 * k / width) for k in range(width // 2)]


@pytest.mark.parametrize(('width', 'queries'), [(10, 7), (16, 3)])
@pytest.mark.parametrize('interleaved', [False, True])
def test_attention_is_the_papers(width, queries, interleaved):
  q, k, v, q_pos, k_pos = heads(width, queries)
  scheme = compiled(ntk.scheme(factor=3.0, base=2000.0, interleaved=interleaved))
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos, causal=True)
  frequencies = _paper(width, 2000.0, 3.0)
  assert error(out, attended(q, k, v, q_pos, k_pos, frequencies, interleaved=interleaved)) < 1e-5


@golden('dynamic')
def test_frequencies_are_hugging_faces_at_the_factor_of_its_length(config, frequencies, factor):
  told, length = config['rope_parameters'], config['max_position_embeddings']
  longer = max(config['seq_len'] or 0, length)
  grown = told['factor'] * longer / length - (told['factor'] - 1)
  made = ntk.frequencies(config['head_dim'], told['rope_theta'], grown)
  np.testing.assert_allclose(made, frequencies, rtol=5e-6)


@pytest.mark.parametrize('width', [4, 64, 96, 128])
@pytest.mark.parametrize('factor', [0.5, 3.0, 32.0])
def test_the_lowest_frequency_is_divided_by_the_factor_and_the_highest_stays(width, factor):
  own, made = angles.frequencies(width), ntk.frequencies(width, factor=factor)
  assert made[0] == own[0] == 1
  assert made[-1] == pytest.approx(own[-1] / factor, rel=1e-15)
  between = own[1:-1] / made[1:-1]
  assert (np.diff([1, *between, factor]) * np.sign(factor - 1) > 0).all()


def test_it_is_rope_with_the_rescaled_base(key):
  x, pos = jax.random.normal(key, (1, 3, 2, 16)), jnp.array([[1, 40, 3000]])
  base = ntk.rescaled_base(16, factor=5.0)
  assert base == pytest.approx(10000 * 5 ** (16 / 14))
  found = compiled(ntk.scheme(factor=5.0)).query({}, x, pos)
  assert error(found, compiled(rope.scheme(base=base)).query({}, x, pos)) < 1e-6


@pytest.mark.parametrize('options', [{}, {'fraction': 0.5, 'interleaved': True}])
def test_at_factor_1_it_is_rope(key, options):
  x, pos = jax.random.normal(key, (1, 3, 2, 16)), jnp.array([[1, 40, 3000]])
  found = compiled(ntk.scheme(factor=1.0, base=300.0, **options)).query({}, x, pos)
  np.testing.assert_array_equal(
    found, compiled(rope.scheme(base=300.0, **options)).query({}, x, pos)
  )


def test_a_fraction_is_rescaled_by_its_own_width():
  expected = _paper(8, 10000.0, 4.0)
  found, factor = reading(ntk.scheme(fraction=0.5).key, 16, expected)
  np.testing.assert_allclose(found, expected, rtol=2e-6)
  np.testing.assert_allclose(factor, 1, rtol=1e-6)


def test_one_pair_alone_is_the_fastest_and_stays():
  np.testing.assert_array_equal(ntk.frequencies(2, factor=7.0), [1.0])
  with pytest.raises(ValueError, match='more than one pair, but the width is 2'):
    ntk.rescaled_base(2)
