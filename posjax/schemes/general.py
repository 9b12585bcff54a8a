"""General: a trained matrix between query and key, q . W k, in place of their dot product.

logit = q^T W_h k, one W [D, D] per query head h; unscaled.

Reference: Luong, Pham, Manning 2015, https://arxiv.org/abs/1508.04025, section 3.1 ("general"),
there for one head. W^T q is computed first, at place 2, so that a pair costs no more than a dot
product. Schemes that rotate or widen the heads act on W^T q if they come later in a chain, and on q
if they come earlier. W^T q is multiplied by sqrt(D), which cancels the default scale of `attend`.
The paper does not say how W is initialized; here it has Glorot's uniform values, for which the
logits have the variance of an unscaled dot product.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from posjax.arguments import checked
from posjax.math.heads import at_least_float32, product
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('luong2015effective',)


def transform(
  weights: Float[Array, 'H D D'], q: Float[Array, 'B T H D']
) -> Float[Array, 'B T H D']:
  """W^T q for each head.

  Returns:
    float32 or wider.

  Example:
    >>> transform(jnp.array([[[1.0, 2.0], [3.0, 4.0]]]), jnp.array([[[[1.0, 0.0]]]]))
    Array([[[[1., 2.]]]], dtype=float32)
  """
  return jnp.einsum('bthd,hde->bthe', q.astype(at_least_float32(q)), weights)


def similarity(
  weights: Float[Array, 'H D D'], q: Float[Array, 'B T H D'], k: Float[Array, 'B S K D']
) -> Float[Array, 'B H T S']:
  """q . W k of every pair.

  Args:
    weights: W of each query head, with a row for each dimension of q.
    q: queries.
    k: keys; each of their heads is shared by H / K consecutive query heads.

  Returns:
    float32 or wider.

  Example:
    >>> q, k = jnp.array([[[[1.0, 0.0]]]]), jnp.array([[[[5.0, 6.0]]]])
    >>> similarity(jnp.array([[[1.0, 2.0], [3.0, 4.0]]]), q, k)
    Array([[[[17.]]]], dtype=float32)
  """
  return product(transform(weights, q), k)


@checked
def scheme() -> Scheme:
  """A bilinear form of queries and keys as the logits.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('query',)
  """

  def init(key, dims):
    shape = (dims.num_heads, dims.head_dim, dims.head_dim)
    return {'weights': jax.nn.initializers.glorot_uniform(batch_axis=0)(key, shape, jnp.float32)}

  def query(params, x, at):
    return (transform(params['weights'], x) * x.shape[-1] ** 0.5).astype(x.dtype)

  return Scheme(init=init, query=query, traits=Traits(axes=0))
