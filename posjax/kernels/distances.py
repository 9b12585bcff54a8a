"""A bias by distance, evaluated once for each distance instead of once for each pair.

Where all ids count up by one, T queries and S keys have T + S - 1 distances. The bias is tabulated
at those, outside the tiles, so that JAX differentiates the table; a tile reads its part, which is
the same along a diagonal of tiles. For any other ids a tile evaluates its pairs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from posjax.scheme import Ids, Params
from posjax.toeplitz import along, layout


class Table(NamedTuple):
  """The bias by falling distance, of the padded tiles."""

  counts: Bool[Array, '']  # whether all ids count up by one; otherwise the entries are zeros
  entries: Float[Array, 'b h N']


def tabulate(
  bias: Callable[..., Array], params: Params, q_pos: Ids, k_pos: Ids, queries: int, keys: int
) -> Table | None:
  """The table, or None where a table of these ids would not do, or not help.

  Args:
    bias: of a scheme.
    params: its parameters.
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    queries: T, with the padding of the last tile.
    keys: S, likewise.
  """
  whole = all(jnp.issubdtype(pos.dtype, jnp.integer) for pos in (q_pos, k_pos))
  if q_pos.ndim > 2 or not whole or queries * keys <= queries + keys:
    return None
  counts = counts_up(q_pos) & counts_up(k_pos)
  falling = jnp.arange(queries - 1, -keys, -1, dtype=q_pos.dtype)[None]
  distances = q_pos[:, :1] - k_pos[:, :1] + falling
  of = lambda: jnp.moveaxis(bias(params, distances), 0, 1)
  empty = jax.eval_shape(of)
  return Table(counts, lax.cond(counts, of, lambda: jnp.zeros(empty.shape, empty.dtype)))


def counts_up(pos: Num[Array, 'b n']) -> Bool[Array, '']:
  """Whether each row counts up by one."""
  return (pos[:, 1:] - pos[:, :-1] == 1).all()


def start(rows: int, queries: int, keys: int, i: Any, j: Any) -> Any:
  """Where tile (i, j) of `queries` and `keys` tokens begins in a table for `rows` rows of tiles."""
  return (rows - 1 - i) * queries + j * keys


def read(
  entries: Float[Array, 'b h N'], at: Any, queries: int, keys: int
) -> Float[Array, 'b h queries keys']:
  """One tile of the bias."""
  strip = lax.dynamic_slice_in_dim(entries, at, queries + keys - 1, axis=-1)
  return layout(strip, queries)


def add(
  entries: Float[Array, 'b h N'], at: Any, tile: Float[Array, 'B H queries keys']
) -> Float[Array, 'b h N']:
  """`entries` and, by distance, the cotangent of all that `read` from there."""
  queries, keys = tile.shape[-2:]
  shared = tuple(axis for axis in (0, 1) if entries.shape[axis] != tile.shape[axis])
  tile = tile.sum(shared, keepdims=True).astype(entries.dtype)
  old = lax.dynamic_slice_in_dim(entries, at, queries + keys - 1, axis=-1)
  return lax.dynamic_update_slice_in_dim(entries, old + along(tile), at, axis=-1)
