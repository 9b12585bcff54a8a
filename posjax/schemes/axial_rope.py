"""Axial RoPE: each coordinate of a token rotates its own share of each head, for grids of any rank.

Of the D/2 pairs of a head, the first D/(2n) are rotated by a token's first id, the next by its
second, and so on for n axes: angle = id f. Each axis has the frequencies f = base^(-2k/(D/n)) of a
head as wide as its share. With `interleaved_axes`, the frequencies of the whole head, base^(-2k/D),
are instead dealt out to the axes in turn. q . k then depends on the distance along each axis alone.

Reference: Heo et al. 2024, Rotary Position Embedding for Vision Transformer,
https://arxiv.org/abs/2403.13298, section 3, "axial"; in n dimensions, Su et al. 2021,
https://arxiv.org/abs/2104.09864, eq. 14 on each axis. Models differ: RoPE-ViT's code has x first,
interleaved pairs and base 100; Qwen2-VL's vision tower has y first and split pairs; Pixtral has y
first and `interleaved_axes` frequencies, the even ones for y and the odd ones for x. Here ids are
[B, T, n], and you choose the order of the axes. DINOv3 has base 100, y first, split pairs, and
angles of 2 pi times coordinates in [-1, 1]: pass those products as float32 ids. A token that is
nowhere on the grid (a class token) has all ids 0, and is not rotated.
"""

from typing import Annotated

import numpy as np
from jaxtyping import Array, Float, Int, Num

from posjax.arguments import Positive, Range, checked
from posjax.math.angles import assigned_angles, frequencies
from posjax.math.rotation import rotate, with_values
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('heo2024rotary', 'su2021roformer')


def shares(
  head_dim: int, axes: int = 2, base: float = 10000.0, interleaved_axes: bool = False
) -> tuple[Float[np.ndarray, ' half'], Int[np.ndarray, ' half']]:
  """The frequency of each pair of a head, and the axis whose id rotates it.

  Args:
    head_dim: D, the width of a head; a multiple of 2 axes.
    axes: n, the number of ids of each token.
    base: the base of the frequencies.
    interleaved_axes: whether the frequencies of width D are dealt out to the axes in turn, instead
      of those of width D/n being given to each axis.

  Returns:
    Radians per token, and axes 0 .. n - 1; both [D/2].

  Raises:
    ValueError: if the head cannot be divided among the axes.

  Example:
    >>> shares(8, base=100.0)
    (array([1. , 0.1, 1. , 0.1]), array([0, 0, 1, 1]))
    >>> shares(8, base=1e4, interleaved_axes=True)
    (array([1.   , 0.01 , 0.1  , 0.001]), array([0, 0, 1, 1]))
  """
  if head_dim % (2 * axes):
    raise ValueError(
      f'Axial RoPE of {axes} axes needs a head width that is a multiple of {2 * axes}, but got '
      f'{head_dim}.'
    )
  if interleaved_axes:
    by_pair = frequencies(head_dim, base).reshape(-1, axes).T.ravel()
  else:
    by_pair = np.tile(frequencies(head_dim // axes, base), axes)
  return by_pair, np.repeat(np.arange(axes), head_dim // (2 * axes))


@checked
def scheme(
  axes: Annotated[int, Range(2, 16)] = 2,
  base: Positive = 10000.0,
  interleaved_axes: bool = False,
  interleaved: bool = False,
  values: bool = False,
) -> Scheme:
  """Rotary positions on a grid.

  Args:
    axes: the number of ids of each token, at least 2.
    base, interleaved, values: see `posjax.math.rotation`. RoPE-ViT interleaves.
    interleaved_axes: whether the frequencies of the whole head are dealt out to the axes in turn,
      as in Pixtral.

  Raises:
    ValueError: if an argument is out of range; where used, if the width of a head is not a multiple
      of 2 axes.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme()), scheme().traits.axes
    (('query', 'key'), 2)
  """
  angle_of = lambda width, at: assigned_angles(at, *shares(width, axes, base, interleaved_axes))

  def rotated(params, x: Float[Array, 'B T H D'], at: Num[Array, 'B T n']):
    return rotate(x, angle_of(x.shape[-1], at), interleaved)

  both = Scheme(query=rotated, key=rotated, traits=Traits(axes))
  return with_values(both, angle_of, interleaved) if values else both
