"""Position times frequency, as an angle that is exact at every integer position.

`float32(position) * frequency` is off by 3e-3 radians at position 131,072, and meaningless at 1e7.
Here a frequency is kept as a fraction of a turn, a 64-bit fixed-point number in two uint32 words.
Integer multiplication by the position wraps around, and this wrapping *is* the reduction modulo one
turn. Only the 32-bit phase that remains is converted to float32, in [-pi, pi).
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num, UInt32

from posjax.math.checks import check_ids
from posjax.math.heads import at_least_float32

# 2 pi to 64 digits: float64's 16 would be wrong at position 1e9.
_TURN = Fraction(62831853071795864769252867665590057683943387987502116419498891846, 10**64)


def frequencies(
  width: int, base: float = 10000.0, *, endpoint: bool = False
) -> Float[np.ndarray, ' half']:
  """Geometric frequencies: base^(-2k/width), k = 0 .. width/2 - 1, in radians per token.

  Args:
    width: the number of sines and cosines together. Half of it, rounded down, is the number of
      frequencies.
    base: a positive number; 2 pi base is the wavelength that the slowest frequency approaches.
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
  """pos * frequencies, modulo 2 pi, with an error below 3e-7 at every int32 position.

  Args:
    pos: ids, in tokens. Integers of any size are exact. float32 ids, below 2^31, are taken to be
      exactly the numbers that they hold, and have gradients. Narrower floats are refused, because
      they cannot count past 256.
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
  check_ids(pos)
  whole = jnp.floor(pos)
  part = (pos - whole)[..., None] * _constant(frequencies, pos)
  exact = _whole(jax.lax.stop_gradient(whole).astype(jnp.int32), frequencies, pos.dtype)
  return exact + part


def learned_angles(
  pos: Num[Array, '*shape'], frequency: Float[Array, '*frequencies']
) -> Float[Array, '*phases']:
  """pos * frequency, modulo 2 pi, for frequencies that are parameters; as exact as `angles`.

  The error is below 3e-7 at every int32 position, for the number that the float32 frequency holds.
  (This number may itself be 6e-8 from the one that was meant, if it is near 1, and that is 8e-3
  radians at position 131,072.)

  Args:
    pos: ids, in tokens: integers, or float32.
    frequency: radians per token. The last axis is the dimension; the others broadcast to `pos`.

  Returns:
    Radians, float32 (float64 for float64 frequencies), with gradients for ids and frequencies. In
    [-pi, pi) for integers; NaN where the frequency is not finite.

  Raises:
    TypeError: if ids are neither integers, nor float32 or float64.

  Example:
    >>> angle = learned_angles(jnp.array([2**31 - 5]), jnp.array([[1.0]]))[0, 0]
    >>> bool(abs(jnp.sin(angle) + 0.0474762453) < 1e-6)  # sin(2147483643)
    True
  """
  wide = at_least_float32(frequency)
  frequency = frequency.astype(wide)
  if jnp.issubdtype(pos.dtype, jnp.integer):
    whole, part = pos[..., None], 0.0
  else:
    check_ids(pos)
    whole = jax.lax.stop_gradient(jnp.floor(pos)).astype(jnp.int32)[..., None]
    part = pos[..., None].astype(wide) - whole
  product = whole.astype(wide) * frequency
  if wide == jnp.float32:  # the value of the exact angle, with the gradient of the product
    product = _whole_learned(whole, frequency) + (product - jax.lax.stop_gradient(product))
  return product + part * frequency


def assigned_angles(
  pos: Num[Array, '*shape n'],
  frequencies: Float[np.ndarray, ' half'],
  axis: Int[np.ndarray, ' half'],
) -> Float[Array, '*shape half']:
  """pos[..., axis] * frequencies, modulo 2 pi: each frequency multiplies the id of its axis.

  Args:
    pos: n ids for each token, such as its row and its column.
    frequencies: radians per token.
    axis: which of the n ids each frequency multiplies, 0 .. n - 1.

  Returns:
    Radians, as `angles`.

  Example:
    >>> assigned_angles(jnp.array([[1, 3]]), np.array([0.5, 0.5, 0.1]), np.array([0, 1, 0]))
    Array([[0.5, 1.5, 0.1]], dtype=float32)
  """
  # The frequencies of each axis are computed together, then put back in their order.
  order = np.argsort(axis, kind='stable')
  by_axis = [angles(pos[..., n], frequencies[axis == n]) for n in range(pos.shape[-1])]
  return jnp.concatenate(by_axis, axis=-1)[..., np.argsort(order)]


def cos_sin(
  angle: Float[Array, '*shape'],
) -> tuple[Float[Array, '*shape'], Float[Array, '*shape']]:
  """The cosine and the sine of each angle, computed once however often they are read.

  All heads read the same cosines and sines. XLA's CPU backend would compute them anew in each of
  these loops, because it merges an elementwise function into whatever reads it.

  Args:
    angle: radians.

  Returns:
    Both, in the shape and dtype of `angle`.

  Example:
    >>> import jax.numpy as jnp
    >>> cos_sin(jnp.array([0.0]))
    (Array([1.], dtype=float32), Array([0.], dtype=float32))
  """
  return jax.lax.platform_dependent(angle, cpu=_computed_once, default=_cos_sin)


def _cos_sin(angle):
  return jnp.cos(angle), jnp.sin(angle)


def _computed_once(angle):
  """`_cos_sin` inside a branch, from which XLA does not move it into the loops that read it."""
  if not angle.size:
    return _cos_sin(angle)
  first = angle[(0,) * angle.ndim]
  # Both branches are the same. XLA cannot drop the choice, because a NaN does not equal itself.
  return jax.lax.cond(first == first, _cos_sin, _cos_sin, angle)


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
  """The bits of each position beyond the lowest 32; for narrower integers, copies of the sign."""
  if pos.dtype.itemsize == 8:
    return (pos >> 32).astype(jnp.uint32)
  return jnp.where(pos < 0, -1, 0).astype(jnp.uint32)


def _words(
  frequencies: Float[np.ndarray, ' half'],
) -> tuple[UInt32[Array, ' half'], UInt32[Array, ' half']]:
  """Each frequency as a 64-bit fraction of a turn, in a high and a low word."""
  turns = [int(Fraction(float(f)) / _TURN * 2**64) % 2**64 for f in frequencies]
  high = np.array([t >> 32 for t in turns], np.uint32)
  low = np.array([t & 0xFFFFFFFF for t in turns], np.uint32)
  return jnp.asarray(high), jnp.asarray(low)


def _product_high(a: UInt32[Array, '...'], b: UInt32[Array, '...']) -> UInt32[Array, '...']:
  """The high 32 bits of the 64-bit product of two words, computed from 16-bit halves."""
  a0, a1, b0, b1 = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
  t = a1 * b0 + (a0 * b0 >> 16)
  u = a0 * b1 + (t & 0xFFFF)
  return a1 * b1 + (t >> 16) + (u >> 16)


# A float32 with exponent bits e is its 24-bit mantissa times 2^(e - 150). For each e, this power of
# two as a fraction of a turn, in three words of 32 bits.
_UNITS = [int(Fraction(2) ** (e - 150) / _TURN * 2**96) % 2**96 for e in range(256)]
_UNITS = [np.array([u >> s & 0xFFFFFFFF for u in _UNITS], np.uint32) for s in (64, 32, 0)]


def _whole_learned(pos: Int[Array, '*shape'], frequency: Float[Array, '*frequencies']) -> Array:
  """Angles of integer positions, for frequencies that are known only when the program runs."""
  bits = jax.lax.bitcast_convert_type(frequency, jnp.uint32)
  mantissa = bits & 0x7FFFFF | 0x800000
  high, middle, low = (jnp.asarray(word)[bits >> 23 & 0xFF] for word in _UNITS)
  # Mantissa times power of two: the turns per token, modulo 1, in two words; then as in `_whole`.
  carried = _product_high(mantissa, low)
  second = mantissa * middle + carried
  first = mantissa * high + _product_high(mantissa, middle) + (second < carried).astype(jnp.uint32)
  below, above = pos.astype(jnp.uint32), _above(pos)
  top = below * first + _product_high(below, second) + above * second
  top = jnp.where(bits >> 31, -top, top)
  return top.astype(jnp.int32).astype(jnp.float32) * np.float32(2 * np.pi / 2**32)
