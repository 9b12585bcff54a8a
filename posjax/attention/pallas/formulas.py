"""The formulas of one tile that the kernels of both backends share, and the arrays they read.

The formulas are elementwise and broadcast, so a backend may lay a tile out as [queries, keys] or as
[keys, queries]: what belongs to queries or to keys comes with an axis of size one.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Inexact

from posjax.attention.inputs import Rules, Tokens
from posjax.attention.masks import within_reach
from posjax.attention.softmax import Sums

Ref = Any  # a reference to memory inside a kernel
LOWEST = float(jnp.finfo(jnp.float32).min)  # no finite logit is below it


class Problem(NamedTuple):
  """The arrays of one attention, as kernels read them.

  Attributes:
    q: queries after place 2.
    k: keys after place 2.
    v: values.
    table: the bias by s - t, from 1 - T to S - 1, see `table`; None where the scheme has none.
    sinks: one logit for each head.
    q_tokens: the queries' order and segments.
    k_tokens: the keys'.
  """

  q: Inexact[Array, 'B T H D']
  k: Inexact[Array, 'B S K D']
  v: Inexact[Array, 'B S K E']
  table: Float[Array, 'b H N'] | None
  sinks: Float[Array, ' H'] | None
  q_tokens: Tokens
  k_tokens: Tokens


def begun(shape: tuple[int, ...], sink: Array | None) -> Sums:
  """The sums before any key, of `shape`, in which a sink's logit has its share: -inf is no sink."""
  logit = jnp.full(shape, -jnp.inf if sink is None else sink, jnp.float32)
  top = jnp.maximum(logit, LOWEST)
  return Sums(top, jnp.exp(logit - top))


def visible(rules: Rules, q: Tokens, k: Tokens) -> Array:
  """Which pairs of a tile may attend, as `masks.visible`, for any layout that broadcasts."""
  allowed = (q.segments == k.segments) & (k.segments != 0)
  return within_reach(q.order, k.order, rules, allowed)


def logits(rules: Rules, products: Array, bias: Array | None) -> Array:
  """The logits that enter the softmax, before the mask."""
  out = products * rules.scale
  if bias is not None:
    out = out + bias
  if rules.logit_cap is None:
    return out
  return jnp.where(out == -jnp.inf, out, rules.logit_cap * jnp.tanh(out / rules.logit_cap))


def weights(x: Array, top: Array, allowed: Array | None) -> Array:
  """The exponentials of logits whose row's largest logit is known.

  The softmax is these over the row's total, by which the cotangents are divided already.
  """
  # The logits were rounded anew: where they are large, perhaps to more than their largest.
  w = jnp.exp(jnp.minimum(x - top, 0))
  return w if allowed is None else jnp.where(allowed, w, 0)


def d_logits(rules: Rules, x: Array, w: Array, d_w: Array, delta: Array, allowed) -> Array:
  """The cotangent of the logits before the cap, which is the bias's.

  Args:
    rules: for the cap.
    x: the logits that entered the softmax.
    w: the weights, times the row's total.
    d_w: their cotangents, over the total.
    delta: of each query: its output times the output's cotangent, over the total.
    allowed: which pairs may attend; None for all. The logits of others may be NaN.
  """
  out = w * (d_w - delta)
  if rules.logit_cap is not None:
    out = out * jnp.where(x == -jnp.inf, 0, 1 - (x / rules.logit_cap) ** 2)
  return out if allowed is None else jnp.where(allowed, out, 0)


def masked(x: Array, allowed: Array | None) -> Array:
  """The logits, with the least number for pairs that may not attend."""
  return x if allowed is None else jnp.where(allowed, x, LOWEST)


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


# Matrix products of one tile.
_PRODUCTS = {'forward': 2, 'd_q': 3, 'd_keys': 4, 'd_table': 2}


def cost(kernel: str, rules: Rules, pairs: int, width: int, arrays: Any) -> pl.CostEstimate:
  """The cost of a kernel, for XLA's scheduler, which does not look into kernels.

  Args:
    kernel: its name.
    rules: where attention is causal, half of the pairs are computed.
    pairs: of queries and keys, over all heads.
    width: of a head.
    arrays: all that it reads and writes.
  """
  seen = pairs // 2 if rules.causal else pairs
  size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays))
  flops = 2 * _PRODUCTS[kernel] * seen * width
  return pl.CostEstimate(flops=flops, bytes_accessed=size, transcendentals=seen)


def widened(x: Array, axis: int, multiple: int) -> Array:
  """`x` with zeros at the end of `axis`, up to a multiple."""
  short = -x.shape[axis] % multiple
  if not short:
    return x
  return jnp.pad(x, [(0, short if i == axis else 0) for i in range(x.ndim)])
