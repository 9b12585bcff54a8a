"""Cosine: the angle between query and key alone, whatever their lengths.

logit = cos(q, k) / temperature = q . k / (|q| |k| temperature). It replaces the logits: changes of
q and k at place 2 (RoPE) have no effect, in whatever order the schemes are chained. Schemes that
come later in the chain add to these logits at place 3, and every bias is added to them.

Reference: Graves, Wayne, Danihelka 2014, Neural Turing Machines, https://arxiv.org/abs/1410.5401,
eqs. 5-6, who multiply by a strength (1 / temperature). With temperature 1 the weights of any two
keys differ by no more than a factor e^2. A trained temperature for each head that may not fall
below 0.01 is from Liu et al. 2022, Swin Transformer V2, https://arxiv.org/abs/2111.09883, eq. 2,
whose code trains log(1 / temperature) and starts at temperature 0.1.

A vector shorter than 1e-6 is divided by 1e-6, so that the cosine with a vector of zeros is 0, and
gradients are finite, at most 1e6 / temperature.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from posjax.arguments import Positive, checked
from posjax.math.heads import at_least_float32, product
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('graves2014neural', 'liu2022swin')

LEAST_LENGTH = 1e-6
LEAST_TEMPERATURE = 0.01  # of the trained ones


def unit(x: Float[Array, '*shape D']) -> Float[Array, '*shape D']:
  """x / max(|x|, 1e-6), a vector of length 1, or 0 for 0.

  Returns:
    float32 or wider.

  Example:
    >>> unit(jnp.array([[3.0, 4.0], [0.0, 0.0]]))
    Array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
  """
  x = x.astype(at_least_float32(x))
  squares = jnp.square(x).sum(-1, keepdims=True)
  return x / jnp.sqrt(jnp.maximum(squares, LEAST_LENGTH**2))


def similarity(q: Float[Array, 'B T H D'], k: Float[Array, 'B S K D']) -> Float[Array, 'B H T S']:
  """The cosine of every pair, in [-1, 1] but for rounding.

  Args:
    q: queries.
    k: keys; each of their heads is shared by H / K consecutive query heads.

  Returns:
    float32 or wider.

  Example:
    >>> similarity(jnp.array([[[[0.0, 5.0]]]]), jnp.array([[[[3.0, 4.0]], [[0.0, 0.0]]]]))
    Array([[[[0.8, 0. ]]]], dtype=float32)
  """
  return product(unit(q), unit(k))


@checked
def scheme(temperature: Positive = 1.0, learned: bool = False) -> Scheme:
  """Cosines of queries and keys as the logits.

  Args:
    temperature: the number that the cosines are divided by; positive.
    learned: whether each head trains its own temperature, which starts at `temperature` and is
      never below 0.01.

  Raises:
    ValueError: if the temperature is not positive, or learned and below 0.01.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(temperature=0.1, learned=True))
    ('logits',)
  """
  if learned and temperature < LEAST_TEMPERATURE:
    raise ValueError(f'A learned temperature must begin at 0.01 or above, but got {temperature}.')

  def init(key, dims):
    return {'log_strength': jnp.full((dims.num_heads,), -math.log(temperature), jnp.float32)}

  def plain(params, logits, q, k, q_at, k_at):
    return similarity(q, k) / temperature

  def trained(params, logits, q, k, q_at, k_at):
    bounded = jnp.minimum(params['log_strength'], -math.log(LEAST_TEMPERATURE))
    return similarity(q, k) * jnp.exp(bounded)[None, :, None, None]

  unlearned = Scheme(logits=plain, traits=Traits(axes=0))
  return unlearned._replace(init=init, logits=trained) if learned else unlearned
