"""xPos: RoPE whose products also decay with the distance, each frequency at its own rate.

logits = sum over c of Re(q_c conj(k_c) e^(i distance f_c)) zeta_c^(distance/512) / sqrt(D), for the
pairs c = 0 .. d/2 - 1 of RoPE, with zeta_c = (2c/d + gamma) / (1 + gamma), gamma = 0.4. All zeta
are below 1, and those of the fast frequencies are the smallest: far away, only the slow frequencies
are left.

Reference: Sun et al. 2022, A Length-Extrapolatable Transformer, https://arxiv.org/abs/2212.10554,
algorithm 1. The paper pairs neighbours (`interleaved=True`); its 512 is `scale_base`.

The authors' code multiplies q by zeta^(pos/512) and k by zeta^(-pos/512). From position 36,000 on
that is more than float32 holds, and to count positions from the middle of the sequence makes cached
keys wrong. Here the logits are replaced at place 3, and positions in the powers are counted from
the middle of the queries that are computed together, so that the powers are exact wherever these
queries are. Keys far back give exactly 0, which is correct. Queries more than `reach` tokens
(24,500) from that middle, and keys so far ahead of it, give NaN. The logits of later keys grow
without bound by definition: use a causal mask. The logits are scaled by 1/sqrt(D) here, because
`attend` does not scale logits that a scheme replaces.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posjax.arguments import Fraction, Positive, checked
from posjax.math.angles import angles, frequencies
from posjax.math.checks import float_ids
from posjax.math.differences import saturating_subtract
from posjax.math.heads import at_least_float32, product
from posjax.math.rotation import rotary_width, rotate
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
PAPERS = ('sun2022length',)

# The largest power of e. float32 ends at e^88, and each power is multiplied by a head's dimensions.
_LIMIT = 60.0


def decays(width: int, gamma: float = 0.4) -> Float[np.ndarray, ' half']:
  """zeta: the share that is left of each pair's product after scale_base tokens.

  Args:
    width: the number of rotated dimensions.
    gamma: a positive number; the larger it is, the slower is the decay.

  Returns:
    float64 [width // 2], in (0, 1), rising.

  Example:
    >>> decays(4).round(4)
    array([0.2857, 0.6429])
  """
  return (2 * np.arange(width // 2) / width + gamma) / (1 + gamma)


def reach(gamma: float = 0.4, scale_base: float = 512.0) -> float:
  """The number of tokens from the middle of the queries up to which no power exceeds e^60.

  Example:
    >>> int(reach())
    24521
  """
  fastest = -np.log(decays(2, gamma)[0])
  return float(_LIMIT * scale_base / fastest) if fastest else float('inf')


def rotated_logits(
  q: Float[Array, 'B T H D'],
  k: Float[Array, 'B S K D'],
  q_pos: Num[Array, 'B T'],
  k_pos: Num[Array, 'B S'],
  base: float = 10000.0,
  scale_base: float = 512.0,
  gamma: float = 0.4,
  fraction: float = 1.0,
  interleaved: bool = False,
) -> Float[Array, 'B H T S']:
  """The logits of rotated heads that decay with the distance, scaled by 1/sqrt(D).

  Args:
    q: queries, as projected.
    k: keys, as projected.
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    base, scale_base, gamma, fraction, interleaved: see `scheme`.

  Returns:
    float32 or wider; NaN beyond `reach`.

  Raises:
    ValueError: if the rotated width is odd.

  Example:
    >>> ones, pos = jnp.ones((1, 1, 1, 2)), jnp.zeros((1, 1), jnp.int32)
    >>> at = lambda distance: rotated_logits(ones, ones, pos + distance, pos)
    >>> (at(512) / at(0) / np.cos(512)).round(4)  # zeta = 0.4/1.4
    Array([[[[0.2857]]]], dtype=float32)
  """
  width = rotary_width(q.shape[-1], fraction)
  rates = np.log(decays(width, gamma)) / scale_base  # per token, negative
  low, high = q_pos.min(axis=1, keepdims=True), q_pos.max(axis=1, keepdims=True)
  middle = jax.lax.stop_gradient(low // 2 + high // 2)  # low + high would wrap

  def positioned(x, pos, rates):
    wide = at_least_float32(x)
    rotated = rotate(x.astype(wide), angles(pos, frequencies(width, base)), interleaved)
    tokens = saturating_subtract(pos, middle)[..., None].astype(wide)
    powers = jnp.minimum(tokens * jnp.asarray(rates, wide).reshape(1, 1, -1), _LIMIT)
    pairs = jnp.repeat(powers, 2, -1) if interleaved else jnp.concatenate([powers, powers], -1)
    still = jnp.zeros((*pos.shape, x.shape[-1] - width), wide)
    return rotated * jnp.exp(jnp.concatenate([pairs, still], -1))[:, :, None]

  logits = product(positioned(q, q_pos, rates), positioned(k, k_pos, -rates))
  farthest = reach(gamma, scale_base)
  q_beyond = float_ids(abs(saturating_subtract(q_pos, middle))) > farthest
  k_beyond = float_ids(saturating_subtract(k_pos, middle)) > farthest
  beyond = q_beyond[:, None, :, None] | k_beyond[:, None, None]
  return jnp.where(beyond, jnp.nan, logits * q.shape[-1] ** -0.5)


@checked
def scheme(
  base: Positive = 10000.0,
  scale_base: Positive = 512.0,
  gamma: Positive = 0.4,
  fraction: Fraction = 1.0,
  interleaved: bool = False,
) -> Scheme:
  """Rotary positions that decay.

  Args:
    base, fraction, interleaved: see `posjax.math.rotation`. What is not rotated does
      not decay. The paper interleaves.
    scale_base: the product of pair c is multiplied by zeta_c^(distance/scale_base), in tokens, with
      zeta_c = (2c/d + gamma) / (1 + gamma); positive.
    gamma: a positive number; the larger it is, the slower is the decay.

  Raises:
    ValueError: if an argument is out of range; where used, if the rotated width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('logits',)
  """

  def replaced(params, logits, q, k, q_at, k_at):
    return rotated_logits(q, k, q_at, k_at, base, scale_base, gamma, fraction, interleaved)

  return Scheme(logits=replaced)
