"""Unscaled: the plain dot product as the similarity of a query and a key, not divided by sqrt(D).

logit = q . k. For numbers of variance 1 its variance is D: the wider the heads, the nearer the
softmax is to one hot, and the smaller its gradients.

Reference: Luong, Pham, Manning 2015, https://arxiv.org/abs/1508.04025, section 3.1 ("dot"); the
scaled one is that of Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, eq. 1 and footnote 4.
`attend` scales, so the queries are multiplied by sqrt(D), which cancels its default scale; with
`attend(..., scale=s)` the logits are s sqrt(D) q . k.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from posjax.math.heads import product
from posjax.scheme import Scheme

SHIFT_INVARIANT = True


def similarity(q: Float[Array, 'B T H D'], k: Float[Array, 'B S K D']) -> Float[Array, 'B H T S']:
  """q . k of every pair.

  Args:
    q: queries.
    k: keys, each of their heads shared by H / K consecutive query heads.

  Returns:
    float32, or what is wider.

  Example:
    >>> similarity(jnp.ones((1, 1, 1, 4)), jnp.ones((1, 1, 1, 4)))
    Array([[[[4.]]]], dtype=float32)
  """
  return product(q, k)


def scheme() -> Scheme:
  """The dot product of queries and keys as the logits.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('query',)
  """

  def query(params, x, at):
    wide = x.astype(jnp.result_type(x, jnp.float32))
    return (wide * x.shape[-1] ** 0.5).astype(x.dtype)

  return Scheme(query=query)
