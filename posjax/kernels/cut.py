"""Cutting what travels with tokens into tiles, and gluing the answers together again."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool


def cut_tokens(tree: Any, size: int) -> Any:
  """Leaves [B, T, ...] as [tiles, B, size, ...], padded with zeros: padding of segment 0."""

  def cut(x):
    axis = min(1, x.ndim - 1)  # `index` is [T]
    short = -x.shape[axis] % size
    x = jnp.pad(x, [(0, short if i == axis else 0) for i in range(x.ndim)])
    x = x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)

  return jax.tree.map(cut, tree)


def cut_mask(mask: Bool[Array, 'b h T S'] | None, queries: int, keys: int):
  """[rows, columns, b, h, queries, keys], or None."""
  if mask is None:
    return None
  batch, heads = mask.shape[:2]
  short = [-n % size for n, size in zip(mask.shape[2:], (queries, keys), strict=True)]
  mask = jnp.pad(mask, [(0, 0), (0, 0), (0, short[0]), (0, short[1])])
  mask = mask.reshape(batch, heads, -1, queries, mask.shape[3] // keys, keys)
  return mask.transpose(2, 4, 0, 1, 3, 5)


def glue_tokens(x, length: int):
  """[tiles, B, size, ...] as [B, length, ...]; [tiles, size] as [length]."""
  axis = min(1, x.ndim - 2)
  x = jnp.moveaxis(x, 0, axis)
  x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
  return lax.slice_in_dim(x, 0, length, axis=axis)
