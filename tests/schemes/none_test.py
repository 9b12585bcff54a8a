import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.scheme import Traits
from posjax.schemes import none

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _heads(key, batch=2, tokens=6, heads=3, width=4):
  return tuple(
    jax.random.normal(k, (batch, tokens, heads, width)) for k in jax.random.split(key, 3)
  )


def test_it_is_the_record_that_does_nothing_and_the_identity_of_chain():
  alibi = posjax.get('alibi')
  assert none.scheme() == posjax.Scheme(traits=Traits(axes=0))  # for any number of ids
  assert posjax.places(none.scheme()) == ()
  assert posjax.chain(none.scheme(), alibi, none.scheme()) == alibi
  assert posjax.init(none.scheme(), jax.random.key(0), posjax.Dims(8, 2, 4)) == {}


def test_it_is_plain_softmax_attention(key):
  q, k, v = _heads(key)
  pos = jnp.arange(6)
  out = attend(q, k, v, none.scheme(), {}, q_pos=pos, k_pos=pos, causal=True)
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  logits = np.einsum('bthd,bshd->bhts', q, k) / 2
  logits[..., np.triu(np.ones((6, 6), bool), 1)] = -np.inf
  weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  expected = np.einsum('bhts,bshd->bthd', weights, v)
  assert abs(out - expected).max() / abs(expected).max() < 1e-5


def test_without_a_mask_the_output_permutes_with_the_input(key):
  q, k, v = _heads(key)
  pos, order = jnp.arange(6), jnp.array([3, 1, 5, 0, 4, 2])
  out = attend(q, k, v, none.scheme(), {}, q_pos=pos, k_pos=pos)
  permuted = [x[:, order] for x in (q, k, v)]
  again = attend(*permuted, none.scheme(), {}, q_pos=pos, k_pos=pos)
  np.testing.assert_allclose(again, out[:, order], atol=1e-6)


def test_the_causal_mask_alone_tells_the_position():
  # Kazemnejad et al. 2023, theorem 1: equal weights on a value that marks the first token.
  length = 50
  q = k = jnp.zeros((1, length, 1, 2))
  v = jnp.zeros((1, length, 1, 1)).at[0, 0].set(1.0)
  pos = jnp.arange(length)
  out = attend(q, k, v, none.scheme(), {}, q_pos=pos, k_pos=pos, causal=True)
  np.testing.assert_allclose(1 / out[0, :, 0, 0], 1 + np.arange(length), rtol=1e-6)
