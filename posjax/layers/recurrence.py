"""Segment recurrence: a layer attends to its inputs of the last segment, too, without gradients.

h~ = [SG(past), x]; q = x W_q; k, v = h~ W_k, h~ W_v. Inputs are remembered, not keys: the weights
of today make keys and values of them, and learn from them. Ids travel with the inputs, so every
scheme sees distances across segments as within one. With a window, each query sees that many keys,
however much is remembered (the authors' code: same_length).

Reference: Dai et al. 2019, Transformer-XL, https://arxiv.org/abs/1901.02860, section 3.2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from posjax.layers.tokens import Tokens, by_row


def joined(past: Tokens, new: Tokens, keys: Tokens | None = None) -> Tokens:
  """The remembered tokens and the new ones, in order; no gradient reaches what is remembered.

  Args:
    past: S tokens directly before the new ones: `x` [B, S, M], their ids, and their segments,
      0 where nothing is remembered yet (none: all in document 1).
    new: T tokens.
    keys: those of cross-attention, which there must not be.

  Raises:
    ValueError: if there are other keys, or an order, which is known here; or shapes do not fit.
  """
  if keys is not None or past.order is not None or new.order is not None:
    raise ValueError(
      'What is remembered comes directly before x, so with past there can be no x_kv and no order.'
    )
  if past.x.shape[::2] != new.x.shape[::2]:
    raise ValueError(
      f'past must have the rows and the width of x, {new.x.shape[::2]}, but got {past.x.shape}.'
    )
  both = past._replace(x=jax.lax.stop_gradient(past.x)), new
  count = sum(tokens.x.shape[1] for tokens in both)
  return Tokens(
    jnp.concatenate([tokens.x for tokens in both], axis=1),
    jnp.concatenate([_of_rows('pos', tokens, tokens.pos) for tokens in both], axis=1),
    jnp.concatenate([_of_rows('segments', tokens, tokens.segments) for tokens in both], axis=1),
    jnp.arange(count, dtype=jnp.int32),
  )


def _of_rows(name: str, tokens: Tokens, ids: Array | None) -> Array:
  batch, length = tokens.x.shape[:2]
  if ids is None:
    return jnp.ones((batch, length), jnp.int32)
  axes = ids.shape[-1] if name == 'pos' and ids.ndim == 3 else 1
  return by_row(name, ids, batch, length, axes)
