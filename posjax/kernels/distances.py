"""What depends on the distance alone, evaluated once for each distance and not for each pair.

Where all ids count up by one, T queries and S keys have T + S - 1 distances. A bias, and the
vectors of a scheme's `relative`, are tabulated at those, outside the tiles, so that JAX
differentiates the tables; a tile reads its part, the same for all tiles of a diagonal.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from posjax.scheme import Ids, Params, Scheme
from posjax.toeplitz import along, layout


class Table(NamedTuple):
  """By falling distance; N distances of all tiles, padding included, or n of one."""

  bias: Float[Array, 'h N'] | None
  vectors: Float[Array, 'H W N'] | None


class Sizes(NamedTuple):
  """Of the tiles."""

  rows: int
  queries: int  # of each row
  keys: int  # of each column


def able(scheme: Scheme, q_pos: Ids, k_pos: Ids) -> bool:
  """Whether a table could help: for one integer id per token, and more pairs than distances."""
  if scheme.bias is None and scheme.tiled.relative is None:
    return False
  whole = all(jnp.issubdtype(pos.dtype, jnp.integer) for pos in (q_pos, k_pos))
  queries, keys = q_pos.shape[1], k_pos.shape[1]
  return q_pos.ndim == 2 and whole and queries * keys > queries + keys


def contiguous(q_pos: Ids, k_pos: Ids) -> Bool[Array, '']:
  """Whether each row of either side counts up by one, wherever it begins."""
  return (q_pos[:, 1:] - q_pos[:, :-1] == 1).all() & (k_pos[:, 1:] - k_pos[:, :-1] == 1).all()


def counts_up(q_pos: Ids, k_pos: Ids) -> Bool[Array, '']:
  """Whether all ids count up by one, with the same distances in each row."""
  first = q_pos[:, 0] - k_pos[:, 0]
  return contiguous(q_pos, k_pos) & (first == first[0]).all()


def tabulate(
  scheme: Scheme, params: Params, q_pos: Ids, k_pos: Ids, queries: int, keys: int
) -> Table:
  """The table, for ids that count up by one.

  Args:
    scheme: one with a bias, or `relative`.
    params: its parameters.
    q_pos: ids of the queries, [b, T].
    k_pos: ids of the keys.
    queries: T, with the padding of the last tile.
    keys: S, likewise.
  """
  falling = jnp.arange(queries - 1, -keys, -1, dtype=q_pos.dtype)
  distances = q_pos[0, 0] - k_pos[0, 0] + falling
  bias = None if scheme.bias is None else scheme.bias(params, distances)
  relative = scheme.tiled.relative
  if relative is None:
    return Table(bias, None)
  return Table(bias, jnp.moveaxis(relative.vectors(params, distances), 0, -1))


def read(table: Table, sizes: Sizes, i: Any, j: Any) -> Table:
  """The part of tile (i, j): the bias laid out as [1, h, queries, keys], the vectors not."""
  part = lambda entries: lax.dynamic_slice_in_dim(entries, *_place(sizes, i, j), axis=-1)
  bias = None if table.bias is None else layout(part(table.bias), sizes.queries)[None]
  return Table(bias, None if table.vectors is None else part(table.vectors))


def add(table: Table, found: Table, sizes: Sizes, i: Any, j: Any) -> Table:
  """`table` and what tiles like (i, j) gave back of what they `read`, [B, H, queries, keys]."""

  def added(entries, more):
    start, length = _place(sizes, i, j)
    old = lax.dynamic_slice_in_dim(entries, start, length, axis=-1)
    return lax.dynamic_update_slice_in_dim(entries, old + more, start, axis=-1)

  bias, vectors = table
  if bias is not None and found.bias is not None:
    tile = found.bias.sum(0)
    bias = added(bias, along(tile if bias.shape[0] > 1 else tile.sum(0, keepdims=True)))
  return Table(bias, None if vectors is None else added(vectors, found.vectors))


def _place(sizes: Sizes, i: Any, j: Any) -> tuple[Any, int]:
  """Where a tile's distances begin, and how many there are."""
  start = (sizes.rows - 1 - i) * sizes.queries + j * sizes.keys
  return start, sizes.queries + sizes.keys - 1
