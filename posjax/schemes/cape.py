"""CAPE: ids as real numbers, in training shifted, jittered and stretched at random.

ids -> (ids + g + e) exp(l), with g uniform in +-max_global_shift and l in +-log max_global_scale
for each row, and e in +-max_local_shift for each token. Without a key they are the ids, as float32.
To be chained before a scheme that takes fractions: `cape+sinusoidal`; tables refuse them.

Reference: Likhomanenko, Xu, Collobert, Synnaeve, Rogozhnikov 2021,
https://arxiv.org/abs/2106.03143, section 3: the three augmentations in this order, and the values
5, 0.5 and 1.03 of its machine translation, our defaults. A local shift of at most half the step
between two tokens keeps their order. Images have two axes, of cells scaled to [-1, 1], and values
0.5, half a cell and 1.4: each axis is shifted for itself, and all are stretched alike. Speech has
seconds as ids, with the mean of a row taken off before: `centered`, which takes off the middle of
the least and the greatest id instead, the same for evenly spaced ids, and not moved by padding with
the id 0 where texts begin there. The frequencies that the paper has for images are not part of it.

float32 holds every whole id up to 2^24, and fractions of 2^-8 up to 65,536: farther ids are
rounded. Order and masks do not come from ids, so that no augmentation can leak or tie.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.scheme import PRNGKey, Scheme

SHIFT_INVARIANT = True  # of the attention, which sees the ids that were augmented


def real(pos: Num[Array, '*shape']) -> Float[Array, '*shape']:
  """Ids as float32; float64 stays.

  Raises:
    TypeError: if ids are of a float type narrower than float32.

  Example:
    >>> real(jnp.array([7]))
    Array([7.], dtype=float32)
  """
  if jnp.issubdtype(pos.dtype, jnp.integer):
    return pos.astype(jnp.float32)
  if pos.dtype not in (jnp.float32, jnp.float64):
    raise TypeError(f'Ids must be integers, float32 or float64, but got {pos.dtype}.')
  return pos


def center(pos: Float[Array, '...'], axis: int = -1) -> Float[Array, '...']:
  """Ids minus the middle of each row: of evenly spaced ones, their mean.

  Args:
    pos: real ids.
    axis: that of the tokens.

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
  """(ids + g + e) exp(l), drawn for each row.

  Args:
    pos: real ids, [T] or [B, T]; for n axes [T, n] or [B, T, n].
    key: a JAX random key.
    max_global_shift: the bound of g, in units of the ids: one per row and axis.
    max_local_shift: the bound of e, in units of the ids: one per token and axis.
    max_global_scale: the bound of exp(l) and of its inverse: one per row, for all axes.
    axes: n, ids per token.

  Example:
    >>> augment(jnp.arange(3.0), jax.random.key(0), 0.0, 0.0, 1.0)
    Array([0., 1., 2.], dtype=float32)
  """
  per_token = (axes,) if axes > 1 else ()
  rows = pos.shape[: pos.ndim - 1 - len(per_token)]
  shapes = (*rows, 1, *per_token), pos.shape, (*rows, *(1,) * (1 + len(per_token)))
  bounds = max_global_shift, max_local_shift, math.log(max_global_scale)
  whole, local, stretch = (
    jnp.broadcast_to(jax.random.uniform(one, shape, pos.dtype, -bound, bound), pos.shape)
    for one, shape, bound in zip(jax.random.split(key, 3), shapes, bounds, strict=True)
  )
  return (pos + whole + local) * jnp.exp(stretch)


def scheme(
  max_global_shift: float = 5.0,
  max_local_shift: float = 0.5,
  max_global_scale: float = 1.03,
  centered: bool = False,
  axes: int = 1,
) -> Scheme:
  """Real ids, augmented where there is a key.

  A row is a row of the batch: packed documents share its shift, stretch and center. A text that
  comes in pieces, such as decoding with a cache, must come without a key, and cannot be centered.

  Args:
    max_global_shift: bound of the shift of a row, in units of the ids; 0 is none.
    max_local_shift: bound of the shift of a token, in units of the ids; 0 is none, and up to half
      a step the order stays.
    max_global_scale: bound of the factor of a row, and its inverse the least one; 1 is none.
    centered: whether the middle of a row becomes 0, with a key and without.
    axes: ids per token.

  Raises:
    ValueError: if an argument is out of range; where used, TypeError for ids that are narrow
      floats.

  Example:
    >>> scheme().ids(jnp.arange(4), None)
    Array([0., 1., 2., 3.], dtype=float32)
  """
  for name, bound in (('global', max_global_shift), ('local', max_local_shift)):
    if not 0 <= bound < math.inf:
      raise ValueError(f'The max_{name}_shift must be finite and not negative, but got {bound}.')
  if not 1 <= max_global_scale < math.inf:
    raise ValueError(
      f'The max_global_scale must be finite, at least 1, but got {max_global_scale}.'
    )
  if axes < 1:
    raise ValueError(f'Real positions need at least one axis, but got {axes}.')

  def ids(pos: Num[Array, '...'], key: PRNGKey | None) -> Float[Array, '...']:
    pos = real(pos)
    pos = center(pos, -1 - (axes > 1)) if centered else pos
    if key is None:
      return pos
    return augment(pos, key, max_global_shift, max_local_shift, max_global_scale, axes)

  return Scheme(ids=ids, axes=axes)
