"""Sinusoidal positions: sines and cosines of geometric frequencies, added to the embeddings.

PE(pos, 2k) = sin(pos w_k), PE(pos, 2k + 1) = cos(pos w_k), w_k = base^(-2k/d).

Reference: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.5. Published code
disagrees with the paper and with itself; the arguments say which is meant:

  paper                                     interleaved, 2k/d
  Transformer-XL, DeepMind                  halves [sin, cos], 2k/d       interleaved=False
  tensor2tensor, fairseq, TENER             halves, k/(d/2 - 1)           ... endpoint=True
  complex-order                             halves [cos, sin], 2k/d       ... cos_first=True

(complex-order multiplies by pi besides, and Transformer-XL gives an odd width one column more.)
An odd width leaves its last column 0. Angles are exact at every int32 position.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posjax.math.angles import angles, frequencies
from posjax.scheme import Scheme

SHIFT_INVARIANT = False


def encoding(
  pos: Num[Array, '*shape'],
  width: int,
  base: float = 10000.0,
  *,
  interleaved: bool = True,
  cos_first: bool = False,
  endpoint: bool = False,
) -> Float[Array, '*shape width']:
  """The code of each position.

  Args:
    pos: ids, in tokens; any integer, or float32.
    width: M, any positive number; an odd one ends in a zero.
    base: the slowest wavelength approaches 2 pi base (tokens).
    interleaved: sine and cosine of one frequency side by side, instead of in two halves.
    cos_first: the cosine before the sine.
    endpoint: frequencies base^(-k/(d/2 - 1)), instead of base^(-2k/d).

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


def shift_matrix(
  offset: int, width: int, base: float = 10000.0
) -> Float[np.ndarray, 'width width']:
  """M_k with PE(pos + k) = M_k PE(pos), for every position: a block rotation.

  Interleaved layout; blocks [[cos, sin], [-sin, cos]] of k w_i. float64.

  Raises:
    ValueError: if the width is odd.
  """
  if width % 2:
    raise ValueError(f'The shift matrix is made of 2 x 2 blocks, but the width is {width}.')
  matrix = np.zeros((width, width))
  for i, frequency in enumerate(frequencies(width, base)):
    cos, sin = np.cos(offset * frequency), np.sin(offset * frequency)
    matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cos, sin], [-sin, cos]]
  return matrix


def dot(
  distance: Num[Array, '*shape'], width: int, base: float = 10000.0
) -> Float[Array, '*shape']:
  """PE(p) . PE(p + distance) = sum over i from 0 to d/2 - 1 of cos(distance w_i): even, <= d/2."""
  return jnp.cos(angles(distance, frequencies(width, base))).sum(-1)


def wavelengths(width: int, base: float = 10000.0) -> Float[np.ndarray, ' half']:
  """2 pi / w_k, in tokens: from 2 pi towards 2 pi base. float64."""
  return 2 * np.pi / frequencies(width, base)


def scheme(
  base: float = 10000.0,
  interleaved: bool = True,
  cos_first: bool = False,
  endpoint: bool = False,
  axes: int = 1,
) -> Scheme:
  """Adds the code of each token's ids to its embedding.

  Args:
    base: the slowest wavelength approaches 2 pi base.
    interleaved: layout, see `encoding`.
    cos_first: layout, see `encoding`.
    endpoint: frequencies, see `encoding`.
    axes: ids per token: each axis gets an equal share of the width (2 for images).

  Raises:
    ValueError: if the base is not positive or the axes are none; where used, if they do not
      divide the width.

  Example:
    >>> x = jnp.zeros((1, 1, 2))
    >>> scheme().embed({}, x, None, jnp.zeros((1, 1), jnp.int32))
    Array([[[0., 1.]]], dtype=float32)
  """
  if not base > 0:
    raise ValueError(f"The sinusoid's base must be positive, but got {base}.")
  if axes < 1:
    raise ValueError(f'Sinusoidal positions need at least one axis, but got {axes}.')

  def embed(params, x, tokens, pos):
    width = x.shape[-1]
    if width % axes:
      raise ValueError(f'The {axes} axes must divide the width, but got {width}.')
    layout = {'interleaved': interleaved, 'cos_first': cos_first, 'endpoint': endpoint}
    code = encoding(pos, width // axes, base, **layout)
    code = code.reshape(*pos.shape[: pos.ndim - (axes > 1)], width)
    return (x + jnp.broadcast_to(code, x.shape)).astype(x.dtype)

  return Scheme(embed=embed, axes=axes)
