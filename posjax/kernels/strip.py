"""A bias by distance, evaluated once for each distance of a tile.

Where the positions of a tile count up by one, its T queries and S keys have T + S - 1 distances,
not T S. `bias` evaluates those and lays them out; for any other positions it evaluates the pairs.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from posjax import tile
from posjax.scheme import Ids, Params


def bias(
  of: Callable[..., Array], params: Params, q_pos: Ids, k_pos: Ids
) -> Float[Array, 'b H T S']:
  """What `tile.bias` gives, from fewer distances where the tile allows it.

  Args:
    of: a scheme's `bias`.
    params: its parameters.
    q_pos: ids of the queries, [b, T] or [b, T, n].
    k_pos: ids of the keys.
  """
  pairs = lambda: tile.bias(of, params, q_pos, k_pos)
  if q_pos.ndim > 2 or q_pos.shape[1] * k_pos.shape[1] <= q_pos.shape[1] + k_pos.shape[1]:
    return pairs()
  strips = lambda: _strips(of, params, q_pos, k_pos)
  return lax.cond(_counts(q_pos) & _counts(k_pos), strips, pairs)


def layout(strip: Num[Array, '*rest N'], queries: int) -> Num[Array, '*rest T S']:
  """Numbers by falling distance, T - 1 .. -(S - 1), as a tile: entry [t, s] has distance t - s.

  Padding and reshaping only, so that the derivative is too.

  Example:
    >>> layout(jnp.array([1, 0, -1]), 2)
    Array([[ 0, -1],
           [ 1,  0]], dtype=int32)
  """
  *rest, length = strip.shape
  padded = jnp.pad(strip, [(0, 0)] * len(rest) + [(0, 1)])
  rows = jnp.broadcast_to(padded[..., None, :], (*rest, queries, length + 1))
  # Each row read one number later than the row above it.
  flat = rows.reshape(*rest, -1)[..., : queries * length]
  return flat.reshape(*rest, queries, length)[..., queries - 1 :]


def _strips(of, params, q_pos, k_pos):
  queries, keys = q_pos.shape[1], k_pos.shape[1]
  first = q_pos[:, :1] - k_pos[:, :1]
  falling = jnp.arange(queries - 1, -keys, -1).astype(first.dtype)[None]
  per_head = jnp.moveaxis(of(params, first + falling), 0, 1)  # [b, H, T + S - 1]
  return layout(per_head, queries)


def _counts(pos: Num[Array, 'b n']) -> Bool[Array, '']:
  """Whether each row counts up by one."""
  return (pos[:, 1:] - pos[:, :-1] == 1).all()
