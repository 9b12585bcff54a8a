"""Axial RoPE: each coordinate of a token turns its own share of each head, for grids of any rank.

Of the D/2 pairs of a head, the first D/(2n) turn by a token's first id, the next by its second, and
so on for n axes: angle = id f. Each axis has the frequencies f = base^(-2k/(D/n)) of a head as wide
as its share; `dealt` deals those of the whole head, base^(-2k/D), out to the axes in turn instead.
q . k then depends on the distance along each axis alone.

Reference: Heo et al. 2024, Rotary Position Embedding for Vision Transformer,
https://arxiv.org/abs/2403.13298, section 3, "axial"; in n dimensions, Su et al. 2021,
https://arxiv.org/abs/2104.09864, eq. 14 on each axis. Models differ: RoPE-ViT's code has x first,
interleaved pairs and base 100; Qwen2-VL's vision tower y first, in halves; Pixtral y first and
`dealt`, even frequencies to y and odd ones to x. Here ids are [B, T, n] in the order that you give.
DINOv3 has base 100, y first, in halves, and turns by 2 pi times coordinates in [-1, 1]: give those
products as float32 ids. A token without a place (a class token) has all ids 0, and does not turn.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from posjax.angles import angles, frequencies
from posjax.scheme import Scheme
from posjax.schemes.rope import rotate

SHIFT_INVARIANT = True


def assigned_angles(
  pos: Num[Array, '*shape n'],
  frequencies: Float[np.ndarray, ' half'],
  axis: Int[np.ndarray, ' half'],
) -> Float[Array, '*shape half']:
  """pos[..., axis] * frequencies, modulo 2 pi: each frequency turns by the id of its axis.

  Args:
    pos: n ids per token.
    frequencies: radians per token.
    axis: which id each frequency takes, 0 .. n - 1.

  Returns:
    Radians, as `posjax.angles.angles`.

  Example:
    >>> assigned_angles(jnp.array([[1, 3]]), np.array([0.5, 0.5, 0.1]), np.array([0, 1, 0]))
    Array([[0.5, 1.5, 0.1]], dtype=float32)
  """
  order = np.argsort(axis, kind='stable')
  each = [angles(pos[..., n], frequencies[axis == n]) for n in range(pos.shape[-1])]
  return jnp.concatenate(each, axis=-1)[..., np.argsort(order)]


def shares(
  head_dim: int, axes: int = 2, base: float = 10000.0, dealt: bool = False
) -> tuple[Float[np.ndarray, ' half'], Int[np.ndarray, ' half']]:
  """The frequency of each pair of a head, and the axis that it turns by.

  Args:
    head_dim: D; a multiple of 2 axes.
    axes: n.
    base: of the frequencies.
    dealt: whether the frequencies of width D are dealt out in turn, or each axis has those of D/n.

  Returns:
    Radians per token, and axes 0 .. n - 1; both [D/2].

  Raises:
    ValueError: if the width cannot be shared.

  Example:
    >>> shares(8, base=100.0)
    (array([1. , 0.1, 1. , 0.1]), array([0, 0, 1, 1]))
    >>> shares(8, base=1e4, dealt=True)
    (array([1.   , 0.01 , 0.1  , 0.001]), array([0, 0, 1, 1]))
  """
  if head_dim % (2 * axes):
    raise ValueError(
      f'Axial RoPE of {axes} axes needs a head width that is a multiple of {2 * axes}, but got '
      f'{head_dim}.'
    )
  if dealt:
    each = frequencies(head_dim, base).reshape(-1, axes).T.ravel()
  else:
    each = np.tile(frequencies(head_dim // axes, base), axes)
  return each, np.repeat(np.arange(axes), head_dim // (2 * axes))


def scheme(
  axes: int = 2, base: float = 10000.0, dealt: bool = False, interleaved: bool = False
) -> Scheme:
  """Rotary positions on a grid.

  Args:
    axes: ids per token, at least 2.
    base: of the frequencies.
    dealt: deal the frequencies of the whole head out to the axes in turn, as Pixtral.
    interleaved: pair neighbours, as RoPE-ViT, instead of halves.

  Raises:
    ValueError: if an argument is out of range; where used, if the width is no multiple of 2 axes.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme()), scheme().axes
    (('query', 'key'), 2)
  """
  if axes < 2:
    raise ValueError(f'Axial RoPE needs at least 2 axes (1 is RoPE), but got {axes}.')
  if not base > 0:
    raise ValueError(f"Axial RoPE's base must be positive, but got {base}.")

  def turn(params, x: Float[Array, 'B T H D'], at: Num[Array, 'B T n']):
    return rotate(x, assigned_angles(at, *shares(x.shape[-1], axes, base, dealt)), interleaved)

  return Scheme(query=turn, key=turn, axes=axes)
