"""MXFP4, a format of four bits for each weight, in which gpt-oss publishes its experts.

The format is that of the OCP Microscaling Formats (MX) Specification 1.0: 32 neighbouring numbers
are a group, which shares a power of two. Each is a float of 4 bits, E2M1: a sign, two bits of an
exponent and one of a fraction. The shared exponent is E8M0, a byte s that stands for 2^(s - 127),
where 255 is NaN.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from posjax.arguments import shown

_BYTES = 16  # of a group of 32 numbers
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = np.array([*_POSITIVE, *(-x for x in _POSITIVE)], np.float32)
# The two numbers of each byte, that of the low four bits first.
_PAIRS = np.stack([_E2M1[np.arange(256) & 15], _E2M1[np.arange(256) >> 4]], axis=-1)
_BIAS, _NAN = 127, 255


def unpacked_mxfp4(
  blocks: UInt8[np.ndarray, 'E rows groups 16'],
  scales: UInt8[np.ndarray, 'E rows groups'],
  *,
  dtype: Any = np.float32,
) -> Float[np.ndarray, 'E rows columns']:
  """The numbers of a weight of experts in MXFP4, 32 for each group of 16 bytes.

  A byte holds two numbers, the first in its low four bits. They are exact in float32 and bfloat16,
  but for those of at least 2^128, which no published weight comes near: these are infinite.

  The axes stay as they are in the checkpoint: rows are the outputs of a projection, and columns its
  inputs. The function `convert_moe_packed_tensors` of transformers (5.24) returns the same numbers
  with these two axes swapped, [E, columns, rows], as its modules hold them:
  `np.swapaxes(unpacked, 1, 2)`. It does not know the scale 255: with it, its numbers are infinite
  or NaN, while here all are NaN.

  Args:
    blocks: the bytes, the weight `..._blocks` of the checkpoint.
    scales: the exponents of the groups plus 127, the weight `..._scales`.
    dtype: the dtype of the result, of floats. The numbers are computed in float32, for one expert
      at a time.

  Raises:
    ValueError: if the shapes do not fit.
    TypeError: if the arrays are not of uint8, or the dtype is not one of floats.

  Example:
    >>> blocks = np.zeros((1, 1, 1, 16), np.uint8)
    >>> blocks[..., :2] = [[0x21, 0xF3]]
    >>> unpacked_mxfp4(blocks, np.full((1, 1, 1), 128, np.uint8))[0, 0, :5]
    array([  1.,   2.,   3., -12.,   0.], dtype=float32)
  """
  for name, array in {'blocks': blocks, 'scales': scales}.items():
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
      raise TypeError(f'{name} must be a NumPy array of uint8, but got {shown(array)}.')
  if blocks.ndim != 4 or blocks.shape[-1] != _BYTES or scales.shape != blocks.shape[:-1]:
    raise ValueError(
      f'blocks must have a shape [E, rows, groups, {_BYTES}] and scales [E, rows, groups], but got '
      f'{blocks.shape} and {scales.shape}.'
    )
  if not _is_float(dtype):
    raise TypeError(f'dtype must be one of floats, but got {shown(dtype)}.')
  experts, rows, groups = scales.shape
  exponents = scales.astype(np.int32)[..., None] - _BIAS
  unpacked = np.empty((experts, rows, groups * 2 * _BYTES), dtype)
  with np.errstate(over='ignore'):
    for expert in range(experts):
      numbers = _PAIRS[blocks[expert]].reshape(rows, groups, 2 * _BYTES)
      np.ldexp(numbers, exponents[expert], out=numbers)
      numbers[scales[expert] == _NAN] = np.nan
      unpacked[expert] = numbers.reshape(unpacked.shape[1:])
  return unpacked


def _is_float(dtype: Any) -> bool:
  try:
    return bool(jnp.issubdtype(jnp.dtype(dtype), jnp.floating))
  except TypeError:
    return False
