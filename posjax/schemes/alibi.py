"""ALiBi: attention falls off linearly with distance, with one slope per head.

bias = -slope_h |distance|, added to the scaled logits, unscaled.

Reference: Press, Smith, Lewis 2022, "Train Short, Test Long", https://arxiv.org/abs/2108.12409,
section 3. The authors' code, and every model trained with it, uses 2^(-8i/H) only where H is a
power of two. Otherwise it takes the slopes of the next lower power of two, and then every other
slope of the next higher one. The text of the paper gives 2^(-8i/H) for all H. The authors' form,
which depends on the key alone (slope * k_pos), equals this one under a causal mask only; this one
is symmetric, and correct without a mask as well.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posjax.arguments import checked
from posjax.math.heads import at_least_float32
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('press2022train',)


def slopes(num_heads: int) -> Float[np.ndarray, ' H']:
  """The slopes of the authors' code for any number of heads, per token of distance.

  Raises:
    ValueError: if there is no head.

  Example:
    >>> slopes(3)
    array([0.0625    , 0.00390625, 0.25      ])
  """
  power = 2 ** (num_heads.bit_length() - 1) if num_heads > 0 else 0
  if power == num_heads:
    return geometric_slopes(num_heads)
  between = geometric_slopes(2 * power)[::2]
  return np.concatenate([geometric_slopes(power), between[: num_heads - power]])


def geometric_slopes(num_heads: int) -> Float[np.ndarray, ' H']:
  """2^(-8i/H) for i = 1 .. H, the rule in the text of the paper.

  Raises:
    ValueError: if there is no head.
  """
  if num_heads < 1:
    raise ValueError(f'ALiBi needs at least one head, but got {num_heads}.')
  return 2.0 ** (-8 * np.arange(1, num_heads + 1) / num_heads)


def bias(slopes: Float[Array, ' H'], distance: Num[Array, '*shape']) -> Float[Array, 'H *shape']:
  """-slope |distance|.

  Args:
    slopes: one for each head, per token.
    distance: q_pos - k_pos, in tokens.

  Returns:
    [H, ...], float32 even if the slopes are narrower, because bfloat16 cannot count past 256.

  Example:
    >>> bias(jnp.array([0.5]), jnp.array([0, 3, -3]))
    Array([[-0. , -1.5, -1.5]], dtype=float32)
  """
  wide = at_least_float32(slopes)
  return jnp.einsum('h,...->h...', -slopes.astype(wide), abs(distance).astype(wide))


@checked
def scheme(learned: bool = False, geometric: bool = False) -> Scheme:
  """Linear biases.

  Args:
    learned: whether the slopes are trained (as in data2vec), instead of being constant.
    geometric: whether the slopes are 2^(-8i/H) for every H, instead of those of the authors' code.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('bias',)
  """
  initial = geometric_slopes if geometric else slopes

  def init(key, dims):
    return {'slopes': jnp.asarray(initial(dims.num_heads), jnp.float32)}

  def biases(params, distance):
    slopes = params['slopes'] if learned else jax.lax.stop_gradient(params['slopes'])
    return bias(slopes, distance)

  return Scheme(init=init, bias=biases, traits=Traits(fixed=() if learned else ('slopes',)))
