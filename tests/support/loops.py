"""Attention as loops over float64 numbers, written from the equations: nothing of posjax."""

import numpy as np


def attention(logits, seen, v, sinks=None, cap=None, factors=None, bias=0.0):
  """softmax(cap(logits) + bias) v over the pairs in `seen`; rows that see nothing give zeros.

  Args:
    logits: [B, H, T, S].
    seen: what broadcasts to it; True may attend.
    v: [B, S, K, E].
    sinks: [H], or None.
    cap: the logit cap, or None.
    factors: of each weight after the softmax (dropout), as `logits`, or None.
    bias: what broadcasts to the logits; -inf hides a pair.

  Returns:
    The outputs [B, T, H, E], and the weights [B, H, T, S].
  """
  batch, heads, queries, keys = logits.shape
  bias = np.broadcast_to(np.asarray(bias, np.float64), logits.shape)
  seen = seen & (bias > -np.inf)
  v = np.repeat(v.astype(np.result_type(v, np.float64)), heads // v.shape[2], axis=2)
  out = np.zeros((batch, queries, heads, v.shape[-1]), v.dtype)
  weights = np.zeros(logits.shape)
  for b, h, t in np.ndindex(batch, heads, queries):
    terms = {}
    for s in range(keys):
      if seen[b, h, t, s]:
        logit = float(logits[b, h, t, s])
        terms[s] = logit if cap is None else cap * np.tanh(logit / cap)
        terms[s] += bias[b, h, t, s]
    sink = [] if sinks is None else [float(sinks[h])]
    if not terms:
      continue
    top = max([*terms.values(), *sink])
    total = sum(np.exp(x - top) for x in [*terms.values(), *sink])
    for s, logit in terms.items():
      weights[b, h, t, s] = np.exp(logit - top) / total
      if factors is not None:
        weights[b, h, t, s] *= factors[b, h, t, s]
      out[b, t, h] += weights[b, h, t, s] * v[b, s, h]
  return out, weights


def content(q, k, scale=None):
  """scale q . conj(k) for grouped heads, [B, H, T, S], in float64 or complex128."""
  q, k = (x.astype(np.result_type(x, np.float64)) for x in (q, k))
  group = q.shape[2] // k.shape[2]
  scale = q.shape[-1] ** -0.5 if scale is None else scale
  shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
  logits = np.zeros(shape, np.result_type(q, k))
  for b, h, t, s in np.ndindex(shape):
    logits[b, h, t, s] = scale * sum(q[b, t, h] * k[b, s, h // group].conj())
  return logits


def causal(q_order, k_order):
  """Which keys are not ahead, [b, 1, T, S], from orders [b, T] and [b, S]."""
  seen = np.zeros((q_order.shape[0], 1, q_order.shape[1], k_order.shape[1]), bool)
  for b, _, t, s in np.ndindex(seen.shape):
    seen[b, 0, t, s] = k_order[b, s] <= q_order[b, t]
  return seen


def error(found, expected):
  """max|difference| / max|expected|, as everywhere in this project."""
  found, expected = np.asarray(found), np.asarray(expected)
  if found.shape != expected.shape:
    raise ValueError(f'Shapes differ: {found.shape}, expected {expected.shape}.')
  wide = np.result_type(expected, np.float64)
  difference = abs(found.astype(wide) - expected.astype(wide)).max(initial=0)
  size = abs(expected.astype(wide)).max(initial=0)
  return difference / size if size else difference
