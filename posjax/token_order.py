"""Whether tokens stand in the array in the order of their stream, one document after the other."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Num

from posjax.known import known


def follows_array(
  order: Num[Array, 'b T'], segments: Int[Array, 'c T'], together: bool = True
) -> Bool[Array, ' rows']:
  """Whether the order of each document's tokens does not fall along the array.

  Padding counts as a part of what stands before it.

  Args:
    order: index of each token in its stream. b is the number of rows, or 1, and so is c.
    segments: document of each token; 0 is padding.
    together: whether they must also stand side by side, with no other document between them.

  Example:
    >>> order = jnp.array([[0, 1, 0, 1], [0, 2, 1, 3]])
    >>> follows_array(order, jnp.array([[1, 1, 2, 2], [1, 1, 1, 1]]))
    Array([ True, False], dtype=bool)
  """
  rows = max(order.shape[0], segments.shape[0])
  order, segments = (jnp.broadcast_to(x, (rows, x.shape[1])) for x in (order, segments))
  index = jnp.arange(order.shape[1])
  last = jnp.maximum(lax.cummax(jnp.where(segments != 0, index[None], -1), axis=1), 0)
  order, segments = (jnp.take_along_axis(x, last, axis=1) for x in (order, segments))
  by_document = jnp.argsort(segments, axis=1, stable=True)
  order, segments = (jnp.take_along_axis(x, by_document, axis=1) for x in (order, segments))
  same = segments[:, 1:] == segments[:, :-1]
  right = order[:, 1:] >= order[:, :-1]
  if together:
    right &= jnp.diff(by_document, axis=1) == 1
  return (right | ~same).all(1)


def refuse_other_orders(
  tree: Any, order: Num[Array, 'b T'], segments: Int[Array, 'c T'], together: bool = True
) -> Any:
  """The tree, for something that is right only where tokens follow the array.

  Args:
    tree: arrays [B, T, ...]. Floats of rows whose tokens do not follow it become NaN, where that is
      known only when a compiled program runs.
    order: as of `follows_array`.
    segments: as of `follows_array`.
    together: as of `follows_array`.

  Raises:
    ValueError: if tokens do not follow the array, as far as their order is known.
  """
  follow = known(lambda *both: follows_array(both[0], both[1], together).all(), order, segments)
  if follow is False:
    raise ValueError(
      'This scheme goes by the places of tokens in the array, so the tokens of each document must '
      f'stand there {"side by side and " * together}in their order, but got another order, as that '
      'of the zig-zag layout.'
    )
  if follow:
    return tree
  right = follows_array(order, segments, together)

  def marked(leaf):
    rows = jnp.expand_dims(right, range(1, leaf.ndim))
    return jnp.where(rows, leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

  return jax.tree.map(marked, tree)
