"""Ids from the world: where each token is, as arrays.

Schemes never derive positions from a shape; these functions make them, once, at the border.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from posjax.arguments import INT32, Range, Size, Whole, read, shown


def sequential(length: int, offset: int | Int[Array, '*B'] = 0) -> Int[Array, '*B T']:
  """offset, offset + 1, ...: one document, or the continuation of one.

  Args:
    length: T, tokens.
    offset: the id of the first token: an int, or one per row.

  Returns:
    int32 [T], or [B, T] for offsets [B].

  Raises:
    TypeError: if the length or the offsets are no integers.
    ValueError: if the length is negative, or an id is no int32.

  Example:
    >>> sequential(4, offset=jnp.array([0, 7]))
    Array([[ 0,  1,  2,  3],
           [ 7,  8,  9, 10]], dtype=int32)
  """
  length = read(length, Whole, 'The length of a text')
  start = jnp.asarray(_offsets(offset, length), jnp.int32)[..., None]
  return start + jnp.arange(length, dtype=jnp.int32).reshape((1,) * (start.ndim - 1) + (-1,))


def from_mask(mask: Bool[Array, '*B T']) -> Int[Array, '*B T']:
  """Numbers the real tokens of each row from 0, wherever the padding is.

  Args:
    mask: True for real tokens.

  Returns:
    int32 ids; padding gets 0, and must be hidden by segments or a mask.

  Raises:
    TypeError: if the mask is no array, or not boolean.
    ValueError: if it has no axis.

  Example:
    >>> from_mask(jnp.array([[False, False, True, True, True]]))
    Array([[0, 0, 0, 1, 2]], dtype=int32)
  """
  _check_array(mask, 'The mask')
  if mask.dtype != jnp.bool_:
    raise TypeError(f'The mask must be boolean, True for real tokens, but got {mask.dtype}.')
  return jnp.where(mask, jnp.cumsum(mask, axis=-1, dtype=jnp.int32) - 1, 0)


def from_segments(segments: Int[Array, '*B T']) -> Int[Array, '*B T']:
  """Numbers the tokens of each packed document from 0.

  Args:
    segments: document numbers; a document is a run of equal ones, and 0 is padding.

  Returns:
    int32 ids; padding gets 0.

  Raises:
    TypeError: if the segments are no array of integers.
    ValueError: if they have no axis.

  Example:
    >>> from_segments(jnp.array([[1, 1, 1, 2, 2, 0]]))
    Array([[0, 1, 2, 0, 1, 0]], dtype=int32)
  """
  _check_array(segments, 'Segments')
  if not jnp.issubdtype(segments.dtype, jnp.integer):
    raise TypeError(
      f'Segments must be integers, the numbers of documents, but got {segments.dtype}.'
    )
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

  Raises:
    TypeError: if a size is no integer.
    ValueError: if a size is not positive.

  Example:
    >>> grid(2, 2)
    Array([[0, 0],
           [0, 1],
           [1, 0],
           [1, 1]], dtype=int32)
  """
  height = read(height, Size, 'The height of a grid')
  width = read(width, Size, 'The width of a grid')
  rows, columns = jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing='ij')
  return jnp.stack([rows.ravel(), columns.ravel()], axis=-1).astype(jnp.int32)


def _offsets(offset: int | Int[Array, '*B'], length: int) -> int | Int[Array, '*B']:
  """The offsets, of which those that are known leave room for the length in int32."""
  allowed = Annotated[int, Range(INT32.least, 2**31 - max(length, 1))]
  if not isinstance(offset, (jax.Array, np.ndarray)):
    return read(offset, allowed, 'The offset of a text')
  if not jnp.issubdtype(offset.dtype, jnp.integer):
    raise TypeError(f'The offsets of texts must be integers, but got {offset.dtype}.')
  # Those of a program that is being traced, or of other processes, are not known here.
  traced = isinstance(offset, jax.core.Tracer)
  if offset.size and not traced and getattr(offset, 'is_fully_addressable', True):
    known = np.asarray(offset)
    for each in (known.min(), known.max()):
      read(int(each), allowed, 'The offset of a text')
  return offset


def _check_array(x: Array, name: str) -> None:
  if not isinstance(x, (jax.Array, np.ndarray)):
    raise TypeError(f'{name} must be an array, but got {shown(x)}.')
  if not x.ndim:
    raise ValueError(f'{name} must have an axis of tokens, but got shape {x.shape}.')
