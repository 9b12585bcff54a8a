"""A scheme's bias as a table by distance, and the gradient of the table by distance.

Entry n of a table of T queries and S keys is the bias where the key stands n + 1 - T tokens after
the query: T + S - 1 numbers a head, that a kernel lays out along the diagonals of its tiles. XLA
differentiates the table with respect to the scheme's parameters; a kernel gives the table's
gradient in `strips`, one for each diagonal of square tiles.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.scheme import Ids, Params


def table(
  of: Callable[..., Array], params: Params, q_pos: Ids, k_pos: Ids
) -> Float[Array, 'b h N']:
  """The bias of ids that count up by one: [b, H, T + S - 1], from distance T - 1 down.

  Args:
    of: a scheme's `bias`.
    params: its parameters.
    q_pos: ids of the queries, [b, T].
    k_pos: ids of the keys, [b, S].

  Raises:
    ValueError: if the bias does not return one number for each head and distance.
  """
  queries, keys = q_pos.shape[1], k_pos.shape[1]
  first = q_pos[:, :1] - k_pos[:, :1]
  distance = first + jnp.arange(queries - 1, -keys, -1, dtype=first.dtype)[None]
  per_head = of(params, distance)
  if per_head.ndim != 3 or per_head.shape[1:] != distance.shape:
    expected = f'[H, {", ".join(map(str, distance.shape))}]'
    raise ValueError(f'bias must return {expected}, heads first, but got {per_head.shape}.')
  return jnp.moveaxis(per_head, 0, 1).astype(jnp.float32)


def padded(x: Float[Array, 'b h N'], queries: int, keys: int, block: int) -> Array:
  """The table of lengths that `block` divides, with one entry before it: a multiple of `block`.

  Entry n is then of a key that stands n - T tokens after the query, T being the new length.

  Args:
    x: the table.
    queries: T before the padding.
    keys: S before the padding.
    block: tokens of a block.
  """
  before, after = -queries % block + 1, -keys % block
  return jnp.pad(x, [(0, 0), (0, 0), (before, after)])


def unpadded(x: Float[Array, 'b h N'], queries: int, keys: int, block: int) -> Array:
  """The inverse of `padded`."""
  before = -queries % block + 1
  return x[..., before : before + queries + keys - 1]


def from_strips(x: Num[Array, '*rest M twice']) -> Num[Array, '*rest N']:
  """Adds up strips [diagonals, 2 block] that overlap by half: [(diagonals + 1) * block].

  Example:
    >>> from_strips(jnp.array([[1, 2], [10, 20]]))
    Array([ 1, 12, 20], dtype=int32)
  """
  block = x.shape[-1] // 2
  low, high = x[..., :block], x[..., block:]
  nothing = jnp.zeros_like(low[..., :1, :])
  sums = jnp.concatenate([low, nothing], -2) + jnp.concatenate([nothing, high], -2)
  return sums.reshape(*x.shape[:-2], -1)
