"""Sandwich: the inner products of sinusoidal positions as a bias, compressed head by head.

bias = (p_m . p_n - width/2) / ratio_h, ratio_h = 8 h / H for the heads h = 1 .. H, where
p_m . p_n = sum over k of cos(distance w_k), w_k = base^(-2k/width). It has no parameters, is 0 at
distance 0 and negative elsewhere, and falls like a logarithm, as the biases of KERPLE and T5 do
after training.

It is computed as -2/ratio_h sum of sin^2(distance w_k / 2), which is equal, and in which large
numbers do not cancel. The angles are exact at every integer distance.

Reference: Chi, Fan, Rudnicky, Ramadge 2023, "Dissecting Transformer Length Extrapolation via the
Lens of Receptive Field Analysis", https://arxiv.org/abs/2212.10356; k = 0 .. width/2 - 1 and the
division by 8 h / H as in the code of its appendix (the sum of the text has k = 1 .. width/2), and a
width of 128, which does not depend on the model's. That code does not subtract width/2, which does
not change a softmax. The authors use the bias under a causal mask; it is symmetric.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posjax.arguments import Positive, checked
from posjax.math.angles import angles, frequencies
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('chi2023dissecting',)


def ratios(num_heads: int) -> Float[np.ndarray, ' H']:
  """The number that the bias of each head is divided by: 8 h / H, h = 1 .. H.

  Raises:
    ValueError: if there is no head.

  Example:
    >>> ratios(4)
    array([2., 4., 6., 8.])
  """
  if num_heads < 1:
    raise ValueError(f'Sandwich needs at least one head, but got {num_heads}.')
  return 8 * np.arange(1, num_heads + 1) / num_heads


def bias(
  ratios: Float[Array, ' H'],
  distance: Num[Array, '*shape'],
  width: int = 128,
  base: float = 10000.0,
) -> Float[Array, 'H *shape']:
  """(sum of cos(distance w_k) - width/2) / ratio.

  Args:
    ratios: one number for each head.
    distance: q_pos - k_pos, in tokens.
    width: the number of sines and cosines of the sinusoidal positions together; even.
    base: the slowest wavelength approaches 2 pi base.

  Returns:
    [H, ...], float32 or wider.

  Example:
    >>> bias(jnp.array([1.0, 2.0]), jnp.array([0, 1]), width=2).round(4)
    Array([[-0.    , -0.4597],
           [-0.    , -0.2298]], dtype=float32)
  """
  half_angles = frequencies(width, base) / 2
  total = lambda row: -2 * jnp.square(jnp.sin(angles(row, half_angles))).sum(-1)
  # One row after the other, because a compiler may otherwise keep width/2 numbers in memory for
  # each distance.
  rows = jnp.atleast_1d(abs(distance))
  rows = rows.reshape(-1, rows.shape[-1])
  totals = jax.lax.map(total, rows).reshape(distance.shape)
  wide = jnp.result_type(ratios, totals)
  return jnp.einsum('h,...->h...', 1 / ratios.astype(wide), totals.astype(wide))


@checked
def scheme(width: int = 128, base: Positive = 10000.0) -> Scheme:
  """Biases from inner products of sinusoids.

  Args:
    width: the number of sines and cosines of the sinusoidal positions together; even, at least 2.
      The larger it is, the steeper is the bias.
    base: the slowest wavelength approaches 2 pi base.

  Raises:
    ValueError: if the width is not even and positive, or the base not positive.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('bias',)
  """
  if width < 2 or width % 2:
    raise ValueError(f"Sandwich's width must be even and at least 2, but got {width}.")

  def init(key, dims):
    return {'ratios': jnp.asarray(ratios(dims.num_heads), jnp.float32)}

  def biases(params, distance):
    return bias(jax.lax.stop_gradient(params['ratios']), distance, width, base)

  return Scheme(init=init, bias=biases, traits=Traits(fixed=('ratios',)))
