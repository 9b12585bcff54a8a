"""Log-scaled: beyond the training length, queries grow by the logarithm of what they can see.

q_p -> q_p max(1, log(p + 1) / log(length)). A query with the id p sees p + 1 tokens in causal
attention; this keeps the entropy of its weights nearly as it is at the training length.

Reference: Su 2021, on attention whose entropy does not change, https://kexue.fm/archives/8823. The
factor there has no lower bound. The bound of 1 is that of Qwen (Bai et al. 2023,
https://arxiv.org/abs/2309.16609, "LogN-Scaling"), which uses it after RoPE, with no training:
`rope+log_scaled(length=2048)`.

Ids below 0 count as 0. Ids that the scheme before in the chain changed (`randomized`) are taken
as they are, although they no longer count the tokens.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import AtLeastTwo, checked
from posjax.math.checks import float_ids
from posjax.math.heads import multiplied
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
EXAMPLE = 'log_scaled(length=4)'
PAPERS = ('su2021entropy', 'bai2023qwen')


def temperature(pos: Num[Array, '*B T'], length: int) -> Float[Array, '*B T']:
  """max(1, log(pos + 1) / log(length)).

  Args:
    pos: ids.
    length: the length in training, in tokens; at least 2.

  Returns:
    float32, or float64 for such ids.

  Example:
    >>> temperature(jnp.array([0, 7, 63]), 8)
    Array([1., 1., 2.], dtype=float32)
  """
  real = float_ids(pos)
  # The inner maximum gives the ids below 0 a logarithm; the comparison makes the bound exact.
  grown = jnp.log1p(jnp.maximum(real, 0)) / math.log(length)
  return jnp.where(pos < length, 1, grown)


@checked
def scheme(length: AtLeastTwo) -> Scheme:
  """Queries that grow beyond a length.

  Args:
    length: the length in training, in tokens; at least 2.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(length=2048))
    ('query',)
  """

  def query(params, x, at):
    return multiplied(x, temperature(at, length)[..., None, None])

  return Scheme(query=query)
