"""Trained tables with one row for each offset between a query and a key.

The products of a query with all rows are computed first, and then looked up for each pair; weights
of equal rows are added up first, and then multiplied. So no vector is held for a pair, as in
section 3.3 of Shaw, Uszkoreit, Vaswani 2018, https://arxiv.org/abs/1803.02155.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact, Int, Num

from posjax.math.checks import check_integer_ids
from posjax.math.differences import saturating_subtract
from posjax.math.heads import at_least_float32
from posjax.scheme import Ids


def index(
  q_pos: Num[Array, '*B T'], k_pos: Num[Array, '*B S'], max_distance: int
) -> Int[Array, '*B T S']:
  """The row of a table for each pair: clip(k_pos - q_pos, -k, k) + k, in 0 .. 2k.

  Args:
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    max_distance: k, in tokens: larger offsets are taken for it.

  Raises:
    TypeError: if ids are not integers.

  Example:
    >>> index(jnp.arange(3), jnp.arange(3), 1)
    Array([[1, 2, 2],
           [0, 1, 2],
           [0, 0, 1]], dtype=int32)
  """
  for pos in (q_pos, k_pos):
    check_integer_ids(pos, 'A table of offsets needs')
  # The paper's offset is k_pos - q_pos, the negative of our distance.
  offset = saturating_subtract(jnp.expand_dims(k_pos, -2), jnp.expand_dims(q_pos, -1))
  return jnp.clip(offset, -max_distance, max_distance) + max_distance


def key_logits(
  table: Float[Array, '*H N D'], q: Float[Array, 'B T H D'], index: Int[Array, 'B T S']
) -> Float[Array, 'B H T S']:
  """q . table[index] / sqrt(D): the second term of Shaw's eq. 5.

  Args:
    table: one vector per offset: [N, D] for all heads, or [H, N, D].
    q: queries, as projected.
    index: row of the table for each pair.

  Returns:
    float32, or what is wider.

  Example:
    >>> table = jnp.array([[1.0], [2.0], [3.0]])
    >>> key_logits(table, jnp.ones((1, 1, 1, 1)), jnp.array([[[2, 0]]]))
    Array([[[[3., 1.]]]], dtype=float32)
  """
  return pick(by_offset(table, q), index)


def value_sums(
  table: Float[Array, '*H N D'], weights: Float[Array, 'B H T S'], index: Int[Array, 'B T S']
) -> Float[Array, 'B T H D']:
  """The sum over the keys of weights table[index]: the second term of Shaw's eq. 3.

  Args:
    table: one vector per offset: [N, D] for all heads, or [H, N, D].
    weights: of the attention.
    index: row of the table for each pair.

  Example:
    >>> table = jnp.array([[1.0], [2.0], [3.0]])
    >>> value_sums(table, jnp.array([[[[0.5, 0.5]]]]), jnp.array([[[2, 0]]]))
    Array([[[[2.]]]], dtype=float32)
  """
  return weighted_rows(table, row_sums(weights, index, table.shape[-2]))


def by_offset(table: Float[Array, '*H N D'], q: Float[Array, 'B T H D']) -> Float[Array, 'B H T N']:
  """q . table / sqrt(D), for each row of the table.

  Example:
    >>> by_offset(jnp.array([[1.0], [2.0]]), jnp.ones((1, 1, 1, 1)))
    Array([[[[1., 2.]]]], dtype=float32)
  """
  heads, wide = 'h' * (table.ndim - 2), at_least_float32(q, table)
  products = jnp.einsum(f'bthd,{heads}nd->bhtn', q, table, preferred_element_type=wide)
  return products * q.shape[-1] ** -0.5


def weighted_rows(
  table: Float[Array, '*H N D'], weights: Float[Array, 'B H T N']
) -> Float[Array, 'B T H D']:
  """The sum of the rows of the table, each with a weight.

  Example:
    >>> weighted_rows(jnp.array([[1.0], [2.0]]), jnp.array([[[[0.5, 0.25]]]]))
    Array([[[[1.]]]], dtype=float32)
  """
  heads = 'h' * (table.ndim - 2)
  return jnp.einsum(f'bhtn,{heads}nd->bthd', weights, table)


def pick(
  scores: Inexact[Array, 'B H T N'], index: Int[Array, 'B T S']
) -> Inexact[Array, 'B H T S']:
  """scores[b, h, t, index[b, t, s]]: for each pair, one of the products of its query with a table.

  So a table of N vectors is added to the logits without a vector for each pair.

  Example:
    >>> pick(jnp.array([[[[5.0, 6.0, 7.0]]]]), jnp.array([[[2, 2, 0]]]))
    Array([[[[7., 7., 5.]]]], dtype=float32)
  """
  return jnp.take_along_axis(scores, index[:, None], axis=-1)


def row_sums(
  pairs: Inexact[Array, 'B H T S'], index: Int[Array, 'B T S'], rows: int
) -> Inexact[Array, 'B H T rows']:
  """The sum over each query's pairs of each row of a table: the transpose of `pick`.

  Example:
    >>> row_sums(jnp.array([[[[5.0, 6.0, 7.0]]]]), jnp.array([[[2, 2, 0]]]), rows=3)
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
