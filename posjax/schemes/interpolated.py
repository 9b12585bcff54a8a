"""Position interpolation: ids divided by a factor, so that a longer text spans the trained ids.

ids / factor, in float32, for schemes that take fractions: sinusoidal, RoPE, ALiBi. Tables refuse
them.

Reference: Chen et al. 2023, https://arxiv.org/abs/2306.15595, eq. 4 (factor = L'/L). A quotient is
rounded to 24 bits, and XLA may multiply by the rounded reciprocal instead. For ids up to 131,072
and the factor 3 it is off by up to 2.6e-3 tokens, and the fastest angles by as many radians. (The
quotient by a power of two is exact for ids below 2^24.) `rope(factor=)` divides the frequencies
instead, and is exact.
"""

from jaxtyping import Array, Float, Num

from posjax.arguments import Positive, checked
from posjax.math.checks import float_ids
from posjax.scheme import PRNGKey, Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('chen2023extending',)


def interpolate(pos: Num[Array, '*shape'], factor: float) -> Float[Array, '*shape']:
  """pos / factor.

  Args:
    pos: ids, in tokens: integers, or float32 (float64); any number of axes.
    factor: the length of the text / the length in training; positive.

  Returns:
    float32 (float64 for float64 ids).

  Raises:
    TypeError: if ids are of a float type narrower than float32.

  Example:
    >>> import jax.numpy as jnp
    >>> interpolate(jnp.arange(4), 2.0)
    Array([0. , 0.5, 1. , 1.5], dtype=float32)
  """
  return float_ids(pos) / factor


@checked
def scheme(factor: Positive = 2.0) -> Scheme:
  """Ids divided by the factor, in training and after it alike.

  Args:
    factor: the length of the text / the length in training; positive, and below 1 it stretches the
      ids.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(factor=4.0))
    ('ids',)
  """

  def ids(pos: Num[Array, '...'], key: PRNGKey | None) -> Float[Array, '...']:
    return interpolate(pos, factor)

  return Scheme(ids=ids, traits=Traits(axes=0))
