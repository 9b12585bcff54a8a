import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import partial, rope
from tests.support.loops import error
from tests.support.rotations import attended, compiled, heads, reading

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


@pytest.mark.parametrize('interleaved', [False, True])
@pytest.mark.parametrize(('width', 'share', 'turning'), [(10, 0.5, 2), (16, 0.75, 6), (6, 0.2, 0)])
def test_attention_is_the_papers(width, share, turning, interleaved):
  q, k, v, q_pos, k_pos = heads(width)
  scheme = compiled(partial.scheme(share, base=2000.0, interleaved=interleaved))
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos, causal=True)
  frequencies = [2000 ** (-2 * i / width) if i < turning else 0.0 for i in range(width // 2)]
  assert error(out, attended(q, k, v, q_pos, k_pos, frequencies, interleaved=interleaved)) < 1e-5


def test_gemma_4_turns_the_first_quarter_of_the_pairs_by_frequencies_of_the_full_width():
  expected = np.array([1e6 ** (-k / 128) if k < 32 else 0.0 for k in range(128)])
  found, factor = reading(partial.scheme(0.25, base=1e6).query, 256, expected)
  np.testing.assert_allclose(found, expected, rtol=2e-6)
  np.testing.assert_allclose(factor, 1, rtol=1e-6)


def test_it_keeps_the_fastest_pairs_unlike_a_narrower_rope(key):
  full = compiled(rope.scheme()).query
  x, pos = jax.random.normal(key, (1, 3, 1, 16)), jnp.array([[1, 40, 3000]])
  out, whole = compiled(partial.scheme(0.5)).query({}, x, pos), full({}, x, pos)
  fast, slow = np.r_[0:4, 8:12], np.r_[4:8, 12:16]
  np.testing.assert_array_equal(out[..., fast], whole[..., fast])
  np.testing.assert_array_equal(out[..., slow], x[..., slow])
  # The narrower one turns the first 8 numbers, pairs 4 apart, down to a slow frequency.
  narrow = rope.scheme(fraction=0.5)
  lowest, _ = reading(narrow.query, 16, [10000 ** (-k / 4) for k in range(4)])
  assert lowest[-1] == pytest.approx(10000**-0.75, rel=1e-5)
  assert error(narrow.query({}, x, pos)[..., :8], full({}, x[..., :8], pos)) < 1e-6


def test_with_a_share_of_1_it_is_rope(key):
  x, pos = jax.random.normal(key, (1, 3, 2, 10)), jnp.array([[1, 40, 3000]])
  for interleaved in (False, True):
    found = compiled(partial.scheme(1.0, factor=2.0, interleaved=interleaved)).key({}, x, pos)
    expected = compiled(rope.scheme(factor=2.0, interleaved=interleaved)).key({}, x, pos)
    np.testing.assert_array_equal(found, expected)


def test_with_a_share_of_0_there_are_no_positions(key):
  x, pos = jax.random.normal(key, (1, 3, 2, 10)), jnp.array([[1, 40, 3000]])
  np.testing.assert_array_equal(compiled(partial.scheme(0.0)).query({}, x, pos), x)


def test_a_still_pair_carries_content_at_any_distance():
  x = jnp.zeros((1, 1, 1, 8)).at[..., 3].set(2.0)  # the slowest pair
  scheme, far = partial.scheme(0.75), jnp.array([[2**30]])
  logit = scheme.query({}, x, far) * scheme.key({}, x, far * 0)
  assert logit.sum() == 4


def test_an_odd_width_is_refused():
  with pytest.raises(ValueError, match='must be positive and even'):
    compiled(partial.scheme()).query({}, jnp.zeros((1, 1, 1, 5)), jnp.zeros((1, 1), jnp.int32))
