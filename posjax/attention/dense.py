"""The reference: every logit at once, each place of the scheme in a line of its own.

It computes the formulas of the scheme's file and nothing else, at every size, so that all of JAX's
derivatives work with it: backward, forward, and of any order.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from posjax.attention import masks, places
from posjax.attention.inputs import Operands, Rules
from posjax.math.heads import at_least_float32, product
from posjax.scheme import Scheme


def attend(scheme: Scheme, rules: Rules, x: Operands) -> Inexact[Array, 'B T H E']:
  """Attention with all [T, S] logits in memory.

  Args:
    scheme: any scheme.
    rules: the plain arguments of `attend`.
    x: its arrays.
  """
  return attend_and_weigh(scheme, rules, x)[0]


def attend_and_weigh(
  scheme: Scheme, rules: Rules, x: Operands
) -> tuple[Inexact[Array, 'B T H E'], Float[Array, 'B H T S']]:
  """As `attend`, and the weights of the softmax before any dropout, zeros for hidden pairs."""
  params = x.params
  allowed = masks.visible(x.q, x.k, rules, x.mask)
  q, k = places.query_and_key(scheme, params, x.q, x.k)  # place 2: query and key
  logits = product(q, k) * rules.scale
  logits = places.logits(scheme, params, logits, x.q, x.k, allowed)  # place 3: logits
  by_distance = places.bias(scheme, params, x.q, x.k)  # place 3: bias
  logits = places.limited(logits, by_distance, x.bias, allowed, rules)
  weights = jnp.where(allowed, _softmax(logits, x.sinks), 0)
  kept = weights
  if x.rows is not None:
    rows = masks.dropout_rows(x.rows, logits.shape[1], rules.broadcast_dropout)
    index = x.q.index, x.k.index
    kept = weights * masks.dropout_mask(x.dropout_key, rules.dropout_rate, rows, *index)
  v = places.value(scheme, params, x.v, x.k)  # place 4: values.value
  out = _weighted_sum(kept, v)
  out = places.output(scheme, params, out, x.q)  # place 4: values.output
  if scheme.values.add:
    # place 4: values.add
    out = out + places.addition(scheme, params, kept, x.q, x.k, out.shape[-1])
  return out, weights


def _weighted_sum(
  weights: Float[Array, 'B H T S'], v: Inexact[Array, 'B S K E']
) -> Inexact[Array, 'B T H E']:
  batch, heads, queries, keys = weights.shape
  kv_heads = v.shape[-2]
  grouped = weights.reshape(batch, kv_heads, heads // kv_heads, queries, keys)
  out = jnp.einsum('bkgts,bske->btkge', grouped, v.astype(at_least_float32(v)))
  return out.reshape(batch, queries, heads, -1)


def _softmax(
  logits: Float[Array, 'B H T S'], sinks: Float[Array, ' H'] | None
) -> Float[Array, 'B H T S']:
  """The softmax over the keys, of which each head's sink takes its share.

  A row of -inf alone gives zeros, and has zero gradients: 0 is taken for its largest logit.
  """
  top, sink = logits.max(-1, keepdims=True), None
  if sinks is not None:
    sink = sinks.astype(logits.dtype)[None, :, None, None]
    top = jnp.maximum(top, sink)
  top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))
  weights = jnp.exp(logits - top)
  total = weights.sum(-1, keepdims=True)
  if sink is not None:
    total = total + jnp.exp(sink - top)
  return weights / jnp.where(total == 0, 1, total)
