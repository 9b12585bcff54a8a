"""SSMax: each head learns how much sharper its attention becomes with the number of tokens.

q_p -> q_p s_h log n, with n = p + 1, the tokens that a query with the id p sees in causal
attention. The weights are n^(s z) / sum n^(s z), with z the logits: large n do not flatten them.

Reference: Nakanishi 2025, Scalable-Softmax Is Superior for Attention,
https://arxiv.org/abs/2501.19399. Its offset, s_h log n + b_h, helps in training and hurts
beyond the training length. Each s begins at 1 / log(length), so that attention over as many tokens
begins as it would be without; this initial value is ours.

Attention that is not causal sees another number of keys than p + 1: give it as `count`. The first
token sees itself alone, and its logit is 0. Ids below 0 count as 0. Ids that the scheme before in
the chain changed (`randomized`) are taken as they are, although they no longer count the tokens.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import AtLeastTwo, Size, checked
from posjax.math.checks import float_ids
from posjax.math.heads import multiplied
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
PAPERS = ('nakanishi2025scalable',)


def log_count(pos: Num[Array, '*B T']) -> Float[Array, '*B T']:
  """log(pos + 1), the logarithm of the number of tokens up to a token, itself included.

  Args:
    pos: ids; those below 0 count as 0.

  Returns:
    float32, or float64 for such ids.

  Example:
    >>> log_count(jnp.array([0, 1, 1023])).round(3)
    Array([0.   , 0.693, 6.931], dtype=float32)
  """
  return jnp.log1p(jnp.maximum(float_ids(pos), 0))


@checked
def scheme(length: AtLeastTwo = 1024, bias: bool = False, count: Size | None = None) -> Scheme:
  """Queries that grow by a learned multiple of a logarithm.

  Args:
    length: the number of visible tokens at which attention begins as it would be without; at
      least 2, and usually the length in training.
    bias: whether each head learns an offset b, too, which begins at 0.
    count: n, the same for all queries, for attention that is not causal; at least 1. None counts
      the tokens up to each query, by its id.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(length=2048))
    ('query',)
  """

  def init(key, dims):
    scale = jnp.full((dims.num_heads,), 1 / math.log(length), jnp.float32)
    return {'scale': scale, 'bias': jnp.zeros_like(scale)} if bias else {'scale': scale}

  def query(params, x, at):
    seen = log_count(at)[..., None, None] if count is None else math.log(count)
    by_head = lambda name: params[name].reshape(1, 1, -1, 1)
    factor = by_head('scale') * seen
    return multiplied(x, factor + by_head('bias') if bias else factor)

  return Scheme(init=init, query=query)
