"""Additive: a small network of query and key in place of their dot product (Bahdanau's attention).

logit = v_h . tanh(W_h [q; k]) = v_h . tanh(W1_h q + W2_h k), one network per query head h;
unscaled, since tanh is bounded. It replaces the logits: changes of q and k at place 2 (RoPE) have
no effect, in whatever order the schemes are chained. Schemes that come later in the chain add to
these logits at place 3, and every bias is added to them.

Reference: Bahdanau, Cho, Bengio 2015, https://arxiv.org/abs/1409.0473, appendix A.1.2, there for
one head, without bias vectors. W1 q and W2 k are computed once for each token, but no exact form
avoids a tanh for each pair and each of the `width` hidden units: T S width of them for each head.
The compiler adds them up without keeping them. Gradients keep them, for one tile at a time where
attention is computed in tiles. The paper initializes v with 0 and W with a standard deviation of
0.001 (appendix B.1); here both have Glorot's uniform values, W as [2D, width] and v as [width, 1].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from posjax.arguments import Size, checked
from posjax.math.heads import at_least_float32, ungroup
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('bahdanau2015neural',)


def similarity(
  query: Float[Array, 'H D width'],
  key: Float[Array, 'H D width'],
  vector: Float[Array, 'H width'],
  q: Float[Array, 'B T H D'],
  k: Float[Array, 'B S K D'],
) -> Float[Array, 'B H T S']:
  """v . tanh(W1 q + W2 k) of every pair.

  Args:
    query: W1 of each query head, the part of W that multiplies q.
    key: W2 of each query head, the part of W that multiplies k.
    vector: v of each query head.
    q: queries.
    k: keys; each of their heads is shared by H / K consecutive query heads.

  Returns:
    float32 or wider; at most the sum of |v|.

  Example:
    >>> one = jnp.ones((1, 1, 1))
    >>> similarity(one, -one, jnp.array([[2.0]]), jnp.ones((1, 1, 1, 1)), jnp.ones((1, 1, 1, 1)))
    Array([[[[0.]]]], dtype=float32)
  """
  wide = at_least_float32(q, k)
  of_q = jnp.einsum('bthd,hdw->bhtw', q.astype(wide), query)
  of_k = jnp.einsum('bshd,hdw->bhsw', ungroup(k.astype(wide), q.shape[-2]), key)
  # A sum of products, because a product of matrices would need all T S width numbers in memory.
  hidden = jnp.tanh(of_q[:, :, :, None] + of_k[:, :, None])
  return (hidden * vector[None, :, None, None]).sum(-1)


@checked
def scheme(width: Size | None = None) -> Scheme:
  """Scores of a network with one hidden layer as the logits.

  Args:
    width: the number of hidden units; by default the width of a head.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(width=32))
    ('logits',)
  """

  def init(key, dims):
    hidden = dims.head_dim if width is None else width
    make = jax.nn.initializers.glorot_uniform(batch_axis=0)
    matrix_key, vector_key = jax.random.split(key)
    both = make(matrix_key, (dims.num_heads, 2 * dims.head_dim, hidden), jnp.float32)
    vector = make(vector_key, (dims.num_heads, hidden, 1), jnp.float32)[..., 0]
    return {'query': both[:, : dims.head_dim], 'key': both[:, dims.head_dim :], 'vector': vector}

  def logits(params, logits, q, k, q_at, k_at):
    return similarity(params['query'], params['key'], params['vector'], q, k)

  return Scheme(init=init, logits=logits, traits=Traits(axes=0))
