"""`weights`: the attention weights alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import alibi

Q, K = (jax.random.normal(jax.random.key(i), (2, 5, heads, 4)) for i, heads in ((0, 4), (1, 2)))
POS = jnp.arange(5)


def test_weights_are_the_softmax_of_the_formula_in_float64():
  scheme = posjax.get('alibi')
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(16, 4, 4, 2))
  sinks = jnp.array([0.5, -1.0, 0.0, 2.0])
  found = posjax.weights(Q, K, scheme, params, q_pos=POS, k_pos=POS, causal=True, sinks=sinks)
  q, k = np.asarray(Q, np.float64), np.repeat(np.asarray(K, np.float64), 2, axis=2)
  distance = np.arange(5)[:, None] - np.arange(5)
  logits = np.einsum('bthd,bshd->bhts', q, k) / 2
  logits -= np.asarray(alibi.slopes(4), np.float64)[:, None, None] * abs(distance)
  each = np.exp(np.where(distance >= 0, logits, -np.inf))
  total = each.sum(-1, keepdims=True) + np.exp(np.asarray(sinks, np.float64))[:, None, None]
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, each / total, atol=1e-6)


def test_a_scheme_may_be_a_line_and_what_it_does_to_values_does_not_count():
  plain = posjax.weights(Q, K, 'rope', {}, q_pos=POS + 9, k_pos=POS)
  turned = posjax.weights(Q, K, 'rope(values=True)', {}, q_pos=POS + 9, k_pos=POS)
  np.testing.assert_array_equal(plain, turned)
  np.testing.assert_allclose(plain.sum(-1), 1, rtol=1e-6)
  half = jnp.zeros((4, 5), bool).at[:, :2].set(True)
  seen = posjax.weights(Q[:, :4], K, 'none', {}, q_pos=POS[:4], k_pos=POS, mask=half)
  assert (seen[..., 2:] == 0).all()
  assert (seen[..., :2] > 0).all()


def test_what_attend_refuses_is_refused(unchecked):
  with pytest.raises(ValueError, match='q and k must agree on the batch and the head width'):
    posjax.weights(Q, K[..., :2], 'none', {}, q_pos=POS, k_pos=POS)
  with pytest.raises(ValueError, match="Unknown scheme 'ropee'"):
    posjax.weights(Q, K, 'ropee', {}, q_pos=POS, k_pos=POS)
