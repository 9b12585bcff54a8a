"""MXFP4, by the OCP Microscaling Formats (MX) Specification 1.0, byte by byte."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.interop.mxfp4 import unpacked_mxfp4
from tests.support.draws import DRAW


def of_four_bits(bits):
  """E2M1 by its definition: a sign, two bits of an exponent with bias 1, one bit of a fraction."""
  sign, exponent, fraction = bits >> 3, bits >> 1 & 3, bits & 1
  magnitude = fraction / 2 if exponent == 0 else (1 + fraction / 2) * 2.0 ** (exponent - 1)
  return -magnitude if sign else magnitude


def by_loops(blocks, scales):
  experts, rows, groups, _ = blocks.shape
  out = np.zeros((experts, rows, groups * 32))
  for index in np.ndindex(blocks.shape):
    expert, row, group, place = index
    byte, scale = int(blocks[index]), int(scales[expert, row, group])
    factor = np.nan if scale == 255 else 2.0 ** (scale - 127)
    column = 32 * group + 2 * place
    out[expert, row, column] = of_four_bits(byte & 15) * factor
    out[expert, row, column + 1] = of_four_bits(byte >> 4) * factor
  return out


def drawn(low, high, shape=(2, 3, 4)):
  blocks = DRAW.integers(0, 256, (*shape, 16), dtype=np.uint8)
  return blocks, DRAW.integers(low, high, shape, dtype=np.uint8, endpoint=True)


@pytest.mark.parametrize(('low', 'high'), [(100, 130), (0, 255)])
def test_numbers_are_those_of_a_loop_over_bytes(low, high):
  blocks, scales = drawn(low, high)
  scales[0, 0, :2] = low, high
  expected = by_loops(blocks, scales)
  unpacked = unpacked_mxfp4(blocks, scales)
  assert unpacked.dtype == np.float32
  finite = np.where(np.abs(expected) < 2.0**128, expected, np.copysign(np.inf, expected))
  finite = np.where(np.isnan(expected), np.nan, finite)
  assert np.array_equal(unpacked, finite, equal_nan=True)
  assert np.array_equal(np.signbit(unpacked), np.signbit(expected)) or high == 255


def test_every_byte_is_two_numbers_the_low_bits_first():
  blocks = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
  unpacked = unpacked_mxfp4(blocks, np.full((1, 1, 16), 127, np.uint8))
  low, high = np.arange(256) & 15, np.arange(256) >> 4
  expected = np.array([[of_four_bits(a), of_four_bits(b)] for a, b in zip(low, high, strict=True)])
  assert np.array_equal(unpacked.reshape(256, 2), expected)
  assert sorted(set(np.abs(unpacked.ravel()))) == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_bfloat16_holds_every_number_exactly():
  blocks = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(16, 16), (1, 255, 16, 16))
  scales = np.broadcast_to(np.arange(255, dtype=np.uint8)[:, None], (1, 255, 16))
  unpacked = unpacked_mxfp4(blocks, scales, dtype=jnp.bfloat16)
  assert unpacked.dtype == jnp.bfloat16
  assert np.array_equal(unpacked.astype(np.float32), unpacked_mxfp4(blocks, scales))


def test_views_and_empty_arrays_are_unpacked():
  blocks, scales = drawn(120, 130)
  whole = unpacked_mxfp4(blocks, scales)
  assert np.array_equal(unpacked_mxfp4(blocks[:, ::2, 1:], scales[:, ::2, 1:]), whole[:, ::2, 32:])
  for shape in [(0, 3, 4), (2, 0, 4), (2, 3, 0)]:
    empty = unpacked_mxfp4(np.zeros((*shape, 16), np.uint8), np.zeros(shape, np.uint8))
    assert empty.shape == (*shape[:2], 32 * shape[2])


BLOCKS, SCALES = np.zeros((2, 3, 4, 16), np.uint8), np.zeros((2, 3, 4), np.uint8)


@pytest.mark.usefixtures('unchecked')
@pytest.mark.parametrize(
  ('blocks', 'scales', 'dtype', 'error', 'words'),
  [
    (BLOCKS, SCALES[:, :, :3], 'float32', ValueError, r'\(2, 3, 4, 16\) and \(2, 3, 3\)'),
    (BLOCKS[..., :8], SCALES, 'float32', ValueError, r'\(2, 3, 4, 8\)'),
    (BLOCKS[0], SCALES[0], 'float32', ValueError, r'\(3, 4, 16\)'),
    (BLOCKS.astype(np.int8), SCALES, 'float32', TypeError, 'blocks must be .* uint8'),
    (BLOCKS, SCALES.astype(np.float32), 'float32', TypeError, 'scales must be .* uint8'),
    (BLOCKS.tolist(), SCALES, 'float32', TypeError, 'blocks must be .* uint8'),
    (BLOCKS, SCALES, 'int32', TypeError, "dtype must be one of floats, but got 'int32'"),
    (BLOCKS, SCALES, 'number', TypeError, "dtype must be one of floats, but got 'number'"),
  ],
)
def test_what_is_no_mxfp4_is_refused(blocks, scales, dtype, error, words):
  with pytest.raises(error, match=words):
    unpacked_mxfp4(blocks, scales, dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_transformers_has_the_same_numbers_with_swapped_axes(dtype):
  torch = pytest.importorskip('torch', reason='This compares with transformers and torch.')
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  from transformers.integrations.mxfp4 import convert_moe_packed_tensors

  blocks, scales = drawn(0, 252, (3, 10, 40))
  theirs = convert_moe_packed_tensors(
    torch.from_numpy(blocks), torch.from_numpy(scales), dtype=getattr(torch, dtype)
  )
  ours = np.swapaxes(unpacked_mxfp4(blocks, scales, dtype=jnp.dtype(dtype)), 1, 2)
  assert theirs.shape == ours.shape
  assert np.array_equal(theirs.float().numpy(), ours.astype(np.float32))
