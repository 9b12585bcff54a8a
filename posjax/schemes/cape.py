"""CAPE: ids as real numbers, in training shifted, jittered and stretched at random.

ids -> (ids + g + e) exp(l), with g uniform in +-max_global_shift and l in +-log max_global_scale
for each row, and e in +-max_local_shift for each token. Without a random key the ids only become
float32. Chain it before a scheme that takes fractions, as in `cape+sinusoidal`; tables refuse them.

Reference: Likhomanenko, Xu, Synnaeve, Collobert, Rogozhnikov 2021,
https://arxiv.org/abs/2106.03143, section 3: the three augmentations in this order, and the values
5, 0.5 and 1.03 of its machine translation, which are our defaults. A local shift of at most half
the step between two tokens keeps their order. Images have two axes, of cells scaled to [-1, 1], and
the values 0.5, half a cell and 1.4: each axis has a shift of its own, and all axes are stretched
alike. Speech has seconds as ids, and the mean of each row is subtracted first. `centered` subtracts
the middle between the least and the greatest id instead. For evenly spaced ids that is the mean,
and padding with the id 0 does not move it where texts begin at 0. The frequencies that the paper
has for images are not part of this scheme.

float32 holds every whole id up to 2^24, and fractions of 2^-8 up to 65,536: farther ids are
rounded. Causal masks do not depend on these ids, so that no augmentation can show a later token.
"""

import math
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import NonNegative, Range, Size, checked
from posjax.math.checks import float_ids
from posjax.scheme import PRNGKey, Scheme, Traits

SHIFT_INVARIANT = True  # of the attention, which sees the ids that were augmented
PAPERS = ('likhomanenko2021cape',)


def center(pos: Float[Array, '...'], axis: int = -1) -> Float[Array, '...']:
  """Ids minus the middle of each row, which for evenly spaced ids is their mean.

  Args:
    pos: real ids.
    axis: the axis of the tokens.

  Example:
    >>> center(jnp.array([2.0, 3.0, 4.0, 5.0]))
    Array([-1.5, -0.5,  0.5,  1.5], dtype=float32)
  """
  least, most = pos.min(axis, keepdims=True), pos.max(axis, keepdims=True)
  return pos - jnp.broadcast_to(0.5 * least + 0.5 * most, pos.shape)


def augment(
  pos: Float[Array, '...'],
  key: PRNGKey,
  max_global_shift: float = 5.0,
  max_local_shift: float = 0.5,
  max_global_scale: float = 1.03,
  axes: int = 1,
) -> Float[Array, '...']:
  """(ids + g + e) exp(l), with random numbers drawn for each row.

  Args:
    pos: real ids, [T] or [B, T]; for n axes [T, n] or [B, T, n].
    key: a JAX random key.
    max_global_shift: the bound of g, in units of the ids; there is one g for each row and axis.
    max_local_shift: the bound of e, in units of the ids; there is one e for each token and axis.
    max_global_scale: the bound of exp(l) and of its inverse; there is one l for each row.
    axes: n, the number of ids of each token.

  Example:
    >>> augment(jnp.arange(3.0), jax.random.key(0), 0.0, 0.0, 1.0)
    Array([0., 1., 2.], dtype=float32)
  """
  per_token = (axes,) if axes > 1 else ()
  rows = pos.shape[: pos.ndim - 1 - len(per_token)]
  shapes = (*rows, 1, *per_token), pos.shape, (*rows, *(1,) * (1 + len(per_token)))
  bounds = max_global_shift, max_local_shift, math.log(max_global_scale)
  global_shift, local_shift, stretch = (
    jnp.broadcast_to(jax.random.uniform(subkey, shape, pos.dtype, -bound, bound), pos.shape)
    for subkey, shape, bound in zip(jax.random.split(key, 3), shapes, bounds, strict=True)
  )
  return (pos + global_shift + local_shift) * jnp.exp(stretch)


@checked
def scheme(
  max_global_shift: NonNegative = 5.0,
  max_local_shift: NonNegative = 0.5,
  max_global_scale: Annotated[float, Range(1)] = 1.03,
  centered: bool = False,
  axes: Size = 1,
) -> Scheme:
  """Real ids, which are augmented where there is a random key.

  A row is a row of the batch: packed documents in one row share its shift, stretch and center. A
  text that is computed in pieces, as in decoding with a cache, must have no key, and cannot be
  centered.

  Args:
    max_global_shift: the bound of the shift of a row, in units of the ids; 0 shifts no row.
    max_local_shift: the bound of the shift of a token, in units of the ids; 0 shifts no token, and
      up to half a step the order of the tokens stays.
    max_global_scale: each row is stretched by a factor between 1/max_global_scale and
      max_global_scale; 1 stretches nothing.
    centered: whether the middle of each row becomes 0, in training and in evaluation alike.
    axes: the number of ids of each token.

  Raises:
    ValueError: if an argument is out of range; where used, TypeError for ids of a float type
      narrower than float32.

  Example:
    >>> scheme().ids(jnp.arange(4), None)
    Array([0., 1., 2., 3.], dtype=float32)
  """

  def ids(pos: Num[Array, '...'], key: PRNGKey | None) -> Float[Array, '...']:
    pos = float_ids(pos)
    pos = center(pos, -1 - (axes > 1)) if centered else pos
    if key is None:
      return pos
    return augment(pos, key, max_global_shift, max_local_shift, max_global_scale, axes)

  return Scheme(ids=ids, traits=Traits(axes))
