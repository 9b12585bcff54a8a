"""Sinusoidal positions: sines and cosines of geometric frequencies, added to the embeddings.

PE(pos, 2k) = sin(pos w_k), PE(pos, 2k + 1) = cos(pos w_k), w_k = base^(-2k/d).

Reference: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.5. Published code
disagrees with the paper and with itself; the arguments say which is meant:

  paper                                     interleaved, 2k/d
  Transformer-XL, DeepMind                  halves [sin, cos], 2k/d       interleaved=False
  tensor2tensor, fairseq, TENER             halves, k/(d/2 - 1)           ... endpoint=True
  complex-order                             halves [cos, sin], 2k/d       ... cos_first=True

(complex-order multiplies by pi besides, and Transformer-XL makes an odd width one column wider.)
With an odd width the last column is 0. Angles are exact at every int32 position.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posjax.arguments import Positive, Size, checked
from posjax.math.angles import angles, frequencies
from posjax.math.sinusoids import encoding
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = False
PAPERS = ('vaswani2017attention',)


def shift_matrix(
  offset: int, width: int, base: float = 10000.0
) -> Float[np.ndarray, 'width width']:
  """The matrix M_k with PE(pos + k) = M_k PE(pos) for every position.

  For the interleaved layout it consists of the blocks [[cos, sin], [-sin, cos]] of k w_i.

  Args:
    offset: k, in tokens.
    width: the number of dimensions; even.
    base: the base of the frequencies.

  Returns:
    float64.

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
  """PE(p) . PE(p + distance) = sum over i = 0 .. d/2 - 1 of cos(distance w_i), at most d/2."""
  return jnp.cos(angles(distance, frequencies(width, base))).sum(-1)


def wavelengths(width: int, base: float = 10000.0) -> Float[np.ndarray, ' half']:
  """2 pi / w_k in tokens, from 2 pi towards 2 pi base, as float64."""
  return 2 * np.pi / frequencies(width, base)


@checked
def scheme(
  base: Positive = 10000.0,
  interleaved: bool = True,
  cos_first: bool = False,
  endpoint: bool = False,
  axes: Size = 1,
) -> Scheme:
  """Adds the code of each token's ids to its embedding.

  Args:
    base: the slowest wavelength approaches 2 pi base tokens; positive.
    interleaved: whether the sine and the cosine of one frequency stand side by side, instead of
      all sines in one half of the width and all cosines in the other.
    cos_first: whether the cosine comes before the sine.
    endpoint: whether the frequencies are base^(-k/(d/2 - 1)), instead of base^(-2k/d).
    axes: the number of ids of each token (2 for images); each axis has an equal share of the width.

  Raises:
    ValueError: if the base is not positive or there is no axis; where used, if the axes do not
      divide the width.

  Example:
    >>> x = jnp.zeros((1, 1, 2))
    >>> scheme().embed({}, x, None, jnp.zeros((1, 1), jnp.int32))
    Array([[[0., 1.]]], dtype=float32)
  """

  def embed(params, x, tokens, pos):
    width = x.shape[-1]
    if width % axes:
      raise ValueError(f'The {axes} axes must divide the width, but got {width}.')
    layout = {'interleaved': interleaved, 'cos_first': cos_first, 'endpoint': endpoint}
    code = encoding(pos, width // axes, base, **layout)
    code = code.reshape(*pos.shape[: pos.ndim - (axes > 1)], width)
    return (x + jnp.broadcast_to(code, x.shape)).astype(x.dtype)

  return Scheme(embed=embed, traits=Traits(axes))
