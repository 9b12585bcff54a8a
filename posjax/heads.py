"""Products of heads, for `attend` and for the schemes that replace or add to its logits.

q [B, T, H, D], k [B, S, K, D], logits [B, H, T, S]. K divides H: each key head is shared by H / K
consecutive query heads.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact, Int

_WORTH = 2**12  # pairs below which nothing is saved where all are alike


def product(
  q: Inexact[Array, 'B T H D'], k: Inexact[Array, 'B S K D']
) -> Inexact[Array, 'B H T S']:
  """q . k for grouped heads, unscaled; complex k conjugated.

  Returns:
    float32 or what is wider (complex64 for complex heads).

  Example:
    >>> product(jnp.ones((1, 1, 2, 3)), 2 * jnp.ones((1, 1, 1, 3)))
    Array([[[[6.]],
    <BLANKLINE>
            [[6.]]]], dtype=float32)
  """
  batch, queries, heads, width = q.shape
  kv_heads = k.shape[-2]
  grouped = q.reshape(batch, queries, kv_heads, heads // kv_heads, width)
  k = k.conj() if jnp.iscomplexobj(k) else k
  wide = jnp.result_type(q, k, jnp.float32)
  logits = jnp.einsum('btkgd,bskd->bkgts', grouped, k, preferred_element_type=wide)
  return logits.reshape(batch, heads, queries, -1)


def ungroup(k: Inexact[Array, 'B S K D'], num_heads: int) -> Inexact[Array, 'B S H D']:
  """One key head for each query head, shared ones repeated.

  Example:
    >>> ungroup(jnp.array([[[[1.0], [2.0]]]]), 4)[0, 0, :, 0]
    Array([1., 1., 2., 2.], dtype=float32)
  """
  return jnp.repeat(k, num_heads // k.shape[-2], axis=-2)


def pick(
  scores: Inexact[Array, 'B H T N'], index: Int[Array, 'B T S']
) -> Inexact[Array, 'B H T S']:
  """scores[b, h, t, index[b, t, s]]: each pair's entry of a table that was multiplied by q first.

  What a table of N vectors per distance adds to the logits, without a vector per pair.

  Example:
    >>> pick(jnp.array([[[[5.0, 6.0, 7.0]]]]), jnp.array([[[2, 2, 0]]]))
    Array([[[[7., 7., 5.]]]], dtype=float32)
  """
  every = lambda scores, index: jnp.take_along_axis(scores, index[:, None], axis=-1)

  def one(scores, index):
    column = lax.dynamic_slice_in_dim(scores, index[0, 0, 0], 1, axis=-1)
    return jnp.broadcast_to(column, (*scores.shape[:3], index.shape[-1]))

  return _where_alike(index, one, every, scores)


def sums(
  pairs: Inexact[Array, 'B H T S'], index: Int[Array, 'B T S'], rows: int
) -> Inexact[Array, 'B H T rows']:
  """For each query, what its pairs of each index, of 0 .. rows - 1, add up to: `pick` transposed.

  Example:
    >>> sums(jnp.array([[[[5.0, 6.0, 7.0]]]]), jnp.array([[[2, 2, 0]]]), rows=3)
    Array([[[[ 7.,  0., 11.]]]], dtype=float32)
  """
  query = lambda pairs, index: jax.ops.segment_sum(pairs, index, rows)  # [S, H] and [S]

  def every(pairs, index):
    return jnp.moveaxis(jax.vmap(jax.vmap(query))(jnp.moveaxis(pairs, 1, -1), index), -1, 1)

  def one(pairs, index):
    here = jnp.arange(rows) == index[0, 0, 0]
    return jnp.where(here, pairs.sum(-1, keepdims=True), 0)

  return _where_alike(index, one, every, pairs)


def _where_alike(
  index: Int[Array, 'B T S'], one: Callable[..., Array], every: Callable[..., Array], x: Array
) -> Array:
  """`one(x, index)` where all pairs have the same index, else `every(x, index)`.

  All have in most tiles of a long text, whose tokens are farther apart than a table has distances.
  """
  if index.size < _WORTH:
    return every(x, index)
  return lax.cond(index.min() == index.max(), one, every, x, index)
