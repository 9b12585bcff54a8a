"""RoPE: each pair of a query's or key's numbers turns by an angle proportional to its position.

(x1, x2) -> (x1 cos a - x2 sin a, x2 cos a + x1 sin a), a = pos base^(-2k/d), so that q . k depends
on the distance alone.

Reference: Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864, eqs. 13-16, 34. The paper
pairs neighbours (2k, 2k + 1), "interleaved", as GPT-J; Llama and most later models pair k with
k + d/2, "split", the default here. The two differ by a permutation of W_Q's and W_K's columns:
`to_split`, `to_interleaved`. Position interpolation divides the frequencies by `factor` (Chen et
al. 2023, https://arxiv.org/abs/2306.15595, eq. 4): exact, where dividing the ids would round.
Partial rotation turns the first `fraction` of each head (GPT-NeoX), with frequencies of that
width. Angles are exact at every int32 position. Other frequencies (ntk, yarn, longrope, ...) make
the same scheme: `turning`.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Num, Shaped

from posjax.angles import angles, frequencies, waves
from posjax.scheme import Scheme

SHIFT_INVARIANT = True


def rotate(
  x: Inexact[Array, '*B T H D'],
  angle: Float[Array, '*B T half'],
  interleaved: bool = False,
  attention_factor: float = 1.0,
) -> Inexact[Array, '*B T H D']:
  """Turns the first 2 * half numbers of each head, pair by pair; the rest stay.

  Args:
    x: queries or keys.
    angle: radians, the same for all heads.
    interleaved: pairs (2k, 2k + 1), instead of (k, k + half).
    attention_factor: multiplies the numbers that turn.

  Returns:
    The turned heads, in the dtype of `x`; computed in float32.

  Example:
    >>> rotate(jnp.array([[[1.0, 0.0]]]), jnp.array([[jnp.pi / 2]])).round(3)
    Array([[[-0.,  1.]]], dtype=float32)
  """
  half = angle.shape[-1]
  turned, still = x[..., : 2 * half], x[..., 2 * half :]
  cos, sin = (attention_factor * wave[..., None, :] for wave in waves(angle))
  if interleaved:
    x1, x2 = turned[..., 0::2], turned[..., 1::2]
    pair = jnp.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)
    turned = pair.reshape(turned.shape)
  else:
    x1, x2 = jnp.split(turned, 2, axis=-1)
    turned = jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)
  return jnp.concatenate([turned.astype(x.dtype), still], axis=-1)


def to_interleaved(
  kernel: Shaped[Array, '*rest D'], fraction: float = 1.0
) -> Shaped[Array, '*rest D']:
  """Weights of W_Q or W_K (head width last) of a split model, for an interleaved one.

  Example:
    >>> to_interleaved(jnp.arange(6))
    Array([0, 3, 1, 4, 2, 5], dtype=int32)
  """
  width = rotary_width(kernel.shape[-1], fraction)
  order = np.arange(width).reshape(2, -1).T.ravel()
  return jnp.concatenate([kernel[..., order], kernel[..., width:]], axis=-1)


def to_split(kernel: Shaped[Array, '*rest D'], fraction: float = 1.0) -> Shaped[Array, '*rest D']:
  """Weights of W_Q or W_K (head width last) of an interleaved model, for a split one.

  Example:
    >>> to_split(jnp.array([0, 3, 1, 4, 2, 5]))
    Array([0, 1, 2, 3, 4, 5], dtype=int32)
  """
  width = rotary_width(kernel.shape[-1], fraction)
  order = np.arange(width).reshape(-1, 2).T.ravel()
  return jnp.concatenate([kernel[..., order], kernel[..., width:]], axis=-1)


def rotary_width(head_dim: int, fraction: float = 1.0) -> int:
  """How many of a head's numbers turn.

  Raises:
    ValueError: if they are not a positive, even number.
  """
  width = round(fraction * head_dim)
  # 14 / 50 * 50 is not 14 in floating point.
  if abs(width - fraction * head_dim) > 1e-6 or width % 2 or width < 2:
    raise ValueError(
      f'RoPE turns pairs, so its width must be positive and even, but fraction {fraction} of head '
      f'width {head_dim} is {fraction * head_dim:g}.'
    )
  return width


def turning(
  frequencies: Callable[[int], Float[np.ndarray, ' half']],
  fraction: float = 1.0,
  interleaved: bool = False,
  attention_factor: float = 1.0,
) -> Scheme:
  """The scheme that turns queries and keys by any frequencies: what this family shares.

  Args:
    frequencies: gives the radians per token of each pair, float64 [width / 2], for the width that
      turns.
    fraction: share of each head that turns, in (0, 1].
    interleaved: pair neighbours (GPT-J), instead of halves (Llama).
    attention_factor: multiplies what turns, in queries and in keys: its part of the logits grows
      by the square.

  Raises:
    ValueError: if the fraction is out of range or the factor is not positive; where used, if the
      width is odd.

  Example:
    >>> x, pos = jnp.array([[[[1.0, 0.0]]]]), jnp.array([[1]])
    >>> turning(lambda width: np.array([np.pi / 2])).query({}, x, pos).round(3)
    Array([[[[-0.,  1.]]]], dtype=float32)
  """
  if not 0 < fraction <= 1:
    raise ValueError(f"RoPE's fraction must be in (0, 1], but got {fraction}.")
  if not 0 < attention_factor < np.inf:
    raise ValueError(f'The attention factor must be positive, but got {attention_factor}.')

  def turn(params, x: Float[Array, 'B T H D'], at: Num[Array, 'B T']):
    angle = angles(at, frequencies(rotary_width(x.shape[-1], fraction)))
    return rotate(x, angle, interleaved, attention_factor)

  return Scheme(query=turn, key=turn, axes=1)


def scheme(
  base: float = 10000.0,
  factor: float = 1.0,
  fraction: float = 1.0,
  interleaved: bool = False,
) -> Scheme:
  """Rotary positions.

  Args:
    base: of the frequencies (theta, max_wavelength, rope_theta).
    factor: divides the frequencies: positions up to factor times the trained length turn no
      further than trained.
    fraction: share of each head that turns, in (0, 1].
    interleaved: pair neighbours (GPT-J), instead of halves (Llama).

  Raises:
    ValueError: if an argument is out of range; where used, if the width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(base=5e5))
    ('query', 'key')
  """
  if not base > 0:
    raise ValueError(f"RoPE's base must be positive, but got {base}.")
  if not factor > 0:
    raise ValueError(f"RoPE's factor must be positive, but got {factor}.")
  return turning(lambda width: frequencies(width, base) / factor, fraction, interleaved)
