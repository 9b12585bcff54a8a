"""Continuous Swin: a network of log-spaced offsets gives the bias, also between other windows.

bias = 16 sigmoid(f(y, x)), where f is an MLP 2 -> hidden -> H with ReLU and no offset in its last
layer, and on each axis y = sign(d) log2(1 + 8 |d| / (size - 1)) / 3, in -1.06 .. 1.06 inside the
window.

Reference: Liu et al. 2022, Swin Transformer V2, https://arxiv.org/abs/2111.09883, section 3.3. The
text has sign(d) log(1 + |d|) and a bias that is f itself. The scaling of a window to 8, log2 / 3,
16 sigmoid, 512 hidden units, and initial kernels of standard deviation 0.02 with offsets of zero
are those of the authors' code. height and width are the window of training. Keep them when a larger
window is used, as that code does with `pretrained_window_size`: the inputs of the network are then
a little beyond those of training. Swin V2 also replaces q . k by a scaled cosine, which is the
scheme `cosine`.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import AtLeastTwo, Size, checked
from posjax.math.checks import float_ids
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
EXAMPLE = 'swin_continuous(height=6, width=8, hidden=2)'
PAPERS = ('liu2022swin',)


def coordinates(
  distance: Num[Array, '*shape 2'], height: int, width: int
) -> Float[Array, '*shape 2']:
  """sign(d) log2(1 + 8 |d| / (size - 1)) / log2(8) on each axis.

  Args:
    distance: q_pos - k_pos as (dy, dx), in tokens; any numbers, fractions too.
    height: the height of the window of training, at least 2.
    width: the width of the window of training, at least 2.

  Example:
    >>> coordinates(jnp.array([[0, 7], [-1, 0]]), height=8, width=8).round(3)
    Array([[ 0.   ,  1.057],
           [-0.367,  0.   ]], dtype=float32)
  """
  d = float_ids(distance)
  scale = jnp.array([8 / (height - 1), 8 / (width - 1)], d.dtype)
  scaled = d * scale.reshape((1,) * (d.ndim - 1) + (2,))
  return jnp.sign(scaled) * jnp.log1p(abs(scaled)) / math.log(8)


def bias(
  kernel: Float[Array, '2 hidden'],
  offset: Float[Array, ' hidden'],
  out_kernel: Float[Array, 'hidden H'],
  coordinates: Float[Array, '*shape 2'],
) -> Float[Array, 'H *shape']:
  """16 sigmoid(relu(coordinates kernel + offset) out_kernel), heads first, between 0 and 16.

  Example:
    >>> bias(jnp.zeros((2, 1)), jnp.zeros(1), jnp.zeros((1, 1)), jnp.ones((3, 2)))
    Array([[8., 8., 8.]], dtype=float32)
  """
  exactly = {'precision': jax.lax.Precision.HIGHEST}
  hidden = jnp.einsum('...a,ah->...h', coordinates, kernel, **exactly)
  hidden = jax.nn.relu(hidden + offset.reshape((1,) * (hidden.ndim - 1) + (-1,)))
  return 16 * jax.nn.sigmoid(jnp.moveaxis(hidden @ out_kernel, -1, 0))


@checked
def scheme(height: AtLeastTwo, width: AtLeastTwo, hidden: Size = 512) -> Scheme:
  """Biases of a network of log-spaced offsets.

  Args:
    height: the height of the window of training in tokens, which the first id of a token counts.
    width: the width of the window of training in tokens, which the second id of a token counts.
    hidden: the number of hidden units of the network.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(height=8, width=8))
    ('bias',)
  """

  def init(key, dims):
    shapes = ((2, hidden), (hidden, dims.num_heads))
    kernels = map(jax.random.normal, jax.random.split(key), shapes)
    kernel, out_kernel = (0.02 * k for k in kernels)
    return {'kernel': kernel, 'offset': jnp.zeros(hidden), 'out_kernel': out_kernel}

  def biases(params, distance):
    inputs = coordinates(distance, height, width)
    return bias(params['kernel'], params['offset'], params['out_kernel'], inputs)

  return Scheme(init=init, bias=biases, traits=Traits(axes=2))
