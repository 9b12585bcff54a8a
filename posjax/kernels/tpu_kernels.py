"""The kernels of `pallas_tpu`: what one program does. A tile is [keys, queries]."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from posjax.border import Rules
from posjax.kernels import flash
from posjax.kernels.flash import Tokens, product
from posjax.tile import UNSEEN

ROWS = 8  # of the table that a kernel gets: the sublanes of a register


class Plan(NamedTuple):
  """What is known when the attention is traced."""

  rules: Rules
  block: int  # queries, and keys, of a tile: a power of two; 128 or more on a device
  interpret: bool = False


class Inputs(NamedTuple):
  """What a kernel reads. Outside it, the whole arrays, their lengths multiples of the block."""

  q: Any  # [B, H, T, D]
  k: Any  # [B, K, S, D]
  v: Any  # [B, K, S, E]
  q_tokens: Tokens  # [b, 1, T]
  k_tokens: Tokens  # [b, 1, S]
  low: Any  # [b, H, 8, N], the lower half of the tile's strip of the table; or None
  high: Any  # the same array, for the upper half
  sinks: Any  # [H], or None
  d_out: Any = None  # [B, H, T, E]
  log_sums: Any = None  # [B, H, 1, T]
  delta: Any = None  # [B, H, 1, T]


def forward(plan, walk, spans, x, out, log_sums, top, total, mixed):
  """Online softmax along the keys: running maximum, sum, and output [E, queries]."""
  here = walk.here(spans)

  @pl.when(here.begins)
  def _():
    sink = None if x.sinks is None else x.sinks[here.place.head]
    top[...] = jnp.full_like(top, UNSEEN if sink is None else sink)
    total[...] = jnp.full_like(total, 0 if sink is None else 1)
    mixed[...] = jnp.zeros_like(mixed)

  def step(masked):
    logits, meet = _logits(plan, x, masked)
    logits = flash.masked(logits, meet)
    highest = jnp.maximum(top[...], logits.max(0, keepdims=True))
    weights = flash.weights(logits, highest, meet)
    fade = jnp.exp(top[...] - highest)
    top[...] = highest
    total[...] = total[...] * fade + weights.sum(0, keepdims=True)
    mixed[...] = mixed[...] * fade + product(x.v[...], weights.astype(x.v.dtype), 0, 0)

  here.visit(step)

  @pl.when(here.ends)
  def _():
    sums = jnp.maximum(total[...], 1e-37)
    out[...] = (mixed[...] / sums).T.astype(out.dtype)
    log_sums[...] = top[...] + jnp.log(sums)


def d_q(plan, walk, spans, x, d_q, total):
  """Sums along the keys, as [D, queries]."""
  here = walk.here(spans)
  _clear_first(here, total)

  def step(masked):
    _, d_logits = _d_logits(plan, x, masked)
    total[...] += product(x.k[...], d_logits.astype(x.k.dtype), 0, 0)

  here.visit(step)

  @pl.when(here.ends)
  def _():
    d_q[...] = (total[...].T * plan.rules.scale).astype(d_q.dtype)


def d_keys(plan, walk, spans, x, d_k, d_v, k_total, v_total):
  """Sums along the query heads that share the keys, and the queries."""
  here = walk.here(spans)
  _clear_first(here, k_total, v_total)

  def step(masked):
    weights, d_logits = _d_logits(plan, x, masked)
    v_total[...] += product(weights.astype(x.d_out.dtype), x.d_out[...], 1, 0)
    k_total[...] += product(d_logits.astype(x.q.dtype), x.q[...], 1, 0)

  here.visit(step)

  @pl.when(here.ends)
  def _():
    d_k[...] = (k_total[...] * plan.rules.scale).astype(d_k.dtype)
    d_v[...] = v_total[...].astype(d_v.dtype)


def d_table(plan, walk, spans, x, strip, total):
  """Sums tiles of one bias, then their diagonals, but for the last three halvings."""
  here = walk.here(spans)
  _clear_first(here, total)

  def step(masked):
    total[...] += _d_logits(plan, x, masked)[1]

  here.visit(step)

  @pl.when(here.ends)
  def _():
    rows = jnp.concatenate([jnp.zeros_like(total), total[...]], 1)
    while rows.shape[0] > ROWS:
      half = rows.shape[0] // 2
      rows = rows[:half] + pltpu.roll(rows[half:], rows.shape[1] - half, 1)
    strip[...] = rows


def _clear_first(here, *totals):
  @pl.when(here.begins)
  def _():
    for total in totals:
      total[...] = jnp.zeros_like(total)


def _logits(plan, x: Inputs, masked: bool):
  """The tile's logits, and which pairs meet; None where all do."""
  products = product(x.k[...], x.q[...], 1, 1)
  meet = None
  if masked:
    k_tokens = Tokens(*(t[...].T for t in x.k_tokens))
    meet = flash.seen(plan.rules, Tokens(*(t[...] for t in x.q_tokens)), k_tokens)
  return flash.logits(plan.rules, products, _bias(plan, x)), meet


def _bias(plan, x: Inputs):
  """Row r of the tile is the strip, r entries later."""
  if x.low is None:
    return None
  rows = jnp.concatenate([x.low[...], x.high[...]], 1)
  while rows.shape[0] < plan.block:
    rows = jnp.concatenate([rows, pltpu.roll(rows, rows.shape[0], 1)], 0)
  return rows[:, plan.block :]


def _d_logits(plan, x: Inputs, masked: bool):
  """The tile's weights, and the cotangents of its logits."""
  logits, meet = _logits(plan, x, masked)
  weights = flash.weights(logits, x.log_sums[...], meet)
  d_weights = product(x.v[...], x.d_out[...], 1, 1)
  return weights, flash.d_logits(plan.rules, logits, weights, d_weights, x.delta[...], meet)
