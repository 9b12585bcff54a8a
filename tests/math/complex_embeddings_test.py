import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math.complex_embeddings import conjugated, modulus, with_phase, words
from tests.support.loops import error


def test_amplitudes_are_multiplied_by_e_to_the_i_phase():
  draw = np.random.default_rng(0)
  x = draw.normal(size=(2, 3, 4)).astype(np.float32)
  phase = draw.uniform(-3, 3, (2, 3, 4)).astype(np.float32)
  found = with_phase(jnp.asarray(x), jnp.asarray(phase))
  assert found.dtype == jnp.complex64
  assert error(found, x.astype(np.float64) * np.exp(1j * phase.astype(np.float64))) < 1e-6


def test_the_row_of_each_word_is_found_and_unknown_words_give_nan():
  table = jnp.array([[1.0, 2.0], [3.0, 4.0]])
  found = words(table, jnp.array([[1, 0, 2, -1]]))
  np.testing.assert_array_equal(found, [[[3, 4], [1, 2], [np.nan] * 2, [np.nan] * 2]])


def test_words_need_tokens_and_a_vocabulary():
  with pytest.raises(ValueError, match='needs the tokens, but got None'):
    words(jnp.ones((2, 3)), None)
  with pytest.raises(ValueError, match=r'needs Dims\(vocab=...\), but got 0 words'):
    words(jnp.ones((0, 3)), jnp.zeros((1, 2), jnp.int32))


def test_the_modulus_is_the_length_of_each_logit_with_gradient_0_at_0():
  q, k = jnp.ones((1, 1, 1, 1)), jnp.ones((1, 3, 1, 1))
  logits = jnp.array([3 + 4j, -2 + 0j, 0j]).reshape(1, 1, 1, 3)
  length = lambda logits: modulus({}, logits, q, k, None, None)
  np.testing.assert_allclose(length(logits)[0, 0, 0], [5, 2, 0])
  grad = jax.grad(lambda logits: length(logits).sum())(logits)
  np.testing.assert_array_equal(grad[..., 2], 0)


def test_conjugated_keys_are_conjugated_and_real_ones_stay():
  k = jnp.array([1 + 2j, 3 - 1j]).reshape(1, 2, 1, 1)
  np.testing.assert_array_equal(conjugated({}, k, None), np.conj(k))
  np.testing.assert_array_equal(conjugated({}, k.real, None), k.real)
