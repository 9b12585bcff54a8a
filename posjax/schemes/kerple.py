"""KERPLE: a bias that falls off with the logarithm, or with a power, of the distance; learned.

log:   bias = -r1 log(1 + r2 |distance|), r1, r2 > 0
power: bias = -r1 |distance|^r2,          r1 > 0, 0 < r2 < 2

One r1 and one r2 for each head of each layer. Power with r2 = 1 is ALiBi; the logarithm tends to
ALiBi of slope r1 r2 as r2 tends to 0.

What is trained is not r1 and r2 themselves but real numbers that `positive` and `exponent` map into
these ranges, so that any step of an optimizer stays inside and every gradient counts. A power of 2,
which the paper allows, is thus approached and not reached.

Reference: Chi, Fan, Ramadge, Rudnicky 2022, https://arxiv.org/abs/2205.09921, section 4; initial
values from the authors' code (chijames/KERPLE): for the logarithm r1 uniform below 2 and r2 below
1, for the power r1 uniform below 1 and r2 below 2. That code trains r1 and r2 as they are and after
each step moves those below 0.01, and powers above 2, back to these bounds: its weights are ours
through the inverses `raw_positive` and `raw_exponent`. Like ALiBi's, the authors' bias is used
under a causal mask; this one is symmetric.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.scheme import Scheme

SHIFT_INVARIANT = True

_LEAST = 1e-2  # of an initial value: the bound of the authors' code


def positive(raw: Float[Array, ' H']) -> Float[Array, ' H']:
  """softplus(raw): any number made positive."""
  return jax.nn.softplus(raw)


def raw_positive(value: Float[Array, ' H']) -> Float[Array, ' H']:
  """The inverse of `positive`.

  Example:
    >>> positive(raw_positive(jnp.array([0.5]))).round(5)
    Array([0.5], dtype=float32)
  """
  return value + jnp.log(-jnp.expm1(-value))


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
    factor: r1 of each head, positive.
    rate: r2 of each head, per token, positive.
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
  # At 0 the derivative by the distance is infinite for powers below 1, by the power 0 log 0.
  away = size > 0
  return -factor * jnp.where(away, jnp.where(away, size, 1) ** exponent, 0)


def _spread(one, other, distance):
  """Both parameters as [H, 1, ...] and |distance| as [1, ...], in float32 or wider."""
  wide = jnp.result_type(one, other, jnp.float32)
  each = (-1,) + (1,) * distance.ndim
  return (*(x.astype(wide).reshape(each) for x in (one, other)), abs(distance.astype(wide))[None])


def scheme(power: bool = False) -> Scheme:
  """Kernelized biases.

  Args:
    power: the power of the distance, instead of its logarithm (the paper's better one).

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('bias',)
  """

  def init(key, dims):
    first, second = jax.random.split(key)
    drawn = lambda key, bound: jax.random.uniform(
      key, (dims.num_heads,), minval=_LEAST, maxval=bound
    )
    if power:
      factor, second = drawn(first, 1.0), raw_exponent(drawn(second, 2 - _LEAST))
      return {'raw_factor': raw_positive(factor), 'raw_exponent': second}
    return {
      'raw_factor': raw_positive(drawn(first, 2.0)),
      'raw_rate': raw_positive(drawn(second, 1.0)),
    }

  def bias(params, distance):
    factor = positive(params['raw_factor'])
    if power:
      return power_bias(factor, exponent(params['raw_exponent']), distance)
    return log_bias(factor, positive(params['raw_rate']), distance)

  return Scheme(init=init, bias=bias, axes=1)
