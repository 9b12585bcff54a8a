"""`attend`, the one function of attention, and its dense reference. `posjax.tile` has the places.

q [B, T, H, D], k and v [B, S, K, D], ids [B, T] and [B, S], logits [B, H, T, S]; B stands for any
leading axes, and K divides H. `True` in a mask means "may attend". A query that sees nothing gets
zeros, and gives zero gradients.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int, Num

from posjax import border, tile
from posjax.border import Rules, Side
from posjax.kernels import blockwise, cudnn, fused
from posjax.scheme import At, Ids, Params, PRNGKey, Scheme


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
    scale: factor of q . k; by default 1/sqrt(D) of the incoming width. What a scheme adds to it
      at `logits` (`shaw`), or puts in its place (`xpos`), has a factor of its own.
    dropout_rate: share of the weights that are dropped, in [0, 1).
    dropout_key: random key; dropout needs one.
    implementation: how to compute it, never what. 'dense': all logits at once. 'blockwise': in
      tiles, on any device, with memory linear in the length. 'pallas': in fused kernels, on TPUs
      and Hopper GPUs; 'cudnn': by cuDNN; both in tiles for what they cannot do, and
      `kernels.fused.chosen` and `kernels.cudnn.refusal` say why. None: what `chosen` says.

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
  if implementation is not None and implementation not in _WAYS:
    raise ValueError(
      f'The implementation must be None or one of {sorted(_WAYS)}, but got {implementation!r}.'
    )
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
  found = chosen(q.shape[-3], k.shape[-3]) if implementation is None else implementation
  out = _WAYS[found](scheme, params, q_side, k_side, flat, rules, mask, sinks, dropout_key)
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
  seen = tile.visible(q, k, rules, mask)
  by_distance = tile.bias(scheme.bias, params, q.pos, k.pos) if scheme.bias else None
  logits = tile.content(q, k, rules)
  logits = tile.scores(scheme, params, logits, q, k, rules, seen, by_distance)
  weights = jnp.where(seen, _softmax(logits, sinks), 0)
  if rules.dropout_rate:
    numbers = tile.numbered(*logits.shape[:2])
    weights *= tile.kept(dropout_key, rules.dropout_rate, numbers, q.index, k.index)
  return tile.mix(scheme, params, weights, v, q, k)


def _softmax(logits, sinks):
  if sinks is None:
    return jax.nn.softmax(logits, axis=-1)
  sink = jnp.broadcast_to(sinks.astype(logits.dtype)[None, :, None, None], (*logits.shape[:3], 1))
  return jax.nn.softmax(jnp.concatenate([logits, sink], axis=-1), axis=-1)[..., :-1]


def chosen(queries: int, keys: int, platform: str | None = None) -> str:
  """What `implementation=None` takes: 'dense' for few pairs, else 'blockwise'.

  Few are 16 queries, for any number of keys; or, for each head, 2^15 pairs on a CPU, where tiles
  were measured to be faster from 256 tokens on (RESULTS.md), and 2^18 on what has not been
  measured. 'cudnn' and 'pallas' are taken only if asked for, until they have been. Beside time and
  memory, the ways differ in one thing: 'dense' alone has forward-mode derivatives (`jax.jvp`).

  Args:
    queries: T.
    keys: S.
    platform: 'cpu', 'gpu' or 'tpu'; by default what JAX runs on.

  Example:
    >>> chosen(128, 128, 'cpu'), chosen(1, 100_000, 'cpu'), chosen(256, 256, 'cpu')
    ('dense', 'dense', 'blockwise')
  """
  few = 2**15 if (platform or jax.default_backend()) == 'cpu' else 2**18
  return 'dense' if queries <= 16 or queries * keys <= few else 'blockwise'


_WAYS = {
  'dense': dense,
  'blockwise': blockwise.attend,
  'cudnn': cudnn.attend,
  'pallas': fused.attend,
}
