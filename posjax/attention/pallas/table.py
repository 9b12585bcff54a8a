"""A bias by distance in the layout that kernels read, and its cotangent in the one they write.

Entry n of the table of T queries and S keys is the bias where the key is n + 1 - T tokens after
the query: T + S - 1 numbers for each head, which a kernel lays out along the diagonals of its
tiles. Kernels write cotangents in strips, one for each diagonal of square tiles.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num


def padded(x: Float[Array, 'b h N'], queries: int, keys: int, block: int) -> Array:
  """The table of lengths that `block` divides, with one entry before it: a multiple of `block`.

  Entry n is then of a key that is n - T tokens after the query, T being the new length.

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


def skipped(near: int, queries: int, keys: int, padding: int, block: int) -> int:
  """How many strips, from the first, hold no entry of the table from `near` on; not all of them.

  Args:
    near: an entry of the table.
    queries: T before the padding.
    keys: S before the padding.
    padding: the number that the padded lengths are a multiple of.
    block: tokens of a block, which divides `padding`.

  Example:
    >>> [skipped(near, 256, 256, 64, 64) for near in (0, 126, 127, 510)]
    [0, 0, 1, 6]
  """
  before = -queries % padding + 1
  strips = (-(-queries // padding) - (-keys // padding)) * padding // block - 1
  return min(max(0, (near + before) // block - 1), strips - 1)


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
