import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math import angles
from posjax.math.extension import mixed_frequencies, share_by_turns
from posjax.schemes import rope, yarn
from tests.support.loops import error
from tests.support.rotations import GOLDEN, attended, compiled, golden, heads, reading

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _authors(width, base, factor, length, fast=32.0, slow=1.0, truncate=True):
  """The authors' mixture, pair by pair: by the index between those of `fast` and `slow` turns."""
  index = lambda turns: width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
  first, last = index(fast), index(slow)
  if truncate:
    first, last = float(math.floor(first)), float(math.ceil(last))
  first, last = max(first, 0.0), min(last, width - 1.0)
  found = []
  for k in range(width // 2):
    own = base ** (-2 * k / width)
    if k <= first:
      found.append(own)
    elif k >= last:
      found.append(own / factor)
    else:
      interpolated = (k - first) / (last - first)
      found.append(own / factor * interpolated + own * (1 - interpolated))
  return found


def _arguments(config):
  told = config['rope_parameters']
  given = {
    name: told[name] for name in ('beta_fast', 'beta_slow', 'attention_factor') if name in told
  }
  given |= {name: told[name] for name in ('mscale', 'mscale_all_dim') if name in told}
  original = told['original_max_position_embeddings']
  return given | {'factor': told['factor'], 'original_length': original, 'base': told['rope_theta']}


@pytest.mark.parametrize('truncate', [True, False])
@pytest.mark.parametrize(('width', 'queries'), [(10, 7), (24, 3)])
def test_attention_is_the_authors(width, queries, truncate):
  q, k, v, q_pos, k_pos = heads(width, queries)
  scheme = compiled(yarn.scheme(8.0, 700, base=500.0, truncate=truncate))
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos, causal=True)
  frequencies = _authors(width, 500.0, 8.0, 700, truncate=truncate)
  grown = 0.1 * math.log(8) + 1
  assert error(out, attended(q, k, v, q_pos, k_pos, frequencies, factor=grown)) < 1e-5


@golden('yarn')
def test_it_is_hugging_faces(config, frequencies, factor):
  arguments, width = _arguments(config), config['head_dim']
  scheme = compiled(yarn.scheme(**arguments))
  found, grown = reading(scheme.query, width, frequencies)
  np.testing.assert_allclose(found, frequencies, rtol=5e-6)
  np.testing.assert_allclose(grown, factor, rtol=1e-6)


def test_cos_and_sin_are_hugging_faces():
  pos = jnp.asarray(GOLDEN['position_ids'], jnp.int32)[None]
  x = jnp.concatenate([jnp.ones((1, 10, 1, 64)), jnp.zeros((1, 10, 1, 64))], axis=-1)
  out = compiled(yarn.scheme(4.0, 32768, base=1e6)).key({}, x, pos)[0, :, 0]
  expected = [GOLDEN[f'yarn_qwen2p5_7b_f4__{name}'] for name in ('cos', 'sin')]
  expected = np.concatenate(expected, axis=-1)
  assert error(out[:5], expected[:5]) < 1e-5
  assert error(out, expected) < 1e-2  # their float32 angles at position 131071


def test_fast_pairs_are_untouched_slow_ones_interpolated_and_those_between_mixed():
  for truncate in (True, False):
    own = angles.frequencies(128)
    turns = 4096 * own / (2 * np.pi)
    divided = own / yarn.frequencies(128, 16.0, 4096, truncate=truncate)
    # Whole indices round outwards, by less than one pair.
    margin = 10000 ** (2 / 128) if truncate else 1
    fast, slow = turns > 32 * margin, turns * margin < 1
    between = (turns < 32 / margin) & (turns > margin)
    assert min(fast.sum(), slow.sum(), between.sum()) > 10
    np.testing.assert_allclose(divided[fast], 1, rtol=1e-12)
    np.testing.assert_allclose(divided[slow], 16, rtol=1e-12)
    assert ((divided[between] > 1) & (divided[between] < 16)).all()
    assert (np.diff(divided[between]) > 0).all()


def test_the_papers_mixture_is_linear_in_the_turns():
  own = np.array([10000 ** (-2 * k / 96) for k in range(48)])
  expected = []
  for frequency in own:  # "NTK-by-parts", alpha = 1, beta = 32
    turns = 2048 / (2 * math.pi / frequency)
    expected.append(0.0 if turns < 1 else 1.0 if turns > 32 else (turns - 1) / (32 - 1))
  found = share_by_turns(own, 2048)
  np.testing.assert_allclose(found, expected, atol=1e-12)
  theirs = yarn.frequency_share(96, 2048, truncate=False)
  np.testing.assert_array_equal(found == 1, theirs == 1)
  np.testing.assert_array_equal(found == 0, theirs == 0)
  assert abs(found - theirs).max() > 0.3
  mixed = [(1 - g) * w / 8 + g * w for g, w in zip(expected, own, strict=True)]
  np.testing.assert_allclose(mixed_frequencies(own, found, 8.0), mixed, rtol=1e-12)


@pytest.mark.parametrize('options', [{}, {'fraction': 0.5, 'interleaved': True}])
def test_at_factor_1_it_is_rope(key, options):
  x, pos = jax.random.normal(key, (1, 3, 2, 16)), jnp.array([[1, 40, 3000]])
  found = compiled(yarn.scheme(1.0, 64, base=300.0, **options)).query({}, x, pos)
  assert error(found, compiled(rope.scheme(base=300.0, **options)).query({}, x, pos)) < 1e-6


def test_with_all_pairs_slow_it_is_interpolation_and_with_all_fast_rope_but_for_the_factor(key):
  x, pos = jax.random.normal(key, (1, 3, 2, 16)), jnp.array([[1, 40, 3000]])
  slow = compiled(yarn.scheme(4.0, 6, attention_factor=1.0)).query({}, x, pos)
  assert error(slow, compiled(rope.scheme(factor=4.0)).query({}, x, pos)) < 1e-6
  fast = compiled(yarn.scheme(4.0, 10**9, attention_factor=1.0)).query({}, x, pos)
  assert error(fast, compiled(rope.scheme()).query({}, x, pos)) < 1e-6


def test_logits_grow_by_the_square_of_the_attention_factor(key):
  q, k = jax.random.normal(key, (2, 1, 3, 2, 8))
  pos, logits = jnp.array([[1, 40, 3000]]), []
  for factor in (None, 1.0):
    scheme = compiled(yarn.scheme(4.0, 64, attention_factor=factor))
    placed = scheme.query({}, q, pos), scheme.key({}, k, pos)
    logits.append(np.einsum('bthd,bshd->bhts', *placed))
  assert error(logits[0], (0.1 * math.log(4) + 1) ** 2 * logits[1]) < 1e-6


def test_what_does_not_turn_does_not_grow(key):
  x, pos = jax.random.normal(key, (1, 3, 2, 16)), jnp.array([[1, 40, 3000]])
  scheme = compiled(yarn.scheme(4.0, 64, attention_factor=2.0, fraction=0.25))
  out = scheme.query({}, x, pos)
  np.testing.assert_array_equal(out[..., 4:], x[..., 4:])
  norms = [jnp.linalg.norm(y[..., :4], axis=-1) for y in (out, x)]
  np.testing.assert_allclose(norms[0], 2 * norms[1], rtol=1e-6)


def test_deepseeks_numbers_cancel_where_they_are_equal():
  assert yarn.magnitude(40.0, 0.707, 0.707) == 1
  both = (0.1 * math.log(40) + 1) / (0.05 * math.log(40) + 1)
  assert yarn.magnitude(40.0, 1.0, 0.5) == pytest.approx(both, rel=1e-12)
  assert yarn.magnitude(1.0) == 1


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'beta_slow': 32.0}, 'beta_fast must be above beta_slow, .* but got 32.0 and 32.0'),
    ({'beta_slow': 0.0}, 'both positive, but got 32.0 and 0.0'),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    yarn.scheme(**{'factor': 4.0, 'original_length': 64, **arguments})
