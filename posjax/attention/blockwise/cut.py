"""Cuts arrays along their tokens into tiles, and joins the results again.

Heads are cut with their width before their tokens: the order in which every product of two tiles,
of the forward and of the backward pass, runs fastest on CPU. K key heads; each is shared by G
query heads, whose tokens are side by side.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Inexact


def cut_heads(
  x: Inexact[Array, 'B T H D'], size: int, kv_heads: int
) -> Inexact[Array, 'tiles B K D Gsize']:
  """Heads in tiles of `size` tokens, padded with zeros."""
  batch, length, heads, width = x.shape
  x = jnp.pad(x, [(0, 0), (0, -length % size), (0, 0), (0, 0)])
  groups = heads // kv_heads
  x = x.reshape(batch, -1, size, kv_heads, groups, width).transpose(1, 0, 3, 5, 4, 2)
  return x.reshape(*x.shape[:4], groups * size)


def join_rows(
  x: Inexact[Array, 'tiles B K Gsize E'], length: int, heads: int
) -> Inexact[Array, 'B T H E']:
  """The inverse of `cut_heads`, for rows that have their tokens before their width."""
  tiles, batch, _, _, width = x.shape
  x = x.reshape(tiles, batch, heads, -1, width).transpose(1, 0, 3, 2, 4)
  return lax.slice_in_dim(x.reshape(batch, -1, heads, width), 0, length, axis=1)


def cut_tokens(tree: Any, size: int) -> Any:
  """Leaves [B, T, ...] as [tiles, B, size, ...], padded with zeros: padding of segment 0."""

  def cut(x):
    axis = min(1, x.ndim - 1)  # `index` is [T]
    short = -x.shape[axis] % size
    x = jnp.pad(x, [(0, short if i == axis else 0) for i in range(x.ndim)])
    x = x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)

  return jax.tree.map(cut, tree)


def at(tree: Any, i: Any) -> Any:
  """Tile i of each leaf."""
  return jax.tree.map(lambda tiles: lax.dynamic_index_in_dim(tiles, i, keepdims=False), tree)


def put(tree: Any, i: Any, one: Any) -> Any:
  """The tree with `one` in the place of tile i."""
  write = lambda tiles, one: lax.dynamic_update_index_in_dim(tiles, one, i, 0)
  return jax.tree.map(write, tree, one)


def change(tiles: Array, i: Any, new: Callable[[Array], Array]) -> Array:
  """The array with `new(old)` in the place of tile i, where old, [1, ...], is that tile.

  There is no reshape between reading and writing, so that XLA changes the array in place.
  """
  old = lax.dynamic_slice_in_dim(tiles, i, 1)
  return lax.dynamic_update_slice_in_dim(tiles, new(old), i, 0)


def add(tree: Any, i: Any, one: Any) -> Any:
  """The tree with `one` added to tile i."""
  added = lambda tiles, one: change(tiles, i, lambda old: old + one[None].astype(old.dtype))
  return jax.tree.map(added, tree, one)


def whole_tiles(bias: Array | None, queries: int, keys: int) -> Array | None:
  """The bias [b, h, t, s], padded to whole tiles along the axes that are not 1."""
  if bias is None:
    return None
  short = [
    -n % size if n > 1 else 0 for n, size in zip(bias.shape[2:], (queries, keys), strict=True)
  ]
  return jnp.pad(bias, [(0, 0), (0, 0), *((0, n) for n in short)]) if any(short) else bias


def bias_at(bias: Array, queries: int, keys: int, i: Any, j: Any) -> Array:
  """The part of tile (i, j) of what `whole_tiles` returned."""
  starts, sizes = _bias_place(bias.shape, queries, keys, i, j)
  return lax.dynamic_slice(bias, starts, sizes)


def add_to_bias(bias: Array, queries: int, keys: int, i: Any, j: Any, one: Array) -> Array:
  """The sum of a bias as of `whole_tiles` and of the part of tile (i, j)."""
  starts, sizes = _bias_place(bias.shape, queries, keys, i, j)
  return lax.dynamic_update_slice(bias, lax.dynamic_slice(bias, starts, sizes) + one, starts)


def _bias_place(shape: tuple[int, ...], queries: int, keys: int, i: Any, j: Any):
  """Where tile (i, j) begins, and its size; an axis of 1 is the same for all tiles."""
  rows = (i * queries, queries) if shape[2] > 1 else (0, 1)
  columns = (j * keys, keys) if shape[3] > 1 else (0, 1)
  starts = [jnp.asarray(start, jnp.int32) for start in (0, 0, rows[0], columns[0])]
  return starts, (*shape[:2], rows[1], columns[1])


def cut_mask(mask: Bool[Array, 'b h T S'] | None, queries: int, keys: int):
  """The mask as [rows, columns, b, h, queries, keys]; None if there is none."""
  if mask is None:
    return None
  batch, heads = mask.shape[:2]
  short = [-n % size for n, size in zip(mask.shape[2:], (queries, keys), strict=True)]
  mask = jnp.pad(mask, [(0, 0), (0, 0), (0, short[0]), (0, short[1])])
  mask = mask.reshape(batch, heads, -1, queries, mask.shape[3] // keys, keys)
  return mask.transpose(2, 4, 0, 1, 3, 5)
