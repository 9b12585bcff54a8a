"""Shifted: one random offset per row, added to all ids in training, so that only distances matter.

ids + k, with k uniform in 0 .. max_shift, where there is a random key; the ids themselves where
there is none. Chain it before a scheme that sees absolute ids, as in `shifted+sinusoidal`. It does
not change schemes that see distances alone.

Reference: Kiyono, Kobayashi, Suzuki, Inui 2021, SHAPE, https://arxiv.org/abs/2109.05644, section 3,
and the authors' code (butsugiri/shape): one k for each sequence of the batch, K = 500. That code
draws from 0 .. K - 1, and numbers the tokens from K, not from 0, when it does not train; the paper
draws from 0 .. K, and so do we. The sum of an id and its offset must stay below 2^31, from which on
int32 wraps around without an error.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Num

from posjax.arguments import Range, Size, checked
from posjax.scheme import PRNGKey, Scheme, Traits

SHIFT_INVARIANT = True  # of the attention, which sees the ids that were shifted
PAPERS = ('kiyono2021shape',)


def offsets(key: PRNGKey, shape: tuple[int, ...], max_shift: int) -> Int[Array, '...']:
  """Independent uniform integers in 0 .. max_shift, both ends included.

  Example:
    >>> offsets(jax.random.key(0), (2, 1), max_shift=0)
    Array([[0],
           [0]], dtype=int32)
  """
  return jax.random.randint(key, shape, 0, max_shift + 1, jnp.int32)


def shift(pos: Num[Array, '...'], key: PRNGKey, max_shift: int, axes: int = 1) -> Num[Array, '...']:
  """Ids plus one random offset for each row and axis.

  Args:
    pos: [T] or [B, T], in tokens; for n axes [T, n] or [B, T, n].
    key: a JAX random key.
    max_shift: the largest offset.
    axes: n, the number of ids of each token; each axis of a row has an offset of its own.

  Returns:
    int32, which is exact, or float32 for float32 ids.

  Raises:
    TypeError: if ids are unsigned integers that do not fit into int32, or of a float type narrower
      than float32.

  Example:
    >>> pos = shift(jnp.arange(3), jax.random.key(0), max_shift=9)
    >>> pos - pos[0]
    Array([0, 1, 2], dtype=int32)
  """
  if jnp.can_cast(pos.dtype, jnp.int32):
    pos = pos.astype(jnp.int32)
  elif pos.dtype not in (jnp.int64, jnp.float32, jnp.float64):
    raise TypeError(f'Ids must be signed integers, float32 or float64, but got {pos.dtype}.')
  per_token = (axes,) if axes > 1 else ()
  rows = pos.shape[: pos.ndim - 1 - len(per_token)]
  drawn = offsets(key, (*rows, 1, *per_token), max_shift)
  return pos + jnp.broadcast_to(drawn, pos.shape).astype(pos.dtype)


@checked
def scheme(max_shift: Annotated[int, Range(0, below=2**31 - 1)] = 500, axes: Size = 1) -> Scheme:
  """Ids shifted at random where there is a random key; the ids themselves where there is none.

  A row is a row of the batch: packed documents in one row share its offset. A text that is computed
  in pieces, as in decoding with a cache, must have no key, or ids that were shifted before.

  Args:
    max_shift: K, the largest offset, in tokens. Its sum with the largest id must be less than
      2^31 - 1. A `learned` table after it needs K more rows. 0 shifts nothing.
    axes: the number of ids of each token; each axis of a row has an offset of its own.

  Raises:
    ValueError: if the shift is negative or not an int32, or there is no axis; where used, TypeError
      for ids of a type that is too narrow.

  Example:
    >>> scheme(max_shift=7).ids(jnp.arange(4), None)
    Array([0, 1, 2, 3], dtype=int32)
  """

  def ids(pos: Num[Array, '...'], key: PRNGKey | None) -> Num[Array, '...']:
    return pos if key is None else shift(pos, key, max_shift, axes)

  return Scheme(ids=ids, traits=Traits(axes))
