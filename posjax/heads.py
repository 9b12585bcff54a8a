"""Products of heads, for `attend` and for the schemes that replace or add to its logits.

q [B, T, H, D], k [B, S, K, D], logits [B, H, T, S]. K divides H: each key head is shared by H / K
consecutive query heads.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact, Int

from posjax.scheme import Ids


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
  return jnp.take_along_axis(scores, index[:, None], axis=-1)


def sums(
  pairs: Inexact[Array, 'B H T S'], index: Int[Array, 'B T S'], rows: int
) -> Inexact[Array, 'B H T rows']:
  """For each query, what its pairs of each index, of 0 .. rows - 1, add up to: `pick` transposed.

  Example:
    >>> sums(jnp.array([[[[5.0, 6.0, 7.0]]]]), jnp.array([[[2, 2, 0]]]), rows=3)
    Array([[[[ 7.,  0., 11.]]]], dtype=float32)
  """
  query = lambda pairs, index: jax.ops.segment_sum(pairs, index, rows)  # [S, H] and [S]

  by_key = jnp.moveaxis(pairs, 1, -1)
  return jnp.moveaxis(jax.vmap(jax.vmap(query))(by_key, index), -1, 1)


def by_rows(
  index: Callable[[Ids, Ids], Int[Array, 'B T S']],
  q_pos: Ids,
  k_pos: Ids,
  one: Callable[..., Array],
  many: Callable[..., Array],
  *args: Any,
) -> Array:
  """`one(row, *args)` if all pairs have the same row of a table, else `many(rows, *args)`.

  Most tiles of a long text are farther from the diagonal than a table has distances, so that all
  their pairs have its last row. Only for attention in tiles: derivatives are of first order.

  Args:
    index: the row of each pair, from ids [B, T] and [B, S]; it must be monotonic in the distance of
      a pair, so that the pairs of the least and the largest distance bound all others.
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    one: computes the result from one row, an integer without axes.
    many: computes the same from the row of each pair, [B, T, S].
    *args: arrays that both compute with, and with respect to which they are differentiated.

  Example:
    >>> sign = lambda q_pos, k_pos: jnp.sign(q_pos[:, :, None] - k_pos[:, None])
    >>> q_pos, k_pos = jnp.arange(64, 128)[None], jnp.arange(64)[None]
    >>> by_rows(sign, q_pos, k_pos, lambda row: row, lambda rows: rows.sum())
    Array(1, dtype=int32)
  """
  least = lambda pos: pos.min(axis=1, keepdims=True)
  most = lambda pos: pos.max(axis=1, keepdims=True)

  def chosen(q_pos, k_pos, *args):
    ends = index(most(q_pos), least(k_pos)), index(least(q_pos), most(k_pos))
    row = ends[0][0, 0, 0]
    of_one = lambda *args: one(row, *args)
    of_many = lambda *args: many(index(q_pos, k_pos), *args)
    return lax.cond((ends[0] == row).all() & (ends[1] == row).all(), of_one, of_many, *args)

  # Recomputed in the backward pass from `args`, of which the branches would keep copies otherwise.
  return jax.checkpoint(chosen, prevent_cse=False)(q_pos, k_pos, *args)
