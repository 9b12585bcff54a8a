"""A scheme's bias, and its vectors, computed once for each distance and not for each pair.

Where all ids count up by one, T queries and S keys have T + S - 1 distances. A table has an entry
for each of them, from the largest distance T - 1 (plus where the ids begin) down to the smallest.
JAX differentiates the table with respect to the scheme's parameters; a tile reads its part, which
is the same for all tiles of a diagonal, and adds its cotangents to that part.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from posjax.attention import places
from posjax.attention.inputs import Side
from posjax.math.differences import count_up, saturating_subtract
from posjax.math.toeplitz import along, layout
from posjax.scheme import Ids, Params, Scheme, declares


class Table(NamedTuple):
  """Entries by falling distance: N of all tiles, padding included, or n of one tile.

  Attributes:
    bias: of the scheme's `bias`; None where it has none. h is H, or 1 where heads are alike.
    vectors: of the scheme's `tiled.relative`; None where it has none.
  """

  bias: Float[Array, 'h N'] | None
  vectors: Float[Array, 'H W N'] | None


class Sizes(NamedTuple):
  """Sizes of the tiles: how many rows of them there are, and the tokens of each tile."""

  rows: int
  queries: int
  keys: int


def check_known(scheme: Scheme, q: Side, k: Side) -> None:
  """Checks that every distance is below 2^31, as far as the ids are known: a larger one saturates.

  Ids that a compiled program alone knows are passed by, and so are those of padding.

  Args:
    scheme: any scheme; one that acts at place 2 alone sees no distance.
    q: the queries.
    k: the keys.

  Raises:
    ValueError: if one is not.
  """
  sees = declares(scheme, 'logits') or scheme.bias is not None or scheme.values.add is not None
  if not sees:
    return
  if not (_is_known(q.pos) and _is_known(k.pos)):
    return
  both = np.asarray(q.pos), np.asarray(k.pos)
  ends = [int(end) for pos in both for end in (pos.min(), pos.max())]
  limit = np.iinfo(np.result_type(q.pos.dtype, k.pos.dtype)).max
  if max(ends) - min(ends) <= limit or not (_is_known(q.segments) and _is_known(k.segments)):
    return
  (q_least, q_most), (k_least, k_most) = _ends(q), _ends(k)
  for one, other in ((q_most, k_least), (k_most, q_least)):
    far = one - other > limit
    if far.any():
      ids = [int(np.broadcast_to(x, far.shape)[far][0]) for x in (one, other)]
      raise ValueError(
        f'Ids of one row must differ by at most {limit}, but got {ids[0]} and {ids[1]}.'
      )


def _is_known(ids: Array) -> bool:
  known = not isinstance(ids, jax.core.Tracer) and getattr(ids, 'is_fully_addressable', True)
  return known and jnp.issubdtype(ids.dtype, jnp.integer) and ids.size > 0


def _ends(side: Side) -> tuple[np.ndarray, np.ndarray]:
  """The least and the largest id of each row, [b, n], as floats; padding is left out."""
  pos, segments = np.asarray(side.pos, np.float64), np.asarray(side.segments)
  pos = pos.reshape(*pos.shape[:2], -1)
  real = (segments != 0)[..., None]
  return np.where(real, pos, np.inf).min(1), np.where(real, pos, -np.inf).max(1)


def is_useful(scheme: Scheme, q_pos: Ids, k_pos: Ids) -> bool:
  """Whether a table could help: with one integer id per token, and more pairs than distances."""
  if scheme.bias is None and scheme.traits.tiled.relative is None:
    return False
  whole = all(jnp.issubdtype(pos.dtype, jnp.integer) for pos in (q_pos, k_pos))
  queries, keys = q_pos.shape[1], k_pos.shape[1]
  return q_pos.ndim == 2 and whole and queries * keys > queries + keys


def contiguous(q_pos: Ids, k_pos: Ids) -> Bool[Array, '']:
  """Whether each row of either side counts up by one, and no distance wraps around."""
  first = saturating_subtract(q_pos[:, 0], k_pos[:, 0])
  room = 2 * (q_pos.shape[1] + k_pos.shape[1])  # tokens, with the padding of the last tile
  near = abs(first) < jnp.iinfo(first.dtype).max - room
  return count_up(q_pos) & count_up(k_pos) & near.all()


def counts_up(q_pos: Ids, k_pos: Ids) -> Bool[Array, '']:
  """Whether all ids count up by one, with the same distances in each row."""
  first = q_pos[:, 0] - k_pos[:, 0]
  return contiguous(q_pos, k_pos) & (first == first[0]).all()


def chunks_count_up(q_pos: Ids, k_pos: Ids, queries: int, keys: int) -> Bool[Array, '']:
  """Whether `counts_up` holds for each chunk of the queries with each chunk of the keys.

  Args:
    q_pos: ids of the queries, [b, T].
    k_pos: ids of the keys, [b, S].
    queries: of a chunk.
    keys: of a chunk.

  Example:
    >>> pos = jnp.array([[0, 1, 6, 7]])
    >>> bool(chunks_count_up(pos, pos, 2, 2)), bool(chunks_count_up(pos, pos, 4, 4))
    (True, False)
  """
  rows = np.broadcast_shapes(q_pos.shape[:1], k_pos.shape[:1])
  q, k = (
    jnp.broadcast_to(pos.reshape(pos.shape[0], -1, size), (*rows, pos.shape[1] // size, size))
    for pos, size in ((q_pos, queries), (k_pos, keys))
  )
  counting = count_up(q.reshape(-1, queries)) & count_up(k.reshape(-1, keys))
  # Rows may begin anywhere, if all chunks of a row do together.
  firsts = jnp.concatenate([q[..., 0], k[..., 0]], 1)
  apart = saturating_subtract(firsts, firsts[:, :1])
  near = abs(apart) < jnp.iinfo(apart.dtype).max // 2 - 2 * (q_pos.shape[1] + k_pos.shape[1])
  return counting & near.all() & (apart == apart[:1]).all()


def falling(q_pos: Ids, k_pos: Ids, queries: int, keys: int) -> Num[Array, 'b N']:
  """All distances of ids that count up by one, the largest first; N = queries + keys - 1.

  Args:
    q_pos: ids of the queries, [b, T].
    k_pos: ids of the keys, [b, S].
    queries: T, with the padding of the last tile.
    keys: S, likewise.

  Example:
    >>> falling(jnp.array([[5, 6]]), jnp.array([[5, 6, 7]]), 2, 3)
    Array([[ 1,  0, -1, -2]], dtype=int32)
  """
  first = q_pos[:, :1] - k_pos[:, :1]
  return first + jnp.arange(queries - 1, -keys, -1, dtype=first.dtype)[None]


def tabulate(
  scheme: Scheme, params: Params, q_pos: Ids, k_pos: Ids, queries: int, keys: int
) -> Table:
  """The table, for ids that count up by one, with the same distances in all rows.

  Args:
    scheme: one with a bias, or with `tiled.relative`.
    params: its parameters.
    q_pos: ids of the queries, [b, T].
    k_pos: ids of the keys, [b, S].
    queries: T, with the padding of the last tile.
    keys: S, likewise.
  """
  distance = falling(q_pos[:1], k_pos[:1], queries, keys)
  bias, relative = None, scheme.traits.tiled.relative
  if scheme.bias is not None:
    bias = places.by_head(scheme.bias(params, distance), distance.shape)[0]
  if relative is None:
    return Table(bias, None)
  return Table(bias, jnp.moveaxis(relative.vectors(params, distance[0]), 0, -1))


def read(table: Table, sizes: Sizes, i: Any, key: Any) -> Table:
  """The part of a tile: the bias laid out as [1, h, queries, keys], the vectors not.

  Args:
    table: of all tiles.
    sizes: of the tiles.
    i: row of the tile.
    key: the first key of the tile.
  """
  part = lambda entries: lax.dynamic_slice_in_dim(entries, *_place(sizes, i, key), axis=-1)
  bias = None if table.bias is None else layout(part(table.bias), sizes.queries)[None]
  return Table(bias, None if table.vectors is None else part(table.vectors))


def add(table: Table, part: Table, sizes: Sizes, i: Any, key: Any) -> Table:
  """Adds the cotangent of the part that a tile has `read` to that of the whole table.

  Args:
    table: cotangents so far.
    part: the part's; its bias [B, H, queries, keys], not yet summed over what shares an entry.
    sizes: of the tiles.
    i: row of the tile.
    key: the first key of the tile.
  """

  def added(entries, more):
    start, length = _place(sizes, i, key)
    old = lax.dynamic_slice_in_dim(entries, start, length, axis=-1)
    return lax.dynamic_update_slice_in_dim(entries, old + more, start, axis=-1)

  bias, vectors = table
  if bias is not None and part.bias is not None:
    tile = part.bias.sum(0)
    bias = added(bias, along(tile if bias.shape[0] > 1 else tile.sum(0, keepdims=True)))
  return Table(bias, None if vectors is None else added(vectors, part.vectors))


def _place(sizes: Sizes, i: Any, key: Any) -> tuple[Any, int]:
  """The index at which a tile's distances begin, and how many there are."""
  start = (sizes.rows - 1 - i) * sizes.queries + key
  return start, sizes.queries + sizes.keys - 1
