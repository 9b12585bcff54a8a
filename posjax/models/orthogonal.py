"""Self-attention whose queries and keys come from one orthogonal matrix, so that W_Q^T W_K = I.

A blog post asks for it, so that the products of sinusoids, which projections ruin, survive:
`tests/contract/source_texts_test.py` shows what such matrices restore and what none can. Within one
head, W_Q^T W_K can be I only where the head is as wide as the model ('heads'). Where the heads cut
one matrix into pieces ('joint'), no head keeps the products, but their sum over the heads does.

The matrix is parametrized, W = base (I + A)^-1 (I - A) with A = skew - skew^T (Cayley), so that it
is orthogonal whatever an optimizer, weight decay or a mean of checkpoints make of `skew`, and
training knows nothing of it. A projection after each step would reach into training and into the
optimizer's moments, and the mean of two orthogonal matrices is none. Cayley's form costs one linear
solve; it reaches every rotation of the base but those with an eigenvalue of exactly -1, which it
approaches. The base is drawn once, and not trained.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Inexact

from posjax.keys import check_value
from posjax.nnx import Constant

QueryKey = Literal['free', 'heads', 'joint']


class Orthogonal(nnx.Module):
  """The heads of W x; for complex x, of both parts alike.

  Args:
    width: M.
    num_heads: H.
    joint: whether the heads are the rows of one matrix, M / H for each; otherwise each has a matrix
      of its own, and is as wide as the model.
    rngs: a stream for `params`.
  """

  def __init__(self, width: int, num_heads: int, joint: bool, *, rngs: nnx.Rngs):
    self.num_heads, self.joint = num_heads, joint
    count = 1 if joint else num_heads
    keys = jax.random.split(rngs.params(), count)
    draw = lambda key: jax.nn.initializers.orthogonal()(key, (width, width), jnp.float32)
    self.base = Constant(jax.vmap(draw)(keys))
    self.skew = nnx.Param(jnp.zeros((count, width, width)))

  def matrix(self) -> Float[Array, 'N M M']:
    """W of each head, or the one of all heads."""
    skew = self.skew[...]
    a, one = skew - skew.swapaxes(1, 2), jnp.eye(skew.shape[-1], dtype=skew.dtype)[None]
    return self.base[...] @ jnp.linalg.solve(one + a, one - a)

  def __call__(self, x: Inexact[Array, 'B T M']) -> Inexact[Array, 'B T H D']:
    """The heads of each token."""
    heads = jnp.einsum('btm,ndm->btnd', x, self.matrix().astype(x.dtype))
    return heads.reshape(*x.shape[:2], self.num_heads, -1)


def head_dim(query_key: QueryKey, width: int, num_heads: int) -> int:
  """D of self-attention: M where each head has a square matrix, otherwise M / H."""
  return width if query_key == 'heads' else width // num_heads


def tie(attention: Any, query_key: QueryKey, rngs: nnx.Rngs) -> None:
  """Puts one orthogonal matrix in the place of a layer's projections of queries and keys.

  Args:
    attention: a `posjax.nnx.Attention`, real or complex, whose heads have the width of `head_dim`.
    query_key: 'free' leaves the layer as it is.
    rngs: a stream for `params`.

  Raises:
    TypeError, ValueError: if there is no such name.
    ValueError: if there are fewer key heads than heads, whose queries would then all be equal.
  """
  check_value('model.query_key', QueryKey, query_key)
  if query_key == 'free':
    return
  dims = attention.layer.dims
  if dims.num_kv_heads != dims.num_heads:
    raise ValueError(
      f'model.query_key={query_key!r} needs a key head for each of the {dims.num_heads} heads, but '
      f'got num_kv_heads={dims.num_kv_heads}.'
    )
  matrix = Orthogonal(dims.width, dims.num_heads, query_key == 'joint', rngs=rngs)
  attention.query = attention.key = matrix
