"""The online softmax: a softmax over keys that come some at a time.

Reference: Milakov, Gimelshein 2018, https://arxiv.org/abs/1805.02867, algorithm 3.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Sums(NamedTuple):
  """Two numbers for each query, over the keys so far.

  They are not joined to one, top + log(total): beside a large top, the second would be rounded off.
  Before any key, the top is finite, so that the weight exp(-inf - top) of a hidden pair is 0.
  """

  top: Float[Array, '...']  # the largest logit
  total: Float[Array, '...']  # the sum of exp(logit - top)

  def divisor(self) -> Float[Array, '...']:
    """The sum to divide by: 1 where there was no key. Elsewhere the largest key adds 1 to it."""
    return jnp.maximum(self.total, 1)


def started(shape: tuple[int, ...], dtype: Any, sinks: Float[Array, ' H'] | None) -> Sums:
  """The sums before any key, in which the sinks already have their share.

  Args:
    shape: of the sums, [..., H, T].
    dtype: of the sums.
    sinks: a logit for each head; -inf is no sink.

  Example:
    >>> started((1, 2), jnp.float32, jnp.array([3.0])).total.tolist()
    [[1.0, 1.0]]
  """
  lowest = jnp.finfo(dtype).min
  if sinks is None:
    return Sums(jnp.full(shape, lowest, dtype), jnp.zeros(shape, dtype))
  each = jnp.broadcast_to(sinks.astype(dtype)[:, None], shape)
  top = jnp.maximum(each, lowest)
  return Sums(top, jnp.exp(each - top))


def softmax_step(
  so_far: Sums,
  logits: Float[Array, '...'],
  axis: int,
  visible: Bool[Array, '...'] | None = None,
  keepdims: bool = False,
) -> tuple[Sums, Float[Array, '...'], Float[Array, '...']]:
  """One step of the online softmax, with some more keys.

  Args:
    so_far: the sums over the keys before.
    logits: of the new keys; -inf has no weight.
    axis: of the keys, in `logits`.
    visible: pairs whose weight is not 0; None where all others have the logit -inf.
    keepdims: whether the sums have the axis of the keys, of size 1.

  Returns:
    The sums over all keys; the weights of the new keys, relative to the new `top`; and the factor
    by which what was summed with the old weights is to be multiplied.

  Example:
    >>> before = Sums(jnp.array([0.0]), jnp.array([1.0]))
    >>> after, weights, factor = softmax_step(before, jnp.log(jnp.array([[2.0, 1.0]])), axis=1)
    >>> [x.round(3).tolist() for x in (after.total, weights, factor)]
    [[2.0], [[1.0, 0.5]], [0.5]]
  """
  top = jnp.maximum(so_far.top, logits.max(axis, keepdims=keepdims))
  weights = jnp.exp(logits - (top if keepdims else jnp.expand_dims(top, axis)))
  if visible is not None:
    weights = jnp.where(visible, weights, 0)
  factor = jnp.exp(so_far.top - top)
  total = so_far.total * factor + weights.sum(axis, keepdims=keepdims)
  return Sums(top, total), weights, factor
