"""Swin: a learned bias for each offset in a two-dimensional window.

bias = table[dy + height - 1, dx + width - 1], where dy and dx are the distances q - k on the two
axes. It is NaN for offsets that do not occur in the window: tokens of different windows must not
attend to each other, which `segments` ensure.

Reference: Liu et al. 2021, https://arxiv.org/abs/2103.14030, section 3.2, eq. 4. The table, the
order of its rows (q - k, y before x) and the initial standard deviation 0.02 are as in the authors'
code, whose table is ours if its first axis is split in (2 height - 1, 2 width - 1).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import Size, checked
from posjax.math.tables import lookup
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
EXAMPLE = 'swin(height=6, width=8)'
PAPERS = ('liu2021swin',)


def bias(
  table: Float[Array, 'rows columns H'], distance: Num[Array, '*shape 2']
) -> Float[Array, 'H *shape']:
  """table[dy + height - 1, dx + width - 1], heads first, and NaN outside the window.

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
  row, column = (distance[..., i] + size // 2 for i, size in enumerate(table.shape[:2]))
  return jnp.moveaxis(lookup(table, row, column, reader='A table of offsets needs'), -1, 0)


@checked
def scheme(height: Size, width: Size) -> Scheme:
  """A table of biases for windows of height x width tokens.

  Args:
    height: the height of the window in tokens, which the first id of a token counts.
    width: the width of the window in tokens, which the second id of a token counts.

  Raises:
    ValueError: if the window is empty; where used, TypeError for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(height=7, width=7))
    ('bias',)
  """

  def init(key, dims):
    shape = (2 * height - 1, 2 * width - 1, dims.num_heads)
    return {'table': 0.02 * jax.random.normal(key, shape, jnp.float32)}

  def biases(params, distance):
    return bias(params['table'], distance)

  return Scheme(init=init, bias=biases, traits=Traits(axes=2))
