"""`attend`: the one function that calls a scheme's places. The dense reference shows each.

q [B, T, H, D], k and v [B, S, K, D], ids [B, T] and [B, S], logits [B, H, T, S]; B stands for any
leading axes, and K divides H. `True` in a mask means "may attend". A query that sees nothing gets
zeros, and gives zero gradients.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int, Num

from posjax import border
from posjax.border import Rules, Side
from posjax.heads import product
from posjax.scheme import At, Ids, Params, PRNGKey, Scheme

_UNSEEN = -1e30  # the logit of a pair that must not meet: finite, so that gradients are too


def attend(
  q: Inexact[Array, '*B T H D'],
  k: Inexact[Array, '*B S K D'],
  v: Inexact[Array, '*B S K E'],
  scheme: Scheme,
  params: Params,
  *,
  q_pos: Ids,
  k_pos: Ids,
  q_at: At = None,
  k_at: At = None,
  q_order: Num[Array, '...'] | None = None,
  k_order: Num[Array, '...'] | None = None,
  q_segments: Int[Array, '...'] | None = None,
  k_segments: Int[Array, '...'] | None = None,
  mask: Bool[Array, '...'] | None = None,
  causal: bool = False,
  window: int | None = None,
  logit_cap: float | None = None,
  sinks: Float[Array, ' H'] | None = None,
  scale: float | None = None,
  dropout_rate: float = 0.0,
  dropout_key: PRNGKey | None = None,
  implementation: str | None = None,
) -> Inexact[Array, '*B T H E']:
  """Attention in which `scheme` says where position enters.

  softmax(cap(scale * query(q) . key(k), changed by logits, + bias)) v, + values, in float32.

  Ids, orders and segments may lack the batch axes: they then hold for every row.

  Args:
    q: queries.
    k: keys; K heads, each shared by H / K consecutive query heads.
    v: values.
    scheme: a `Scheme`; `Scheme()` is attention without positions.
    params: the scheme's parameters, as from `posjax.init` or its `prepare`.
    q_pos: ids of the queries, [*B, T] or [T] (n axes: [*B, T, n] or [T, n]).
    k_pos: ids of the keys.
    q_at: what the scheme's `prepare` returned for the queries; by default the ids.
    k_at: the same for the keys.
    q_order: index of each query in its stream, for `causal` and `window`; by default the ids,
      where the scheme leaves them one per token and unchanged.
    k_order: the same for the keys.
    q_segments: document of each query. Tokens meet only inside one document; 0 is padding,
      which sees nothing and is not seen.
    k_segments: the same for the keys.
    mask: [*B, H or 1, T, S] or [T, S]; True may attend.
    causal: whether a query sees only keys whose order is not above its own.
    window: how many tokens back a query sees, itself included; and, unless causal, forward.
    logit_cap: bounds what enters the softmax: cap * tanh(logits / cap).
    sinks: one logit per head that takes its share of the softmax and gives no value.
    scale: factor of q . k; by default 1/sqrt(D) of the incoming width.
    dropout_rate: share of the weights that are dropped, in [0, 1).
    dropout_key: random key; dropout needs one.
    implementation: how to compute it, never what: 'dense', or None for the best that there is.

  Returns:
    [*B, T, H, E], in the dtype of `v`.

  Raises:
    ValueError: if shapes do not fit, or an argument lacks what it needs.
    TypeError: if the mask is not boolean, or ids are neither integers nor float32.

  Example:
    >>> x = jax.random.normal(jax.random.key(0), (1, 3, 2, 4))
    >>> pos = jnp.arange(3)
    >>> attend(x, x, x, Scheme(), {}, q_pos=pos, k_pos=pos, causal=True).shape
    (1, 3, 2, 4)
  """
  if implementation not in (None, 'dense'):
    raise ValueError(f"The implementation must be None or 'dense', but got {implementation!r}.")
  border.check_heads(q, k, v)
  border.check_scheme(scheme, params, q_at, k_at)
  if causal or window is not None:
    border.check_order(scheme, q, q_pos, k_pos, q_order, k_order)
  border.check_segments(q_segments, k_segments)
  border.check_sinks(sinks, q.shape[-2])
  rules = border.rules(q, scale, causal, window, logit_cap, dropout_rate, dropout_key)
  q_side = border.side('q', q, scheme, scheme.query, params, q_pos, q_at, q_order, q_segments)
  k_side = border.side('k', k, scheme, scheme.key, params, k_pos, k_at, k_order, k_segments)
  if mask is not None:
    mask = border.mask(mask, q, k)
  flat = v.reshape(k_side.raw.shape[:-1] + v.shape[-1:])
  out = dense(scheme, params, q_side, k_side, flat, rules, mask, sinks, dropout_key)
  return out.reshape(*q.shape[:-1], v.shape[-1]).astype(v.dtype)


def dense(
  scheme: Scheme,
  params: Params,
  q: Side,
  k: Side,
  v: Inexact[Array, 'B S K E'],
  rules: Rules,
  mask: Bool[Array, 'b h T S'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
  dropout_key: PRNGKey | None = None,
) -> Inexact[Array, 'B T H E']:
  """The reference: every logit at once. `Side`s hold the result of place 2."""
  seen = visible(q, k, rules, mask)
  logits = scores(scheme, params, q, k, rules, seen)
  weights = jnp.where(seen, _softmax(logits, sinks), 0)
  if rules.dropout_rate:
    heads = (logits.shape[0], logits.shape[1])
    weights *= kept(dropout_key, rules.dropout_rate, heads, q.index, k.index)
  return mix(scheme, params, weights, v, q, k)


def scores(scheme, params, q: Side, k: Side, rules: Rules, seen) -> Float[Array, 'B H T S']:
  """The logits of a tile, unseen pairs at -1e30."""
  logits = product(q.placed, k.placed) * rules.scale  # place 2 is in `placed`
  if 'S' in scheme.whole:
    logits = jnp.where(seen, logits, _UNSEEN)
  logits = scheme.logits(params, logits, q.raw, k.raw, q.at, k.at)  # place 3
  if scheme.bias is not None:
    logits = logits + bias(scheme.bias, params, q.pos, k.pos)  # place 3, by distance alone
  if jnp.iscomplexobj(logits):
    raise ValueError('The logits of complex q and k are complex, and no scheme makes them real.')
  if rules.logit_cap is not None:
    logits = jnp.where(seen, logits, 0)  # a table may give NaN to pairs that do not meet
    logits = rules.logit_cap * jnp.tanh(logits / rules.logit_cap)
  return jnp.where(seen, logits, _UNSEEN)


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


def kept(
  key: PRNGKey, rate: float, heads: tuple[int, int], q_index: Array, k_index: Array
) -> Float[Array, 'B H T S']:
  """Dropout's factors, 0 or 1/(1 - rate): a function of row, head, query and key alone.

  A counter-based hash, so that a tile of the mask is the mask of a tile.
  """
  seeds = jax.random.bits(key, (2,), jnp.uint32)
  row = jnp.arange(heads[0] * heads[1], dtype=jnp.uint32).reshape(*heads, 1, 1)
  x = _scramble(_scramble(row ^ seeds[0]) + q_index.astype(jnp.uint32)[None, None, :, None])
  x = _scramble(x ^ _scramble(k_index.astype(jnp.uint32) + seeds[1])[None, None, None])
  return (x >= jnp.uint32(int(rate * 2**32))) / (1 - rate)


def _scramble(x: Array) -> Array:
  """A bijection of uint32 that flips each bit with probability one half (murmur3's finalizer)."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def _softmax(logits, sinks):
  if sinks is None:
    return jax.nn.softmax(logits, axis=-1)
  sink = jnp.broadcast_to(sinks.astype(logits.dtype)[None, :, None, None], (*logits.shape[:3], 1))
  return jax.nn.softmax(jnp.concatenate([logits, sink], axis=-1), axis=-1)[..., :-1]


def _wide(*arrays: Array) -> Any:
  """The dtype to compute in: float32, or what is wider."""
  return jnp.result_type(*arrays, jnp.float32)
