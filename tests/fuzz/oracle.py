"""Attention in float64, written from the formula: what `posjax.attend` must return.

Nothing of `posjax.attention` is used. The places of a scheme are its own functions, which other
tests hold against their papers; all around them is NumPy.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posjax.scheme import Scheme, declares

TOLERANCE = {'float32': 2e-5, 'bfloat16': 3e-2, 'float16': 5e-3}


def attention(
  q: Any,
  k: Any,
  v: Any,
  scheme: Scheme,
  params: Any,
  *,
  q_pos: Any,
  k_pos: Any,
  q_at: Any = None,
  k_at: Any = None,
  q_order: Any = None,
  k_order: Any = None,
  q_segments: Any = None,
  k_segments: Any = None,
  mask: Any = None,
  bias: Any = None,
  causal: bool = False,
  window: Any = None,
  logit_cap: float | None = None,
  sinks: Any = None,
  scale: float | None = None,
  **others: Any,
) -> np.ndarray:
  """The output [*B, T, H, E]; arguments as those of `posjax.attend`."""
  leading = np.shape(q)[:-3]
  rows = int(np.prod(leading))
  q, k, v = (jnp.reshape(x, (rows, *np.shape(x)[-3:])) for x in (q, k, v))
  sides = (q.shape[1], k.shape[1])
  pos = [_by_row(ids, rows, leading, scheme.traits.axes) for ids in (q_pos, k_pos)]
  at = [p if a is None else _flat(a, rows, leading) for p, a in zip(pos, (q_at, k_at), strict=True)]
  orders = [
    p if o is None else _by_row(o, rows, leading)
    for p, o in zip(pos, (q_order, k_order), strict=True)
  ]
  segments = [
    np.ones((rows, n), int) if s is None else _by_row(s, rows, leading)
    for s, n in zip((q_segments, k_segments), sides, strict=True)
  ]
  allowed = _allowed(orders, segments, mask, causal, window, (rows, q.shape[2], *sides))
  scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
  logits = scale * _products(scheme.query(params, q, at[0]), scheme.key(params, k, at[1]))
  if 'S' in scheme.traits.mixes:
    logits = np.where(allowed, logits, -1e30)
  if declares(scheme, 'logits'):
    given = jnp.asarray(logits, jnp.float32)
    logits = np.asarray(scheme.logits(params, given, q, k, *at), np.float64)
  if scheme.bias is not None:
    distance = jnp.asarray(pos[0])[:, :, None] - jnp.asarray(pos[1])[:, None]
    logits = logits + np.moveaxis(np.asarray(scheme.bias(params, distance), np.float64), 0, 1)
  if logit_cap is not None:
    logits = logit_cap * np.tanh(logits / logit_cap)
  if bias is not None:
    whole = (*leading, *logits.shape[1:])
    logits = logits + np.broadcast_to(np.asarray(bias, np.float64), whole).reshape(logits.shape)
  weights = _softmax(np.where(allowed, logits, -np.inf), sinks)
  grouped = np.repeat(np.asarray(v, np.float64), q.shape[2] // v.shape[2], axis=2)
  seen = np.where(allowed.any((1, 2))[..., None, None], grouped, 0)
  out = np.einsum('bhts,bshe->bthe', weights, seen)
  if scheme.values.add is not None:
    out = out + np.asarray(scheme.values.add(params, jnp.asarray(weights, jnp.float32), *at))
  return out.reshape(*leading, *out.shape[1:])


def _by_row(ids, rows, leading, axes=1):
  """Ids [T] or [*B, T] as [rows, T], with all leading axes as one; of n axes, with n at the end."""
  ids = np.asarray(ids)
  rank = 2 if axes > 1 else 1
  if ids.ndim == rank:
    return np.broadcast_to(ids, (rows, *ids.shape))
  tail = ids.shape[-rank:]
  return np.broadcast_to(ids, (*leading, *tail)).reshape(rows, *tail)


def _flat(at, rows, leading):
  return jax.tree.map(
    lambda x: jnp.broadcast_to(x, (*leading, *x.shape[len(leading) :])).reshape(
      rows, *x.shape[len(leading) :]
    ),
    at,
  )


def _allowed(orders, segments, mask, causal, window, shape):
  q_order, k_order = (np.asarray(order)[..., None] for order in orders)
  q_segments, k_segments = segments
  allowed = (q_segments[:, :, None] == k_segments[:, None]) & (k_segments != 0)[:, None]
  if causal or window is not None:
    exact = np.float64 if any(o.dtype.kind == 'f' for o in orders) else np.int64
    back = q_order.astype(exact) - k_order.astype(exact).swapaxes(1, 2)
    allowed = allowed & (back >= 0) if causal else allowed
    pair = isinstance(window, (tuple, list))
    left, right = window if pair else (window and window - 1,) * 2
    allowed = allowed & (back <= left) if left is not None else allowed
    allowed = allowed & (-back <= right) if right is not None else allowed
  allowed = np.broadcast_to(allowed[:, None], shape)
  if mask is not None:
    mask = np.asarray(mask).astype(bool)
    mask = mask if mask.ndim == 2 else mask.reshape(-1, *mask.shape[-3:])
    allowed = allowed & mask
  return allowed


def _products(q, k):
  kind = np.complex128 if jnp.iscomplexobj(q) or jnp.iscomplexobj(k) else np.float64
  q, k = (np.asarray(x.astype(jnp.float32) if kind is np.float64 else x, kind) for x in (q, k))
  k = np.repeat(k, q.shape[2] // k.shape[2], axis=2)
  return np.einsum('bthd,bshd->bhts', q, k.conj())


def _softmax(logits, sinks):
  top = logits.max(-1, keepdims=True, initial=-np.inf)
  if sinks is not None:
    top = np.maximum(top, np.asarray(sinks, np.float64)[:, None, None])
  top = np.where(np.isfinite(top), top, 0)
  weights = np.exp(logits - top)
  total = weights.sum(-1, keepdims=True)
  if sinks is not None:
    total = total + np.exp(np.asarray(sinks, np.float64)[:, None, None] - top)
  return weights / np.where(total == 0, 1, total)


def difference(out: Any, expected: np.ndarray, what: str = 'the float64 reference') -> str:
  """What is wrong with an output; '' if it agrees, to what its dtype resolves."""
  if tuple(out.shape) != expected.shape:
    return f'the shape is {tuple(out.shape)}, and should be {expected.shape}'
  tolerance = TOLERANCE.get(str(out.dtype))
  if tolerance is None:
    return f'the output is {out.dtype}'
  out = np.asarray(out.astype(jnp.float32), np.float64)
  if out.size == 0:
    return ''
  if not np.isfinite(expected).all():
    return '' if np.array_equal(np.isfinite(out), np.isfinite(expected)) else f'differs from {what}'
  if not np.isfinite(out).all():
    return f'the output has {(~np.isfinite(out)).sum()} numbers that are not finite'
  off = abs(out - expected).max() / max(abs(expected).max(), 1e-3)
  return '' if off <= tolerance else f'differs from {what} by {off:.1e} of its largest number'
