"""Sines and cosines of geometric frequencies, as a code of a position or of a distance.

A code of the distance a - b is a product of two sides, one for a and one for b, because sin(a - b)
and cos(a - b) are sums of products. `query_side` and `key_side` are these two: queries and keys
that are widened by them have the code of their distance in an ordinary dot product.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Num

from posjax.math.angles import angles, frequencies
from posjax.math.rotation import rotate


def encoding(
  pos: Num[Array, '*shape'],
  width: int,
  base: float = 10000.0,
  *,
  interleaved: bool = True,
  cos_first: bool = False,
  endpoint: bool = False,
) -> Float[Array, '*shape width']:
  """The sinusoidal code of each position.

  Args:
    pos: ids, in tokens; any integer, or float32.
    width: the number of dimensions, any positive number; an odd one ends in a zero.
    base: the slowest wavelength approaches 2 pi base tokens.
    interleaved: whether the sine and the cosine of one frequency stand side by side, instead of
      all sines in one half and all cosines in the other.
    cos_first: whether the cosine comes before the sine.
    endpoint: whether the frequencies are base^(-k/(d/2 - 1)), instead of base^(-2k/d).

  Returns:
    float32, in [-1, 1].

  Example:
    >>> encoding(jnp.array([0]), 4)
    Array([[0., 1., 0., 1.]], dtype=float32)
  """
  angle = angles(pos, frequencies(width, base, endpoint=endpoint))
  pair = [jnp.sin(angle), jnp.cos(angle)]
  pair = pair[::-1] if cos_first else pair
  if interleaved:
    code = jnp.stack(pair, axis=-1).reshape(*pos.shape, -1)
  else:
    code = jnp.concatenate(pair, axis=-1)
  return jnp.pad(code, [(0, 0)] * pos.ndim + [(0, width % 2)])


def query_side(
  coefficients: Inexact[Array, '*B T H M'], angle: Float[Array, '*B T half']
) -> Inexact[Array, '*B T H M']:
  """The side of the queries of coefficients . R(distance), for R = [sin, cos].

  query_side(c, a) . key_side(b) = c . R(a - b), for each frequency and its angles a and b.

  Args:
    coefficients: what the sines, and then the cosines, of the distance are multiplied by.
    angle: the angle of each query's position for each frequency, in radians.

  Example:
    >>> a, b = jnp.array([[0.5]]), jnp.array([[0.2]])
    >>> side = query_side(jnp.array([[[1.0, 0.0]]]), a)
    >>> bool(abs(side @ key_side(b)[0] - jnp.sin(0.3)) < 1e-6)
    True
  """
  of_sin, of_cos = jnp.split(coefficients, 2, axis=-1)
  return rotate(jnp.concatenate([of_cos, -of_sin], axis=-1), angle)


def key_side(angle: Float[Array, '*B T half']) -> Float[Array, '*B T M']:
  """The side of the keys: [cos, sin] of the angle of each key's position.

  Example:
    >>> key_side(jnp.array([[0.0]]))
    Array([[1., 0.]], dtype=float32)
  """
  return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)


def with_key_side(
  x: Inexact[Array, '*B T H D'], angle: Float[Array, '*B T half']
) -> Inexact[Array, '*B T H Wider']:
  """[x, key_side(angle)]: heads, such as keys, widened by their positions, alike for all heads.

  Example:
    >>> with_key_side(jnp.array([[[5.0]]]), jnp.array([[0.0]]))
    Array([[[5., 1., 0.]]], dtype=float32)
  """
  side = key_side(angle)[..., None, :].astype(x.dtype)
  side = jnp.broadcast_to(side, (*x.shape[:-1], side.shape[-1]))
  return jnp.concatenate([x, side], axis=-1)
