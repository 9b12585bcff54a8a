"""The reference: every logit at once, each place of the scheme in a line of its own.

It computes the formulas of the scheme's file and nothing else, at every size, so that all of JAX's
derivatives work with it: backward, forward, and of any order.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from posjax.attention import masks, places
from posjax.attention.inputs import Operands, Rules
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
  params, q, k = x.params, x.q, x.k  # both sides after place 2
  allowed = masks.visible(q, k, rules, x.mask)
  by_distance = places.bias(scheme.bias, params, q.pos, k.pos) if scheme.bias else None  # place 3
  logits = places.content(q, k, rules)
  biases = by_distance, x.bias
  logits = places.final_logits(scheme, params, logits, q, k, rules, allowed, *biases)  # place 3
  weights = jnp.where(allowed, _softmax(logits, x.sinks), 0)
  left = weights
  if rules.dropout_rate:
    rows = masks.dropout_rows(logits.shape[0], logits.shape[1], rules.broadcast_dropout)
    left = weights * masks.dropout_mask(x.dropout_key, rules.dropout_rate, rows, q.index, k.index)
  return places.output(scheme, params, left, x.v, q, k), weights  # place 4


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
