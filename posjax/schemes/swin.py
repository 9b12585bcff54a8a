"""Swin: a learned bias for each offset in a two-dimensional window.

bias = table[dy + height - 1, dx + width - 1], dy and dx the distances q - k on the two axes, and
NaN for offsets that the window does not have: tokens of different windows must not meet, which
segments ensure.

Reference: Liu et al. 2021, https://arxiv.org/abs/2103.14030, section 3.2, eq. 4; table, order of
its rows (q - k, y before x) and initial deviation 0.02 as in the authors' code, whose table is ours
with its first axis split in (2 height - 1, 2 width - 1).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.scheme import Scheme

SHIFT_INVARIANT = True
EXAMPLE = 'swin(height=6, width=8)'


def bias(
  table: Float[Array, 'rows columns H'], distance: Num[Array, '*shape 2']
) -> Float[Array, 'H *shape']:
  """table[dy + height - 1, dx + width - 1], heads first; NaN outside of the window.

  Args:
    table: [2 height - 1, 2 width - 1, H].
    distance: q_pos - k_pos as (dy, dx), integers.

  Raises:
    TypeError: if distances are not integers.

  Example:
    >>> table = jnp.arange(9.0).reshape(3, 3, 1)  # a window of 2 x 2
    >>> bias(table, jnp.array([[0, 0], [-1, 1], [0, 2]]))
    Array([[ 4.,  2., nan]], dtype=float32)
  """
  if not jnp.issubdtype(distance.dtype, jnp.integer):
    raise TypeError(f'A table of offsets needs integer ids, but got {distance.dtype}.')
  rows, columns = (distance[..., i] + size // 2 for i, size in enumerate(table.shape[:2]))
  found = table.at[rows, columns].get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)
  return jnp.moveaxis(found, -1, 0)


def scheme(height: int, width: int) -> Scheme:
  """A table of biases for windows of height x width tokens.

  Args:
    height: of the window, in tokens: the first id.
    width: of the window, in tokens: the second id.

  Raises:
    ValueError: if the window is empty; where used, TypeError for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(height=7, width=7))
    ('bias',)
  """
  if height < 1 or width < 1:
    raise ValueError(f"Swin's window must have a token, but got {height} x {width}.")

  def init(key, dims):
    shape = (2 * height - 1, 2 * width - 1, dims.num_heads)
    return {'table': 0.02 * jax.random.normal(key, shape, jnp.float32)}

  def biases(params, distance):
    return bias(params['table'], distance)

  return Scheme(init=init, bias=biases, axes=2)
