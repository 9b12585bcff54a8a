"""Tokens that nothing sees: padding, and what a mask hides from every query.

They count as zero, in values and in gradients, so that a NaN in one of them stays there: its weight
is 0, but 0 times NaN is NaN. Their segment is 0, and whoever reads an array of tokens reads zeros
in their places.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def visible_tokens(mask: Bool[Array, 'b h T S'] | None) -> tuple[Any, Any]:
  """Which queries a mask shows any key, and which keys it shows to any query, [b, T] and [b, S].

  Args:
    mask: True where a pair may attend; None shows all, and so do the results.

  Example:
    >>> [x.tolist() for x in visible_tokens(jnp.array([[[[True, False], [True, False]]]]))]
    [[[True, True]], [[True, False]]]
  """
  return (None, None) if mask is None else (mask.any((1, 3)), mask.any((1, 2)))


def zeroed(tree: Any, segments: Int[Array, 'b T']) -> Any:
  """The tree with zeros for tokens of segment 0, in all leaves [B or 1, T, ...] that can be NaN.

  Their gradients are exactly 0, whatever the cotangents are.

  Example:
    >>> zeroed(jnp.array([[1.0, jnp.nan]]), jnp.array([[1, 0]]))
    Array([[1., 0.]], dtype=float32)
  """

  def blank(x):
    if not jnp.issubdtype(x.dtype, jnp.inexact):
      return x
    real = (segments != 0).reshape(*segments.shape, *(1,) * (x.ndim - 2))
    return jnp.where(real, x, jnp.zeros((), x.dtype))

  return jax.tree.map(blank, tree)
