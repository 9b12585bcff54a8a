"""Position interpolation: ids divided by a factor, so that a longer text spans the trained ids.

ids / factor, in float32, for schemes that take fractions: sinusoidal, RoPE, ALiBi. Tables do not.

Reference: Chen et al. 2023, https://arxiv.org/abs/2306.15595, eq. 4 (factor = L'/L). A quotient is
rounded to 24 bits, and XLA may multiply by the rounded reciprocal instead: for ids up to 131,072
and the factor 3 it is off by up to 2.6e-3 tokens, and the fastest angles by as many radians. (A
power of two divides exactly, below 2^24.) `rope(factor=)` divides the frequencies, and is exact.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.scheme import PRNGKey, Scheme

SHIFT_INVARIANT = True


def interpolate(pos: Num[Array, '*shape'], factor: float) -> Float[Array, '*shape']:
  """pos / factor.

  Args:
    pos: ids, in tokens: integers, or float32 (float64); any number of axes.
    factor: length of the text / length in training; positive.

  Returns:
    float32 (float64 for float64 ids).

  Raises:
    TypeError: if ids are of a float type narrower than float32.

  Example:
    >>> interpolate(jnp.arange(4), 2.0)
    Array([0. , 0.5, 1. , 1.5], dtype=float32)
  """
  if jnp.issubdtype(pos.dtype, jnp.integer):
    pos = pos.astype(jnp.float32)
  if pos.dtype not in (jnp.float32, jnp.float64):
    raise TypeError(f'Ids must be integers, float32 or float64, but got {pos.dtype}.')
  return pos / factor


def scheme(factor: float = 2.0) -> Scheme:
  """Ids divided by the factor, at training and after it alike.

  Args:
    factor: length of the text / length in training; positive (below 1 it stretches).

  Raises:
    ValueError: if the factor is not positive.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(factor=4.0))
    ('ids',)
  """
  if not factor > 0:
    raise ValueError(f'The factor of interpolation must be positive, but got {factor}.')

  def ids(pos: Num[Array, '...'], key: PRNGKey | None) -> Float[Array, '...']:
    return interpolate(pos, factor)

  return Scheme(ids=ids)
