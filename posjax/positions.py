"""Ids from the world: where each token stands, as arrays.

Schemes never derive positions from a shape; these functions make them, once, at the border.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def sequential(length: int, offset: int | Int[Array, '*B'] = 0) -> Int[Array, '*B T']:
  """offset, offset + 1, ...: one document, or the continuation of one.

  Args:
    length: T, tokens.
    offset: the id of the first token: an int, or one per row.

  Returns:
    int32 [T], or [B, T] for offsets [B].

  Example:
    >>> sequential(4, offset=jnp.array([0, 7]))
    Array([[ 0,  1,  2,  3],
           [ 7,  8,  9, 10]], dtype=int32)
  """
  start = jnp.asarray(offset, jnp.int32)[..., None]
  return start + jnp.arange(length, dtype=jnp.int32).reshape((1,) * (start.ndim - 1) + (-1,))


def from_mask(mask: Bool[Array, '*B T']) -> Int[Array, '*B T']:
  """Numbers the real tokens of each row from 0, wherever the padding stands.

  Args:
    mask: True for real tokens.

  Returns:
    int32 ids; padding gets 0, and must be hidden by segments or a mask.

  Raises:
    TypeError: if the mask is not boolean.

  Example:
    >>> from_mask(jnp.array([[False, False, True, True, True]]))
    Array([[0, 0, 0, 1, 2]], dtype=int32)
  """
  if mask.dtype != jnp.bool_:
    raise TypeError(f'The mask must be boolean, True for real tokens, but got {mask.dtype}.')
  return jnp.where(mask, jnp.cumsum(mask, axis=-1, dtype=jnp.int32) - 1, 0)


def from_segments(segments: Int[Array, '*B T']) -> Int[Array, '*B T']:
  """Numbers the tokens of each packed document from 0.

  Args:
    segments: document numbers; a document is a run of equal ones, and 0 is padding.

  Returns:
    int32 ids; padding gets 0.

  Example:
    >>> from_segments(jnp.array([[1, 1, 1, 2, 2, 0]]))
    Array([[0, 1, 2, 0, 1, 0]], dtype=int32)
  """
  length = segments.shape[-1]
  index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), segments.shape)
  before = jnp.roll(segments, 1, axis=-1)
  starts = jnp.where((segments != before) | (index == 0), index, 0)
  ids = index - jnp.maximum.accumulate(starts, axis=-1)
  return jnp.where(segments == 0, 0, ids)


def grid(height: int, width: int) -> Int[Array, 'T 2']:
  """Row and column of each cell of an image or table, in reading order.

  Returns:
    int32 [height * width, 2]: (row, column).

  Example:
    >>> grid(2, 2)
    Array([[0, 0],
           [0, 1],
           [1, 0],
           [1, 1]], dtype=int32)
  """
  rows, columns = jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing='ij')
  return jnp.stack([rows.ravel(), columns.ravel()], axis=-1).astype(jnp.int32)
