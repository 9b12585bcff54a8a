import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import longrope, rope
from tests.support.loops import error
from tests.support.rotations import attended, compiled, golden, heads, reading

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
SHORT, LONG = (1.0, 1.1, 1.3, 1.7, 2.0), (1.0, 1.5, 4.0, 9.0, 16.0)


@pytest.mark.parametrize(('length', 'factors'), [(1024, SHORT), (1025, LONG), (9000, LONG)])
@pytest.mark.parametrize('interleaved', [False, True])
def test_attention_is_the_papers(length, factors, interleaved):
  q, k, v, q_pos, k_pos = heads(10)
  scheme = compiled(longrope.scheme(length, 1024, SHORT, LONG, interleaved=interleaved))
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos, causal=True)
  frequencies = [1 / (f * 10000 ** (2 * i / 10)) for i, f in enumerate(factors)]
  grown = math.sqrt(1 + math.log(max(length / 1024, 1)) / math.log(1024))
  how = {'interleaved': interleaved, 'factor': grown}
  assert error(out, attended(q, k, v, q_pos, k_pos, frequencies, **how)) < 1e-5


@golden('longrope')
def test_it_is_hugging_faces_at_the_declared_length(config, frequencies, factor):
  told, longest = config['rope_parameters'], config['max_position_embeddings']
  original = told['original_max_position_embeddings']
  scheme = compiled(
    longrope.scheme(
      1 if config['seq_len'] is None else config['seq_len'],
      original,
      told['short_factor'],
      told['long_factor'],
      extension=longest / original,
    )
  )
  found, grown = reading(scheme.key, config['head_dim'], frequencies)
  np.testing.assert_allclose(found, frequencies, rtol=5e-6)
  np.testing.assert_allclose(grown, factor, rtol=1e-6)


def test_the_extension_of_a_model_holds_at_every_length_of_text():
  assert longrope.magnitude(32.0, 4096) == pytest.approx(math.sqrt(1 + 5 / 12), rel=1e-12)
  assert longrope.magnitude(0.5, 4096) == longrope.magnitude(1.0, 4096) == 1
  x, pos = jnp.ones((1, 1, 1, 10)), jnp.zeros((1, 1), jnp.int32)
  for length in (10, 100000):
    out = compiled(longrope.scheme(length, 4096, SHORT, LONG, extension=32.0)).query({}, x, pos)
    np.testing.assert_allclose(out, math.sqrt(1 + 5 / 12), rtol=1e-6)
  # By default, that of the text.
  out = compiled(longrope.scheme(4096**2, 4096, SHORT, LONG)).query({}, x, pos)
  np.testing.assert_allclose(out, math.sqrt(2), rtol=1e-6)


def test_an_attention_factor_replaces_the_formula():
  x, pos = jnp.ones((1, 1, 1, 10)), jnp.zeros((1, 1), jnp.int32)
  scheme = compiled(longrope.scheme(9000, 1024, SHORT, LONG, extension=32.0, attention_factor=1.25))
  np.testing.assert_allclose(scheme.key({}, x, pos), 1.25, rtol=1e-6)


@pytest.mark.parametrize('options', [{}, {'base': 300.0, 'interleaved': True}])
def test_up_to_the_original_length_with_factors_of_1_it_is_rope(key, options):
  x, pos = jax.random.normal(key, (1, 3, 2, 10)), jnp.array([[1, 40, 3000]])
  found = compiled(longrope.scheme(1024, 1024, (1.0,) * 5, LONG, **options)).query({}, x, pos)
  np.testing.assert_array_equal(found, compiled(rope.scheme(**options)).query({}, x, pos))


def test_with_equal_factors_it_is_interpolation_but_for_the_attention_factor(key):
  x, pos = jax.random.normal(key, (1, 3, 2, 10)), jnp.array([[1, 40, 3000]])
  scheme = compiled(longrope.scheme(4096, 1024, (1.0,) * 5, [4.0] * 5, attention_factor=1.0))
  expected = compiled(rope.scheme(factor=4.0)).query({}, x, pos)
  assert error(scheme.query({}, x, pos), expected) < 1e-6


def test_tokens_give_the_same_logits_before_and_after_a_longer_call_alone_and_in_a_batch(key):
  scheme = compiled(longrope.scheme(64, 8, SHORT, LONG))
  q, k = jax.random.normal(key, (2, 2, 12, 1, 10))

  def logits(rows, tokens):
    pos = jnp.broadcast_to(jnp.arange(tokens), (rows, tokens))
    placed = scheme.query({}, q[:rows, :tokens], pos), scheme.key({}, k[:rows, :tokens], pos)
    return np.einsum('bthd,bshd->bhts', *placed)

  short, longer = logits(1, 9), logits(1, 12)
  np.testing.assert_allclose(longer[..., :9, :9], short, atol=1e-5)
  np.testing.assert_allclose(logits(2, 12)[:1], longer, atol=1e-5)
  np.testing.assert_array_equal(logits(1, 9), short)


def test_cached_keys_are_those_of_the_full_pass(key):
  scheme = compiled(longrope.scheme(64, 8, SHORT, LONG))
  x, pos = jax.random.normal(key, (1, 40, 2, 10)), jnp.arange(40)[None]
  whole = scheme.key({}, x, pos)
  each = [scheme.key({}, x[:, t : t + 1], pos[:, t : t + 1]) for t in (0, 7, 8, 39)]
  np.testing.assert_array_equal(jnp.concatenate(each, axis=1), whole[:, jnp.array([0, 7, 8, 39])])


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'short_factor': (1.0,)}, 'for each of the 1 pairs of width 2, but got 5'),
    ({'long_factor': (1.0, 0.0, 1.0, 1.0, 1.0)}, "LongRoPE's factors must be positive, but got"),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  given = {'length': 64, 'original_length': 8, 'short_factor': SHORT, 'long_factor': LONG}
  with pytest.raises(ValueError, match=message):
    longrope.scheme(**{**given, **arguments})


def test_factors_that_do_not_fit_the_width_are_refused_at_use():
  scheme = compiled(longrope.scheme(64, 8, SHORT, LONG))
  with pytest.raises(ValueError, match='for each of the 4 pairs of width 8, but got 5'):
    scheme.query({}, jnp.zeros((1, 1, 1, 8)), jnp.zeros((1, 1), jnp.int32))
