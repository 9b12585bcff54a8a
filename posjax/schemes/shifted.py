"""Shifted: one random offset per row, added to all ids in training, so that only distances matter.

ids + k, k uniform in 0 .. max_shift, where there is a key; the ids themselves where there is none.
To be chained before a scheme that sees absolute ids: `shifted+sinusoidal`. Schemes that see
distances alone are not changed by it.

Reference: Kiyono, Kobayashi, Suzuki, Inui 2021, SHAPE, https://arxiv.org/abs/2109.05644, section 3,
and the authors' code (butsugiri/shape): one k for each sequence of the batch, K = 500. That code
draws from 0 .. K - 1 and numbers the tokens from K, not from 0, when it does not train; the paper
draws from 0 .. K, and so do we. An id and its offset together must stay below 2^31, where int32
wraps round without a word.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Num

from posjax.scheme import PRNGKey, Scheme

SHIFT_INVARIANT = True  # of the attention, which sees the ids that were shifted


def offsets(key: PRNGKey, shape: tuple[int, ...], max_shift: int) -> Int[Array, '...']:
  """Independent uniform numbers of 0 .. max_shift, both included.

  Example:
    >>> offsets(jax.random.key(0), (2, 1), max_shift=0)
    Array([[0],
           [0]], dtype=int32)
  """
  return jax.random.randint(key, shape, 0, max_shift + 1, jnp.int32)


def shift(pos: Num[Array, '...'], key: PRNGKey, max_shift: int, axes: int = 1) -> Num[Array, '...']:
  """Ids with one offset per row, and per axis.

  Args:
    pos: [T] or [B, T], in tokens; for n axes [T, n] or [B, T, n].
    key: a JAX random key.
    max_shift: the largest offset.
    axes: n, ids per token: each axis of a row gets an offset of its own.

  Returns:
    int32, exactly; of float32 ids, float32.

  Raises:
    TypeError: if ids are unsigned and wide, or of a float type narrower than float32.

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


def scheme(max_shift: int = 500, axes: int = 1) -> Scheme:
  """Ids shifted at random where there is a key; the ids themselves where there is none.

  A row is a row of the batch: packed documents share the offset of theirs. A text that comes in
  pieces, such as decoding with a cache, must come without a key, or with its ids shifted before.

  Args:
    max_shift: K, the largest offset, in tokens: less than 2^31 - 1 by the largest id. 0 is off.
      Tables must have as many rows more.
    axes: ids per token: each axis of a row gets an offset of its own.

  Raises:
    ValueError: if the shift is negative or no int32, or the axes are none; where used, TypeError
      for ids that cannot be added to.

  Example:
    >>> scheme(max_shift=7).ids(jnp.arange(4), None)
    Array([0, 1, 2, 3], dtype=int32)
  """
  if not 0 <= max_shift < 2**31 - 1:
    raise ValueError(f'The max_shift must be in 0 .. 2^31 - 2, but got {max_shift}.')
  if axes < 1:
    raise ValueError(f'Shifted positions need at least one axis, but got {axes}.')

  def ids(pos: Num[Array, '...'], key: PRNGKey | None) -> Num[Array, '...']:
    return pos if key is None else shift(pos, key, max_shift, axes)

  return Scheme(ids=ids, axes=axes)
