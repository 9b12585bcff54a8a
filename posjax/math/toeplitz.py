"""Where ids count up by one, T queries and S keys have T + S - 1 distances, not T S.

What is known of each distance is laid out as a tile here, by slicing, joining and reshaping
alone, so that derivatives are no scatters. Distances fall: T - 1 .. -(S - 1), so that [t, s] has
t - s.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Num


def layout(strip: Num[Array, '*rest N'], queries: int) -> Num[Array, '*rest T S']:
  """A number for each distance, as a tile.

  Args:
    strip: N = T + S - 1 numbers, by falling distance.
    queries: T.

  Example:
    >>> layout(jnp.array([1, 0, -1]), 2)
    Array([[ 0, -1],
           [ 1,  0]], dtype=int32)
  """
  rows = strip[..., None, :]  # of the last queries, twice as many at a time
  while (have := rows.shape[-2]) < queries:
    more = min(have, queries - have)
    rows = jnp.concatenate([rows[..., :more, more:], rows[..., :-more]], axis=-2)
  return rows


def shift(rows: Num[Array, '*rest T N']) -> Num[Array, '*rest T S']:
  """Each query's own number for each distance, as a tile: Transformer-XL's relative shift.

  Reference: Dai et al. 2019, https://arxiv.org/abs/1901.02860, appendix B.

  Args:
    rows: for each query N = T + S - 1 numbers, by falling distance.

  Example:
    >>> shift(jnp.array([[11, 10, 9], [21, 20, 19]]))
    Array([[10,  9],
           [21, 20]], dtype=int32)
  """
  *rest, queries, length = rows.shape
  if queries == 1:
    return rows
  # Rows of N - 1 numbers: each begins one number earlier than the row above it.
  flat = rows.reshape(*rest, queries * length)[..., queries - 1 :]
  flat = flat[..., : queries * (length - 1)]
  return flat.reshape(*rest, queries, length - 1)[..., : length - queries + 1]


def unshift(tile: Num[Array, '*rest T S']) -> Num[Array, '*rest T N']:
  """The transpose of `shift`: each query's numbers at their distances, zeros at the others.

  Example:
    >>> unshift(jnp.array([[10.0, 9.0], [21.0, 20.0]]))
    Array([[ 0., 10.,  9.],
           [21., 20.,  0.]], dtype=float32)
  """
  *rest, queries, keys = tile.shape
  if queries == 1:
    return tile
  # What `shift` does, backward. XLA makes a pad of what is joined to zeros that it knows, which is
  # three times as slow on a CPU.
  shapes = (queries, queries - 2), (queries - 1,), (1,)
  between, before, after = jax.lax.optimization_barrier(
    [jnp.zeros((*rest, *shape), tile.dtype) for shape in shapes]
  )
  flat = jnp.concatenate([tile, between], axis=-1).reshape(*rest, -1)
  flat = jnp.concatenate([before, flat, after], axis=-1)
  return flat.reshape(*rest, queries, queries + keys - 1)


def along(tile: Num[Array, '*rest T S']) -> Num[Array, '*rest N']:
  """Sums over the pairs of each distance: the transpose of `layout`.

  Example:
    >>> along(jnp.array([[10.0, 9.0], [21.0, 20.0]]))
    Array([21., 30.,  9.], dtype=float32)
  """
  queries, keys = tile.shape[-2:]
  strip = jax.ShapeDtypeStruct((*tile.shape[:-2], queries + keys - 1), tile.dtype)
  return jax.linear_transpose(lambda strip: layout(strip, queries), strip)(tile)[0]
