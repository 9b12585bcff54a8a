"""The rotation of pairs of dimensions, which the whole family of RoPE shares.

Members of the family differ in the frequency of each pair, and in little else. The arguments that
several of them have in common are described here, once:

  base         The frequencies of RoPE are base^(-2k/d), in radians per token, for the pairs
               k = 0 .. d/2 - 1 of the d dimensions that are rotated: the larger the base, the
               slower the last pairs. It is the number that the model was trained with, must be
               positive, and is also called theta, rope_theta or max_wavelength.
  factor       The ratio of the length of a text to the length in training. How a scheme slows its
               frequencies by it is what members differ in; 1 leaves RoPE as it is.
  fraction     The share of each head that is rotated, in (0, 1]: its first dimensions, with the
               frequencies of a head of that width. The rest stays as it is ("partial rotation",
               as in GPT-NeoX).
  interleaved  Which dimensions form a pair. False pairs k with k + d/2 ("split" into halves, as
               Llama); True pairs the neighbours 2k and 2k + 1 (as GPT-J). The two differ by a
               permutation of the columns of W_Q and W_K: `rope.to_split`, `rope.to_interleaved`.
  values       Whether values rotate, too, by the position of their key, and the sum of a query
               rotates back by its own: out_i = sum_j w_ij R(v_j, (p_j - p_i) f), which depends on
               distances alone (DeepSeek-V4; GTA, Miyato et al. 2024,
               https://arxiv.org/abs/2310.10375). The attention factor is not for them. Values may
               be of another width than queries.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, Num

from posjax.math.angles import angles, cos_sin
from posjax.scheme import Scheme, Values


def rotate(
  x: Inexact[Array, '*B T H D'],
  angle: Float[Array, '*B T half'],
  interleaved: bool = False,
  attention_factor: float = 1.0,
) -> Inexact[Array, '*B T H D']:
  """Rotates the first 2 * half dimensions of each head, pair by pair; the rest stays as it is.

  (x1, x2) -> (x1 cos a - x2 sin a, x2 cos a + x1 sin a) for each pair and its angle a.

  Args:
    x: queries or keys.
    angle: one angle for each token and pair, in radians, the same for all heads.
    interleaved: whether pairs are neighbours (2k, 2k + 1), instead of (k, k + half).
    attention_factor: a number that the rotated dimensions are multiplied by.

  Returns:
    The rotated heads, in the dtype of `x`; the rotation is computed in float32.

  Example:
    >>> rotate(jnp.array([[[1.0, 0.0]]]), jnp.array([[jnp.pi / 2]])).round(3)
    Array([[[-0.,  1.]]], dtype=float32)
  """
  half = angle.shape[-1]
  rotated, still = x[..., : 2 * half], x[..., 2 * half :]
  cos, sin = (attention_factor * part[..., None, :] for part in cos_sin(angle))
  if interleaved:
    x1, x2 = rotated[..., 0::2], rotated[..., 1::2]
    pairs = jnp.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)
    rotated = pairs.reshape(rotated.shape)
  else:
    x1, x2 = jnp.split(rotated, 2, axis=-1)
    rotated = jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)
  return jnp.concatenate([rotated.astype(x.dtype), still], axis=-1)


def rotary_width(head_dim: int, fraction: float = 1.0) -> int:
  """The number of dimensions of a head that are rotated: fraction * head_dim.

  Raises:
    ValueError: if the number is not positive and even.

  Example:
    >>> rotary_width(64, 0.25)
    16
  """
  width = round(fraction * head_dim)
  # A fraction that is a quotient of integers is rounded: 14 / 50 * 50 is not 14 in floating point.
  if abs(width - fraction * head_dim) > 1e-6 or width % 2 or width < 2:
    raise ValueError(
      f'RoPE rotates pairs, so its width must be positive and even, but fraction {fraction} of '
      f'head width {head_dim} is {fraction * head_dim:g}.'
    )
  return width


def rotary_scheme(
  frequencies: Callable[[int], Float[np.ndarray, ' half']],
  fraction: float = 1.0,
  interleaved: bool = False,
  attention_factor: float = 1.0,
  values: bool = False,
) -> Scheme:
  """The scheme that rotates queries and keys, and perhaps values, at any frequencies.

  Args:
    frequencies: a function from the number of rotated dimensions to the radians per token of each
      pair, float64 [width / 2].
    fraction: see the top of this file.
    interleaved: see the top of this file.
    attention_factor: a positive number that the rotated dimensions of queries and of keys are
      multiplied by, so that their part of the logits grows by its square.
    values: see the top of this file.

  Raises:
    ValueError: where used, if the number of rotated dimensions is not even.

  Example:
    >>> x, pos = jnp.array([[[[1.0, 0.0]]]]), jnp.array([[1]])
    >>> rotary_scheme(lambda width: np.array([np.pi / 2])).query({}, x, pos).round(3)
    Array([[[[-0.,  1.]]]], dtype=float32)
  """

  def rotated(params, x: Float[Array, 'B T H D'], at: Num[Array, 'B T']):
    angle = angles(at, frequencies(rotary_width(x.shape[-1], fraction)))
    return rotate(x, angle, interleaved, attention_factor)

  angle_of = lambda width, at: angles(at, frequencies(rotary_width(width, fraction)))
  both = Scheme(query=rotated, key=rotated)
  return with_values(both, angle_of, interleaved) if values else both


def with_values(
  scheme: Scheme,
  angle_of: Callable[[int, Num[Array, '...']], Float[Array, '...']],
  interleaved: bool = False,
) -> Scheme:
  """The scheme with values that are rotated, and outputs rotated back; see the top of this file.

  Args:
    scheme: one that rotates queries and keys by the same angles.
    angle_of: from the width of a value and the ids of the tokens to the angle of each pair.
    interleaved: see the top of this file.

  Example:
    >>> rotated = with_values(Scheme(), lambda width, at: jnp.pi / 2 * at[..., None])
    >>> rotated.values.output({}, jnp.array([[[[0.5, 1.0]]]]), jnp.array([[1]])).round(3)
    Array([[[[ 1. , -0.5]]]], dtype=float32)
  """

  def rotation(direction: int):
    def rotated(params, x: Float[Array, 'B T H E'], at: Num[Array, 'B T *n']):
      return rotate(x, direction * angle_of(x.shape[-1], at), interleaved)

    return rotated

  return scheme._replace(values=Values(value=rotation(1), output=rotation(-1)))
