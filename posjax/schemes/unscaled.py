"""Unscaled: the plain dot product as the similarity of a query and a key, not divided by sqrt(D).

logit = q . k. Where q and k have dimensions of variance 1, its variance is D: the wider the heads,
the nearer the softmax is to a one-hot vector, and the smaller are its gradients.

Reference: Luong, Pham, Manning 2015, https://arxiv.org/abs/1508.04025, section 3.1 ("dot"). The
scaled dot product is from Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, eq. 1 and
footnote 4. The queries are multiplied by sqrt(D), which cancels the default scale of `attend`; with
`attend(..., scale=s)` the logits are s sqrt(D) q . k.
"""

from jaxtyping import Array, Float

from posjax.arguments import checked
from posjax.math.heads import multiplied, product
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('luong2015effective',)


def similarity(q: Float[Array, 'B T H D'], k: Float[Array, 'B S K D']) -> Float[Array, 'B H T S']:
  """q . k of every pair.

  Args:
    q: queries.
    k: keys; each of their heads is shared by H / K consecutive query heads.

  Returns:
    float32 or wider.

  Example:
    >>> import jax.numpy as jnp
    >>> similarity(jnp.ones((1, 1, 1, 4)), jnp.ones((1, 1, 1, 4)))
    Array([[[[4.]]]], dtype=float32)
  """
  return product(q, k)


@checked
def scheme() -> Scheme:
  """The dot product of queries and keys as the logits.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('query',)
  """

  def query(params, x, at):
    return multiplied(x, x.shape[-1] ** 0.5)

  return Scheme(query=query, traits=Traits(axes=0))
