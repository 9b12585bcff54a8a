"""Ids from the world: where each token is, as arrays.

Schemes never derive positions from a shape; these functions make them, once, at the border.
"""

from collections.abc import Callable
from typing import Annotated, Any

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


def zigzag(tree: Any, devices: int, axis: int = 1) -> Any:
  """Tokens in the zig-zag layout, in which causal attention keeps all devices equally busy.

  A row is cut into 2 n chunks, and device i gets chunks i and 2 n - 1 - i: an early and a late one.
  Permute all that belongs to tokens once, before the model: tokens, ids, order, segments, targets
  and masks of tokens. Attention follows the order of tokens, and not their places in the array.

  `forgetting` and `cope`, which go by the places of tokens in the array, refuse this layout.
  Shifting tokens by one to make them targets is to come before.

  Args:
    tree: arrays [B, T, ...], or with T elsewhere.
    devices: n, along the axis `context` of the mesh; 2 n divides T.
    axis: that of the tokens.

  Returns:
    The tree with its tokens in another order, cut by chunk: device i has T / n tokens.

  Raises:
    TypeError: if the devices or the axis are no integers, or a leaf is no array.
    ValueError: if the devices are not positive, or 2 n does not divide the tokens of a leaf.

  Reference: Brandon et al. 2023, https://arxiv.org/abs/2311.09431, section 3.3, where chunks are
  single tokens; with two chunks, Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783, 3.3.2.

  Example:
    >>> zigzag(jnp.arange(8), devices=2, axis=0)
    Array([0, 1, 6, 7, 2, 3, 4, 5], dtype=int32)
  """
  return _permuted(tree, devices, axis, _zigzag_chunks)


def from_zigzag(tree: Any, devices: int, axis: int = 1) -> Any:
  """The inverse of `zigzag`: tokens in their own order again.

  Args:
    tree: arrays [B, T, ...], or with T elsewhere.
    devices: n, as of `zigzag`.
    axis: that of the tokens.

  Raises:
    TypeError: as `zigzag`.
    ValueError: as `zigzag`.

  Example:
    >>> from_zigzag(zigzag(jnp.arange(8), 2, axis=0), 2, axis=0)
    Array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
  """
  return _permuted(tree, devices, axis, lambda count: np.argsort(_zigzag_chunks(count)))


def _zigzag_chunks(devices: int) -> np.ndarray:
  """The chunks of all devices, one device after the other."""
  first = np.arange(devices)
  return np.stack([first, 2 * devices - 1 - first], axis=1).reshape(-1)


def _permuted(tree: Any, devices: int, axis: int, order: Callable[[int], np.ndarray]) -> Any:
  devices, axis = read(devices, Size, 'devices'), read(axis, int, 'axis')

  def permuted(leaf):
    _check_array(leaf, 'Each leaf')
    if not -leaf.ndim <= axis < leaf.ndim:
      raise ValueError(f'Each leaf must have an axis {axis} of tokens, but got shape {leaf.shape}.')
    if leaf.shape[axis] % (2 * devices):
      raise ValueError(
        f'The tokens of a row must be a multiple of {2 * devices}, two chunks for each of '
        f'{devices} devices, but got {leaf.shape[axis]}.'
      )
    place = axis % leaf.ndim
    chunks = leaf.reshape(*leaf.shape[:place], 2 * devices, -1, *leaf.shape[place + 1 :])
    return jnp.take(chunks, order(devices), axis=place).reshape(leaf.shape)

  return jax.tree.map(permuted, tree)


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
