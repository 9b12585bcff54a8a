"""Which pairs of tokens may attend, and which of their weights dropout keeps.

Both are functions of each token's own numbers, so that the mask of a tile is a tile of the mask.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from posjax.attention.inputs import Rules, Side
from posjax.math.differences import is_below
from posjax.scheme import PRNGKey


def visible(
  q: Side, k: Side, rules: Rules, mask: Bool[Array, 'mask_b mask_h T S'] | None
) -> Bool[Array, 'b h T S']:
  """Which queries may attend to which keys.

  Decided from order and segments, never from the ids, which a scheme may have changed.

  Args:
    q: the queries.
    k: the keys.
    rules: causality and the window.
    mask: the caller's own mask, True where a pair may attend.
  """
  allowed = (q.segments[:, :, None] == k.segments[:, None]) & (k.segments != 0)[:, None]
  allowed = within_reach(q.order[:, :, None], k.order[:, None], rules, allowed)[:, None]
  return allowed if mask is None else allowed & mask


def within_reach(q_order: Array, k_order: Array, rules: Rules, allowed: Array) -> Array:
  """The pairs of `allowed` that causality and the window let attend, for any orders.

  Args:
    q_order: order of the queries, with the axes to broadcast over pairs.
    k_order: order of the keys, likewise.
    rules: causality and the window.
    allowed: the pairs that all else lets attend.
  """
  if rules.causal:
    allowed = allowed & (q_order >= k_order)
  before, after = rules.window or (None, None)
  if before is not None:
    allowed = allowed & is_below(q_order, k_order, before + 1)
  if after is not None:
    allowed = allowed & is_below(k_order, q_order, after + 1)
  return allowed


def dropout_rows(
  rows: Int[Array, ' B'], heads: int, broadcast: bool = False
) -> UInt32[Array, 'B H']:
  """A number for each head of each row of the batch, for `dropout_mask`; equal ones drop alike.

  Args:
    rows: index of each row in the batch.
    heads: H.
    broadcast: whether all heads of all rows drop alike.
  """
  if broadcast:
    return jnp.zeros((len(rows), heads), jnp.uint32)
  numbers = jnp.arange(heads, dtype=jnp.uint32)
  return rows.astype(jnp.uint32)[:, None] * jnp.uint32(heads) + numbers[None]


def dropout_mask(
  key: PRNGKey, rate: float, rows: UInt32[Array, 'B H'], q_index: Array, k_index: Array
) -> Float[Array, 'B H T S']:
  """The factor of each weight: 0 if it is dropped, else 1 / (1 - rate).

  A hash of the row, the head, the query and the key decides, so that every way to cut attention
  into tiles drops the same weights.

  Args:
    key: random key.
    rate: share of the weights to drop, in [0, 1).
    rows: of `dropout_rows`.
    q_index: index of each query in its array, [T].
    k_index: index of each key in its array, [S].
  """
  seeds = jax.random.bits(key, (2,), jnp.uint32)
  row = rows[..., None, None]
  x = _scramble(_scramble(row ^ seeds[0]) + q_index.astype(jnp.uint32)[None, None, :, None])
  x = _scramble(x ^ _scramble(k_index.astype(jnp.uint32) + seeds[1])[None, None, None])
  return (x >= jnp.uint32(int(rate * 2**32))) / (1 - rate)


def _scramble(x: Array) -> Array:
  """A bijection of uint32 that flips each bit with probability one half (murmur3's finalizer)."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
