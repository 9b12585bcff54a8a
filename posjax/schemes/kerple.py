"""KERPLE: a bias that falls off with the logarithm, or with a power, of the distance; learned.

log:   bias = -r1 log(1 + r2 |distance|), r1, r2 > 0
power: bias = -r1 |distance|^r2,          r1 > 0, 0 < r2 < 2

There is one r1 and one r2 for each head of each layer. The power with r2 = 1 is ALiBi; the
logarithm tends to ALiBi of slope r1 r2 as r2 tends to 0.

The trained parameters are not r1 and r2 themselves but real numbers that `positive` and `exponent`
map into these ranges, so that any step of an optimizer stays inside and no gradient is lost. A
power of 2, which the paper allows, is thus approached and never reached.

Reference: Chi, Fan, Ramadge, Rudnicky 2022, https://arxiv.org/abs/2205.09921, section 4; initial
values from the authors' code (chijames/KERPLE): for the logarithm r1 uniform below 2 and r2 below
1, for the power r1 uniform below 1 and r2 below 2. That code trains r1 and r2 as they are, and
after each step moves those below 0.01, and powers above 2, back to these bounds. `inverse_softplus`
and `raw_exponent` convert its weights to ours. Like ALiBi's, the authors' bias is used under a
causal mask; this one is symmetric.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import checked
from posjax.math.heads import at_least_float32
from posjax.math.softplus import inverse_softplus
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
PAPERS = ('chi2022kerple',)

_LEAST = 1e-2  # the least initial value, which is the bound of the authors' code


def positive(raw: Float[Array, ' H']) -> Float[Array, ' H']:
  """softplus(raw), which is positive for any number; `inverse_softplus` is its inverse."""
  return jax.nn.softplus(raw)


def exponent(raw: Float[Array, ' H']) -> Float[Array, ' H']:
  """2 sigmoid(raw): between 0 and 2, and 1 at 0."""
  return 2 * jax.nn.sigmoid(raw)


def raw_exponent(value: Float[Array, ' H']) -> Float[Array, ' H']:
  """The inverse of `exponent`.

  Example:
    >>> raw_exponent(jnp.array([1.0]))
    Array([0.], dtype=float32)
  """
  return jnp.log(value) - jnp.log(2 - value)


def log_bias(
  factor: Float[Array, ' H'], rate: Float[Array, ' H'], distance: Num[Array, '*shape']
) -> Float[Array, 'H *shape']:
  """-factor log(1 + rate |distance|).

  Args:
    factor: r1 of each head; positive.
    rate: r2 of each head, per token; positive.
    distance: q_pos - k_pos, in tokens.

  Returns:
    [H, ...], float32 or wider.

  Example:
    >>> log_bias(jnp.array([2.0]), jnp.array([0.5]), jnp.array([0, 6, -6])).round(4)
    Array([[-0.    , -2.7726, -2.7726]], dtype=float32)
  """
  factor, rate, size = _spread(factor, rate, distance)
  return -factor * jnp.log1p(rate * size)


def power_bias(
  factor: Float[Array, ' H'], exponent: Float[Array, ' H'], distance: Num[Array, '*shape']
) -> Float[Array, 'H *shape']:
  """-factor |distance|^exponent, and 0 with gradients of 0 at distance 0.

  Args:
    factor: r1 of each head, positive.
    exponent: r2 of each head, above 0 and not above 2.
    distance: q_pos - k_pos, in tokens.

  Returns:
    [H, ...], float32 or wider.

  Example:
    >>> power_bias(jnp.array([0.5]), jnp.array([2.0]), jnp.array([0, 3, -3]))
    Array([[-0. , -4.5, -4.5]], dtype=float32)
  """
  factor, exponent, size = _spread(factor, exponent, distance)
  # At distance 0 the derivative with respect to the distance is infinite for powers below 1, and
  # that with respect to the power is 0 log 0. The inner `where` keeps both out of the gradient.
  apart = size > 0
  return -factor * jnp.where(apart, jnp.where(apart, size, 1) ** exponent, 0)


def _spread(one, other, distance):
  """Both parameters as [H, 1, ...] and |distance| as [1, ...], in float32 or wider."""
  wide = at_least_float32(one, other)
  by_head = (-1,) + (1,) * distance.ndim
  one, other = (x.astype(wide).reshape(by_head) for x in (one, other))
  return one, other, abs(distance.astype(wide))[None]


@checked
def scheme(power: bool = False) -> Scheme:
  """Kernelized biases.

  Args:
    power: whether the bias is a power of the distance, instead of its logarithm, which did better
      in the paper.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('bias',)
  """

  def init(key, dims):
    first, second = jax.random.split(key)

    def uniform(key, bound):
      return jax.random.uniform(key, (dims.num_heads,), minval=_LEAST, maxval=bound)

    if power:
      return {
        'raw_factor': inverse_softplus(uniform(first, 1.0)),
        'raw_exponent': raw_exponent(uniform(second, 2 - _LEAST)),
      }
    return {
      'raw_factor': inverse_softplus(uniform(first, 2.0)),
      'raw_rate': inverse_softplus(uniform(second, 1.0)),
    }

  def bias(params, distance):
    factor = positive(params['raw_factor'])
    if power:
      return power_bias(factor, exponent(params['raw_exponent']), distance)
    return log_bias(factor, positive(params['raw_rate']), distance)

  return Scheme(init=init, bias=bias)
