import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import dynamic_ntk, ntk, rope
from tests.support.loops import error
from tests.support.rotations import attended, compiled, golden, heads, reading

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _made(config):
  told = config['rope_parameters']
  original = config['max_position_embeddings']
  length = original if config['seq_len'] is None else config['seq_len']
  base = told['rope_theta']
  return {'length': length, 'original_length': original, 'factor': told['factor'], 'base': base}


@pytest.mark.parametrize('factor', [1.0, 2.5])
def test_attention_is_the_papers_with_the_codes_factor(factor):
  q, k, v, q_pos, k_pos = heads(12)
  scheme = compiled(dynamic_ntk.scheme(5000, 1000, factor=factor))
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos, causal=True)
  grown = factor * 5000 / 1000 - (factor - 1)
  frequencies = [(10000 * grown ** (12 / 10)) ** (-2 * i / 12) for i in range(6)]
  assert error(out, attended(q, k, v, q_pos, k_pos, frequencies)) < 1e-5


@golden('dynamic')
def test_it_is_hugging_faces_at_the_declared_length(config, frequencies, factor):
  arguments, width = _made(config), config['head_dim']
  np.testing.assert_allclose(dynamic_ntk.frequencies(width, **arguments), frequencies, rtol=5e-6)
  found, grown = reading(dynamic_ntk.scheme(**arguments).query, width, frequencies)
  np.testing.assert_allclose(found, frequencies, rtol=5e-6)
  np.testing.assert_allclose(grown, factor, rtol=1e-6)


@pytest.mark.parametrize('length', [1, 2047, 2048])
def test_up_to_the_original_length_it_is_rope(key, length):
  x, pos = jax.random.normal(key, (1, 3, 2, 16)), jnp.array([[1, 40, 3000]])
  found = compiled(dynamic_ntk.scheme(length, 2048, factor=4.0)).query({}, x, pos)
  np.testing.assert_array_equal(found, compiled(rope.scheme()).query({}, x, pos))


def test_beyond_it_is_ntk_by_the_ratio_of_the_lengths():
  assert dynamic_ntk.growth(2048, 2048, factor=4.0) == 1
  assert dynamic_ntk.growth(3 * 2048, 2048) == 3
  for factor in (1.0, 4.0):
    lowest = dynamic_ntk.frequencies(16, 6144, 2048, factor=factor)[-1]
    assert lowest == pytest.approx(10000 ** (-14 / 16) / (1 + 2 * factor))
  np.testing.assert_array_equal(
    dynamic_ntk.frequencies(16, 6144, 2048), ntk.frequencies(16, factor=3.0)
  )


def test_a_growing_length_slows_every_pair_but_the_first():
  each = [dynamic_ntk.frequencies(16, length, 512) for length in (512, 513, 1000, 10**6)]
  assert (np.diff(each, axis=0)[:, 1:] < 0).all()
  np.testing.assert_array_equal(np.array(each)[:, 0], 1)


def test_tokens_give_the_same_logits_before_and_after_a_longer_call_alone_and_in_a_batch(key):
  scheme = compiled(dynamic_ntk.scheme(length=64, original_length=8))
  q, k = jax.random.normal(key, (2, 2, 12, 1, 8))

  def logits(rows, tokens):
    pos = jnp.broadcast_to(jnp.arange(tokens), (rows, tokens))
    placed = scheme.query({}, q[:rows, :tokens], pos), scheme.key({}, k[:rows, :tokens], pos)
    return np.einsum('bthd,bshd->bhts', *placed)

  short, longer = logits(1, 9), logits(1, 12)
  np.testing.assert_allclose(longer[..., :9, :9], short, atol=1e-5)
  np.testing.assert_allclose(logits(2, 12)[:1], longer, atol=1e-5)
  np.testing.assert_array_equal(logits(1, 9), short)


def test_cached_keys_are_those_of_the_full_pass(key):
  scheme = compiled(dynamic_ntk.scheme(length=64, original_length=8))
  x, pos = jax.random.normal(key, (1, 40, 2, 8)), jnp.arange(40)[None]
  whole = scheme.key({}, x, pos)
  each = [scheme.key({}, x[:, t : t + 1], pos[:, t : t + 1]) for t in (0, 7, 8, 39)]
  np.testing.assert_array_equal(jnp.concatenate(each, axis=1), whole[:, jnp.array([0, 7, 8, 39])])
