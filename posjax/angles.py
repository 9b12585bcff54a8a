"""Angles that are exact at every integer position.

`float32(position) * frequency` is off by 3e-3 radians at position 131,072 and by everything at
1e7. Here a frequency is a 64-bit fixed-point fraction of a turn in two uint32 words; wrapping
integer multiplication by the position *is* the reduction modulo one turn, and only the 32-bit
phase that remains becomes a float32, in [-pi, pi).
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num, UInt32

# 2 pi to 64 digits: float64's 16 would be wrong at position 1e9.
_TURN = Fraction(62831853071795864769252867665590057683943387987502116419498891846, 10**64)


def frequencies(
  width: int, base: float = 10000.0, *, endpoint: bool = False
) -> Float[np.ndarray, ' half']:
  """Geometric frequencies: base^(-2k/width), k = 0 .. width/2 - 1, in radians per token.

  Args:
    width: the number of sines and cosines together; an odd one leaves one over.
    base: 2 pi base is the wavelength that the slowest frequency approaches; positive.
      Synonyms: theta, max_wavelength, max_timescale, base_frequency.
    endpoint: whether the last frequency is 1/base itself: base^(-k/(width/2 - 1)), as in
      tensor2tensor, fairseq and TENER.

  Returns:
    float64 [width // 2].

  Raises:
    ValueError: if the base is not positive.

  Example:
    >>> frequencies(4, base=100.0)
    array([1. , 0.1])
    >>> frequencies(6, base=100.0, endpoint=True)
    array([1.  , 0.1 , 0.01])
  """
  if not base > 0:
    raise ValueError(f'The base must be positive, but got {base}.')
  half = width // 2
  exponents = np.linspace(0, 1, half) if endpoint else 2 * np.arange(half) / width
  return np.float64(base) ** -exponents


def angles(
  pos: Num[Array, '*shape'], frequencies: Float[np.ndarray, ' half']
) -> Float[Array, '*shape half']:
  """pos * frequencies, modulo 2 pi: to 3e-7 at every int32 position.

  Args:
    pos: ids, in tokens. Integers are exact; float32 ids (below 2^31) are taken exactly as given
      and have gradients; narrower floats are refused, as they cannot count past 256.
    frequencies: radians per token, a float64 NumPy array: constants, not parameters.

  Returns:
    Radians, float32 (float64 for float64 ids): in [-pi, pi) for integers.

  Raises:
    TypeError: if ids are neither integers, nor float32 or float64.

  Example:
    >>> import jax.numpy as jnp
    >>> angle = angles(jnp.array([2**31 - 5]), np.array([1.0]))[0, 0]
    >>> bool(abs(jnp.sin(angle) + 0.0474762453) < 1e-6)  # sin(2147483643)
    True
  """
  if jnp.issubdtype(pos.dtype, jnp.integer):
    return _whole(pos, frequencies, jnp.dtype(jnp.float32))
  if pos.dtype not in (jnp.float32, jnp.float64):
    raise TypeError(f'Ids must be integers, float32 or float64, but got {pos.dtype}.')
  whole = jnp.floor(pos)
  part = (pos - whole)[..., None] * _constant(frequencies, pos)
  exact = _whole(jax.lax.stop_gradient(whole).astype(jnp.int32), frequencies, pos.dtype)
  return exact + part


def learned_angles(
  pos: Num[Array, '*shape'], frequency: Float[Array, '*frequencies']
) -> Float[Array, '*phases']:
  """pos * frequency, modulo 2 pi, for frequencies that are parameters: as exact as `angles`.

  Exact for the frequency as the float32 that it is, to 3e-7 at every int32 position. (A float32
  near 1 may itself be 6e-8 from the number meant: 8e-3 radians at position 131,072.)

  Args:
    pos: ids, in tokens: integers, or float32.
    frequency: radians per token; its last axis is the dimension, the others broadcast to `pos`.

  Returns:
    Radians, float32 (float64 for float64 frequencies), with gradients to both. In [-pi, pi) for
    integers; NaN where the frequency is not finite.

  Raises:
    TypeError: if ids are neither integers, nor float32 or float64.

  Example:
    >>> angle = learned_angles(jnp.array([2**31 - 5]), jnp.array([[1.0]]))[0, 0]
    >>> bool(abs(jnp.sin(angle) + 0.0474762453) < 1e-6)  # sin(2147483643)
    True
  """
  wide = jnp.result_type(frequency, jnp.float32)
  frequency = frequency.astype(wide)
  if jnp.issubdtype(pos.dtype, jnp.integer):
    whole, part = pos[..., None], 0.0
  elif pos.dtype in (jnp.float32, jnp.float64):
    whole = jax.lax.stop_gradient(jnp.floor(pos)).astype(jnp.int32)[..., None]
    part = pos[..., None].astype(wide) - whole
  else:
    raise TypeError(f'Ids must be integers, float32 or float64, but got {pos.dtype}.')
  product = whole.astype(wide) * frequency
  if wide == jnp.float32:  # the exact number, with the product's gradient
    product = _whole_learned(whole, frequency) + (product - jax.lax.stop_gradient(product))
  return product + part * frequency


def waves(angle: Float[Array, '*shape']) -> tuple[Float[Array, '*shape'], Float[Array, '*shape']]:
  """Cosine and sine, for what reads them more than once, as every head does.

  Args:
    angle: radians.

  Returns:
    Both, in the shape and dtype of `angle`.

  Example:
    >>> import jax.numpy as jnp
    >>> waves(jnp.array([0.0]))
    (Array([1.], dtype=float32), Array([0.], dtype=float32))
  """
  return jax.lax.platform_dependent(angle, cpu=_computed_once, default=_waves)


def _waves(angle):
  return jnp.cos(angle), jnp.sin(angle)


def _computed_once(angle):
  """`_waves` in a branch, out of which XLA's CPU backend does not move them into each reader."""
  if not angle.size:
    return _waves(angle)
  first = angle[(0,) * angle.ndim]
  # Both branches are the same. XLA cannot drop the choice: a NaN would not equal itself.
  return jax.lax.cond(first == first, _waves, _waves, angle)


def _constant(frequencies: Float[np.ndarray, ' half'], pos: Float[Array, '*shape']) -> Array:
  """The frequencies as [1, ..., half], in the dtype of `pos`."""
  return jnp.asarray(frequencies, pos.dtype).reshape((1,) * pos.ndim + (-1,))


def _whole(pos, frequencies, dtype):
  """Angles of integer positions: the top 32 bits of (position * 64-bit frequency) mod 2^64."""
  high, low = (w.reshape((1,) * pos.ndim + (-1,)) for w in _words(frequencies))
  below = pos.astype(jnp.uint32)[..., None]
  above = _above(pos)[..., None]
  top = below * high + _product_high(below, low) + above * low
  return top.astype(jnp.int32).astype(dtype) * np.asarray(2 * np.pi / 2**32, dtype)


def _above(pos):
  """The bits of each position beyond 32, as one more word: of narrower ones, the sign."""
  if pos.dtype.itemsize == 8:
    return (pos >> 32).astype(jnp.uint32)
  return jnp.where(pos < 0, -1, 0).astype(jnp.uint32)


def _words(
  frequencies: Float[np.ndarray, ' half'],
) -> tuple[UInt32[Array, ' half'], UInt32[Array, ' half']]:
  """High and low words of each frequency as a fraction of a turn."""
  turns = [int(Fraction(float(f)) / _TURN * 2**64) % 2**64 for f in frequencies]
  high = np.array([t >> 32 for t in turns], np.uint32)
  low = np.array([t & 0xFFFFFFFF for t in turns], np.uint32)
  return jnp.asarray(high), jnp.asarray(low)


def _product_high(a: UInt32[Array, '...'], b: UInt32[Array, '...']) -> UInt32[Array, '...']:
  """The high 32 bits of a 64-bit product, from 16-bit halves."""
  a0, a1, b0, b1 = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
  t = a1 * b0 + (a0 * b0 >> 16)
  u = a0 * b1 + (t & 0xFFFF)
  return a1 * b1 + (t >> 16) + (u >> 16)


# 2^(e - 150) turns per radian for each exponent e of a float32: three words of its fraction.
_UNITS = [int(Fraction(2) ** (e - 150) / _TURN * 2**96) % 2**96 for e in range(256)]
_UNITS = [np.array([u >> s & 0xFFFFFFFF for u in _UNITS], np.uint32) for s in (64, 32, 0)]


def _whole_learned(pos: Int[Array, '*shape'], frequency: Float[Array, '*frequencies']) -> Array:
  """Angles of integer positions: a frequency is its mantissa times a power of two."""
  bits = jax.lax.bitcast_convert_type(frequency, jnp.uint32)
  mantissa = bits & 0x7FFFFF | 0x800000
  high, middle, low = (jnp.asarray(word)[bits >> 23 & 0xFF] for word in _UNITS)
  # The turns per token, modulo 1, in two words; then as in `_whole`.
  carried = _product_high(mantissa, low)
  second = mantissa * middle + carried
  first = mantissa * high + _product_high(mantissa, middle) + (second < carried)
  below, above = pos.astype(jnp.uint32), _above(pos)
  top = below * first + _product_high(below, second) + above * second
  top = jnp.where(bits >> 31, -top, top)
  return top.astype(jnp.int32).astype(jnp.float32) * np.float32(2 * np.pi / 2**32)
