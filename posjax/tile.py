"""The places 3 and 4 of a scheme on one tile: what every way of computing `attend` shares.

A tile is some queries and some keys with all that travels with them (`border.Side`): the dense
reference has one, the engine many. B batch, T queries, S keys of the tile, H heads.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, UInt32

from posjax.border import Rules, Side
from posjax.heads import product
from posjax.scheme import Ids, Params, PRNGKey, Scheme, declares

UNSEEN = -1e30  # the logit of a pair that must not meet: finite, so that gradients are too


def content(q: Side, k: Side, rules: Rules) -> Inexact[Array, 'B H T S']:
  """The logits of place 2: scaled products of the placed heads."""
  return product(q.placed, k.placed) * rules.scale


def scores(
  scheme: Scheme,
  params: Params,
  logits: Inexact[Array, 'B H T S'],
  q: Side,
  k: Side,
  rules: Rules,
  seen: Bool[Array, 'b h T S'],
  by_distance: Float[Array, 'bias_b bias_h T S'] | None = None,
) -> Float[Array, 'B H T S']:
  """What place 3 and the rules make of the logits; those of unseen pairs at -1e30.

  Args:
    scheme: any scheme.
    params: its parameters.
    logits: of place 2, see `content`.
    q: the queries.
    k: the keys.
    rules: the logit cap.
    seen: which pairs may meet.
    by_distance: the scheme's bias; None where it has none.
  """
  if 'S' in scheme.whole:
    logits = jnp.where(seen, logits, UNSEEN)
  if declares(scheme, 'logits'):
    logits = scheme.logits(params, logits, q.raw, k.raw, q.at, k.at)
  if by_distance is not None:
    logits = logits + by_distance
  if jnp.iscomplexobj(logits):
    raise ValueError('The logits of complex q and k are complex, and no scheme makes them real.')
  if rules.logit_cap is not None:
    logits = jnp.where(seen, logits, 0)  # a table may give NaN to pairs that do not meet
    logits = rules.logit_cap * jnp.tanh(logits / rules.logit_cap)
  return jnp.where(seen, logits, UNSEEN)


def bias(
  of: Callable[..., Array], params: Params, q_pos: Ids, k_pos: Ids
) -> Float[Array, 'b H T S']:
  """A scheme's bias at every pair's distance, positive where the key lies back.

  Raises:
    ValueError: if it does not return one number for each head and pair.
  """
  distance = q_pos[:, :, None] - k_pos[:, None]
  per_head = of(params, distance)
  heads, pairs = per_head.shape[:1], (distance.shape[0], q_pos.shape[1], k_pos.shape[1])
  if per_head.shape != heads + pairs:
    expected = f'[H, {", ".join(map(str, pairs))}]'
    raise ValueError(f'bias must return {expected}, heads first, but got {per_head.shape}.')
  return jnp.moveaxis(per_head, 0, 1)


def mix(scheme, params, weights, v, q: Side, k: Side) -> Inexact[Array, 'B T H E']:
  """The weighted sum of the values, and what place 4 adds. Linear in `weights`."""
  batch, heads, queries, keys = weights.shape
  kv_heads = v.shape[-2]
  grouped = weights.reshape(batch, kv_heads, heads // kv_heads, queries, keys)
  out = jnp.einsum('bkgts,bske->btkge', grouped, v.astype(_wide(v)))
  out = out.reshape(batch, queries, heads, -1)
  if scheme.values:
    out = out + scheme.values(params, weights, q.at, k.at)  # place 4
  return out


def visible(
  q: Side, k: Side, rules: Rules, mask: Bool[Array, 'mask_b mask_h T S'] | None
) -> Bool[Array, 'b h T S']:
  """Which pairs may meet. From order and segments, never from what a scheme did to the ids."""
  seen = (q.segments[:, :, None] == k.segments[:, None]) & (k.segments != 0)[:, None]
  back = q.order[:, :, None] - k.order[:, None]
  if rules.causal:
    seen = seen & (back >= 0)
  if rules.window is not None:
    seen = seen & (abs(back) < rules.window)
  seen = seen[:, None]
  return seen if mask is None else seen & mask


def numbered(batch: int, heads: int) -> UInt32[Array, 'B H']:
  """A number for each head of each row: `kept`'s."""
  return jnp.arange(batch * heads, dtype=jnp.uint32).reshape(batch, heads)


def kept(
  key: PRNGKey, rate: float, numbers: UInt32[Array, 'B H'], q_index: Array, k_index: Array
) -> Float[Array, 'B H T S']:
  """Dropout's factors, 0 or 1/(1 - rate): a function of row, head, query and key alone.

  A counter-based hash, so that a tile of the mask is the mask of a tile.
  """
  seeds = jax.random.bits(key, (2,), jnp.uint32)
  row = numbers[..., None, None]
  x = _scramble(_scramble(row ^ seeds[0]) + q_index.astype(jnp.uint32)[None, None, :, None])
  x = _scramble(x ^ _scramble(k_index.astype(jnp.uint32) + seeds[1])[None, None, None])
  return (x >= jnp.uint32(int(rate * 2**32))) / (1 - rate)


def _scramble(x: Array) -> Array:
  """A bijection of uint32 that flips each bit with probability one half (murmur3's finalizer)."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def _wide(*arrays: Array) -> Any:
  """The dtype to compute in: float32, or what is wider."""
  return jnp.result_type(*arrays, jnp.float32)
