"""What the fused kernels share, whatever their backend: the problem, and the formulas of one tile.

The formulas are elementwise and broadcast, so a backend may lay a tile out as [queries, keys] or as
[keys, queries]: what belongs to queries or to keys comes with an axis of size one.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact, Int, Num

from posjax.border import Rules
from posjax.tile import UNSEEN

Ref = Any  # a reference to memory inside a kernel


class Tokens(NamedTuple):
  """What says which pairs meet: b is B, or 1 where all rows are alike."""

  order: Num[Array, 'b n']
  segments: Int[Array, 'b n']


class Problem(NamedTuple):
  """What a kernel computes with."""

  q: Inexact[Array, 'B T H D']  # placed
  k: Inexact[Array, 'B S K D']
  v: Inexact[Array, 'B S K E']
  table: Float[Array, 'b H N'] | None  # the bias by s - t, from 1 - T to S - 1; see `table`
  sinks: Float[Array, ' H'] | None
  q_tokens: Tokens
  k_tokens: Tokens


def seen(rules: Rules, q: Tokens, k: Tokens) -> Array:
  """Which pairs of a tile may meet: what `tile.visible` says, for any layout that broadcasts."""
  meet = (q.segments == k.segments) & (k.segments != 0)
  back = q.order - k.order
  if rules.causal:
    meet = meet & (back >= 0)
  if rules.window is not None:
    meet = meet & (abs(back) < rules.window)
  return meet


def logits(rules: Rules, products: Array, bias: Array | None) -> Array:
  """What enters the softmax, before the mask."""
  out = products * rules.scale
  if bias is not None:
    out = out + bias
  return out if rules.logit_cap is None else rules.logit_cap * jnp.tanh(out / rules.logit_cap)


def weights(x: Array, log_sums: Array, meet: Array | None) -> Array:
  """The softmax of logits whose row's logarithm of the sum of exponentials is known."""
  w = jnp.exp(x - log_sums)
  return w if meet is None else jnp.where(meet, w, 0)


def d_logits(rules: Rules, x: Array, w: Array, d_w: Array, delta: Array, meet) -> Array:
  """The cotangent of the logits before the cap, which is the bias's.

  Args:
    rules: for the cap.
    x: what entered the softmax.
    w: the weights.
    d_w: their cotangents.
    delta: of each query: its output times the output's cotangent.
    meet: which pairs may meet; None for all. What does not meet may be NaN.
  """
  out = w * (d_w - delta)
  if rules.logit_cap is not None:
    out = out * (1 - (x / rules.logit_cap) ** 2)
  return out if meet is None else jnp.where(meet, out, 0)


def masked(x: Array, meet: Array | None) -> Array:
  """Logits, those of unseen pairs at -1e30."""
  return x if meet is None else jnp.where(meet, x, UNSEEN)


def product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
  """a . b over one axis of each, on the matrix unit, summed in float32.

  float32 is not rounded to bfloat16 or tf32 first.
  """
  narrow = a.dtype.itemsize < 4
  return lax.dot_general(
    a, b, (((a_axis,), (b_axis,)), ((), ())),
    precision=lax.Precision.DEFAULT if narrow else lax.Precision.HIGHEST,
    preferred_element_type=jnp.float32,
  )  # fmt: skip


def widened(x: Array, axis: int, multiple: int) -> Array:
  """`x` with zeros at the end of `axis`, up to a multiple."""
  short = -x.shape[axis] % multiple
  if not short:
    return x
  return jnp.pad(x, [(0, short if i == axis else 0) for i in range(x.ndim)])
