"""The TPU kernels: each function is one program of its grid. A tile is [keys, queries]."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from posjax.attention.inputs import Rules, Tokens
from posjax.attention.pallas import formulas
from posjax.attention.pallas.formulas import product
from posjax.attention.softmax import Sums, softmax_step

ROWS = 8  # rows of the table that a kernel gets, as many as a register has sublanes


class Plan(NamedTuple):
  """The facts that are known when the attention is traced.

  Attributes:
    rules: the plain arguments of `attend`.
    block: queries, and keys, of a tile: a power of two, 128 or more on a device.
    interpret: whether JAX interprets the kernels, on any device.
    skipped: diagonals of tiles, from the first, that `d_table` leaves out.
  """

  rules: Rules
  block: int
  interpret: bool = False
  skipped: int = 0


class Inputs(NamedTuple):
  """The arrays that a kernel reads; outside it, whole, their lengths multiples of the block."""

  q: Any  # [B, H, T, D]
  k: Any  # [B, K, S, D]
  v: Any  # [B, K, S, E]
  q_tokens: Tokens  # [b, 1, T]
  k_tokens: Tokens  # [b, 1, S]
  low: Any  # [b, H, 8, N], the lower half of the tile's strip of the table; or None
  high: Any  # the same array, for the upper half
  sinks: Any  # [H], or None
  d_out: Any = None  # [B, H, T, E]
  top: Any = None  # [B, H, 1, T]
  delta: Any = None  # [B, H, 1, T]


def forward(plan, walk, spans, x, out, largest, sum_of_all, top, total, mixed):
  """Online softmax along the keys: running maximum, sum, and output [E, queries]."""
  here = walk.here(spans)

  @pl.when(here.begins)
  def _():
    sink = None if x.sinks is None else x.sinks[here.place.head]
    top[...], total[...] = formulas.begun(top.shape, sink)
    mixed[...] = jnp.zeros_like(mixed)

  def step(masked):
    logits, allowed = _logits(plan, x, masked)
    logits, sums = formulas.masked(logits, allowed), Sums(top[...], total[...])
    sums, weights, factor = softmax_step(sums, logits, 0, allowed, keepdims=True)
    top[...], total[...] = sums
    mixed[...] = mixed[...] * factor + product(x.v[...], weights.astype(x.v.dtype), 0, 0)

  here.visit(step)

  @pl.when(here.ends)
  def _():
    sums = Sums(top[...], total[...])
    out[...] = (mixed[...] / sums.divisor()).T.astype(out.dtype)
    largest[...], sum_of_all[...] = sums


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
  """The tile's logits, and which pairs may attend; None where all may."""
  products = product(x.k[...], x.q[...], 1, 1)
  allowed = None
  if masked:
    k_tokens = Tokens(*(t[...].T for t in x.k_tokens))
    allowed = formulas.visible(plan.rules, Tokens(*(t[...] for t in x.q_tokens)), k_tokens)
  return formulas.logits(plan.rules, products, _bias(plan, x)), allowed


def _bias(plan, x: Inputs):
  """The bias of the tile: its row r is the strip of the table, from entry r on."""
  if x.low is None:
    return None
  rows = jnp.concatenate([x.low[...], x.high[...]], 1)
  while rows.shape[0] < plan.block:
    rows = jnp.concatenate([rows, pltpu.roll(rows, rows.shape[0], 1)], 0)
  return rows[:, plan.block :]


def _d_logits(plan, x: Inputs, masked: bool):
  """The tile's weights, and the cotangents of its logits."""
  logits, allowed = _logits(plan, x, masked)
  weights = formulas.weights(logits, x.top[...], allowed)
  d_weights = product(x.v[...], x.d_out[...], 1, 1)
  return weights, formulas.d_logits(plan.rules, logits, weights, d_weights, x.delta[...], allowed)
