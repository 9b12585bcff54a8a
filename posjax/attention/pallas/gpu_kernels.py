"""The GPU kernels: each function is one program of its grid.

A tile is [queries, keys], but for d_k and d_v [keys, queries]: the weights are then, in registers,
the left operand of the products that they enter. Every array here has powers of two for sizes.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from posjax.attention.inputs import Rules, Tokens
from posjax.attention.pallas import formulas
from posjax.attention.pallas.formulas import Ref, product
from posjax.attention.schedule import diagonal
from posjax.attention.softmax import softmax_step


class Blocks(NamedTuple):
  """Sizes of one kernel: tokens of a block, which are powers of two; warps and pipeline stages."""

  queries: int
  keys: int
  warps: int
  stages: int


class Inputs(NamedTuple):
  """The arrays that a kernel reads, whole and padded: a program loads what it needs of them."""

  spans: Any  # [b, blocks, 4]
  q: Any  # [B, T, H, D]
  k: Any  # [B, S, K, D]
  v: Any  # [B, S, K, E]
  q_tokens: Tokens  # [b, T]
  k_tokens: Tokens  # [b, S]
  table: Any  # [b, H, N], or None
  sinks: Any  # [H], or None
  d_out: Any = None  # [B, T, H, E]
  top: Any = None  # [B, H, T]
  delta: Any = None  # [B, H, T]


class _Tile(NamedTuple):
  """The tile of one program: where it is, and its queries and keys after place 2.

  Attributes:
    batch: the row of the batch.
    head: the query head.
    start: the first query.
    k_start: the first key.
    q: queries, [queries, D].
    k: keys, [keys, D].
    keys_first: whether the tile is laid out as [keys, queries].
  """

  batch: Any
  head: Any
  start: Any
  k_start: Any
  q: Any
  k: Any
  keys_first: bool = False

  def of_queries(self, x):
    """One number for each query, with the axes to broadcast over the tile."""
    return x[None] if self.keys_first else x[:, None]

  def of_keys(self, x):
    return x[:, None] if self.keys_first else x[None]

  def product(self, of_queries, of_keys):
    pair = (of_keys, of_queries) if self.keys_first else (of_queries, of_keys)
    return product(*pair, 1, 1)


def _heads(ref: Ref, batch, start, size: int, head):
  """[size, width] of one head."""
  return plgpu.load(ref.at[batch, pl.ds(start, size), head, :])


def _tokens(side: Any, batch, start, size: int) -> list[Any]:
  place = pl.ds(start, size)
  return [plgpu.load(ref.at[_either(ref, batch), place]) for ref in (side.order, side.segments)]


def _either(ref, batch):
  """The row of the batch in an array that may have one row for all."""
  return batch if ref.shape[0] > 1 else jnp.int32(0)


def _over(number, by: int):
  return lax.div(number, jnp.int32(by))


def _span(x: Inputs, batch, block):
  """first, first_whole, last_whole, last: see `ranges`."""
  return [x.spans[_either(x.spans, batch), block, n] for n in range(4)]


def _along(span, step, carry):
  """Calls step(masked, number, carry) for each block of the span."""
  first, first_whole, last_whole, last = span
  carry = lax.fori_loop(first, first_whole, functools.partial(step, True), carry)
  carry = lax.fori_loop(first_whole, last_whole, functools.partial(step, False), carry)
  return lax.fori_loop(last_whole, last, functools.partial(step, True), carry)


def _logits(rules: Rules, x: Inputs, t: _Tile, masked: bool):
  """The tile's logits, and which pairs may attend; None where all may."""
  queries, keys = t.q.shape[0], t.k.shape[0]
  allowed, bias = None, None
  if masked:
    q_tokens = Tokens(*map(t.of_queries, _tokens(x.q_tokens, t.batch, t.start, queries)))
    k_tokens = Tokens(*map(t.of_keys, _tokens(x.k_tokens, t.batch, t.k_start, keys)))
    allowed = formulas.visible(rules, q_tokens, k_tokens)
  if x.table is not None:
    first = t.k_start - t.start + x.q_tokens.order.shape[1]
    place = first + t.of_keys(jnp.arange(keys)) - t.of_queries(jnp.arange(queries))
    bias = plgpu.load(x.table.at[_either(x.table, t.batch), t.head, place])
  return formulas.logits(rules, t.product(t.q, t.k), bias), allowed


def _d_logits(rules: Rules, x: Inputs, t: _Tile, v, d_out, masked: bool):
  """The tile's weights, and the cotangents of its logits."""
  logits, allowed = _logits(rules, x, t, masked)
  place = pl.ds(t.start, t.q.shape[0])
  row = lambda ref: t.of_queries(plgpu.load(ref.at[t.batch, t.head, place]))
  weights = formulas.weights(logits, row(x.top), allowed)
  d_weights = t.product(d_out, v)
  return weights, formulas.d_logits(rules, logits, weights, d_weights, row(x.delta), allowed)


def forward(rules, blocks, x, out, largest, total):
  """Online softmax along the keys: running maximum, sum, and output."""
  i, head, batch = (pl.program_id(axis) for axis in range(3))
  kv_head = _over(head, x.q.shape[2] // x.k.shape[2])
  start = i * blocks.queries
  q = _heads(x.q, batch, start, blocks.queries, head)

  def step(masked, j, carry):
    sums, mixed = carry
    k, v = (_heads(ref, batch, j * blocks.keys, blocks.keys, kv_head) for ref in (x.k, x.v))
    t = _Tile(batch, head, start, j * blocks.keys, q, k)
    logits, allowed = _logits(rules, x, t, masked)
    sums, weights, factor = softmax_step(sums, formulas.masked(logits, allowed), 1, allowed)
    return sums, mixed * factor[:, None] + product(weights.astype(v.dtype), v, 1, 0)

  rows, width = (blocks.queries,), x.v.shape[-1]
  sums = formulas.begun(rows, None if x.sinks is None else x.sinks[head])
  carry = sums, jnp.zeros((blocks.queries, width), jnp.float32)
  sums, mixed = _along(_span(x, batch, i), step, carry)
  place = pl.ds(start, blocks.queries)
  mean = mixed / sums.divisor()[:, None]
  plgpu.store(out.at[batch, place, head, :], mean.astype(out.dtype))
  plgpu.store(largest.at[batch, head, place], sums.top)
  plgpu.store(total.at[batch, head, place], sums.total)


def d_q(rules, blocks, x, d_q):
  """Sums along the keys."""
  i, head, batch = (pl.program_id(axis) for axis in range(3))
  kv_head = _over(head, x.q.shape[2] // x.k.shape[2])
  start = i * blocks.queries
  q, d_out = (_heads(ref, batch, start, blocks.queries, head) for ref in (x.q, x.d_out))

  def step(masked, j, total):
    k, v = (_heads(ref, batch, j * blocks.keys, blocks.keys, kv_head) for ref in (x.k, x.v))
    t = _Tile(batch, head, start, j * blocks.keys, q, k)
    _, d_logits = _d_logits(rules, x, t, v, d_out, masked)
    return total + product(d_logits.astype(k.dtype), k, 1, 0)

  total = _along(_span(x, batch, i), step, jnp.zeros(q.shape, jnp.float32)) * rules.scale
  place = pl.ds(start, blocks.queries)
  plgpu.store(d_q.at[batch, place, head, :], total.astype(d_q.dtype))


def d_keys(rules, blocks, x, d_k, d_v):
  """Sums along the query heads that share the keys, and the queries."""
  j, kv_head, batch = (pl.program_id(axis) for axis in range(3))
  start = j * blocks.keys
  k, v = (_heads(ref, batch, start, blocks.keys, kv_head) for ref in (x.k, x.v))
  group = x.q.shape[2] // x.k.shape[2]

  def step(head, masked, i, carry):
    k_total, v_total = carry
    q, d_out = (
      _heads(ref, batch, i * blocks.queries, blocks.queries, head) for ref in (x.q, x.d_out)
    )
    t = _Tile(batch, head, i * blocks.queries, start, q, k, keys_first=True)
    weights, d_logits = _d_logits(rules, x, t, v, d_out, masked)
    v_total += product(weights.astype(d_out.dtype), d_out, 1, 0)
    k_total += product(d_logits.astype(q.dtype), q, 1, 0)
    return k_total, v_total

  span = _span(x, batch, j)
  one = lambda g, carry: _along(span, functools.partial(step, kv_head * group + g), carry)
  zeros = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
  k_total, v_total = lax.fori_loop(0, group, one, zeros)
  place = pl.ds(start, blocks.keys)
  plgpu.store(d_k.at[batch, place, kv_head, :], (k_total * rules.scale).astype(d_k.dtype))
  plgpu.store(d_v.at[batch, place, kv_head, :], v_total.astype(d_v.dtype))


def d_table(rules, blocks, x, tile):
  """Sums the tiles of one diagonal, which share their bias; it has the last diagonals only."""
  number, head, batch = (pl.program_id(axis) for axis in range(3))
  kv_head = _over(head, x.q.shape[2] // x.k.shape[2])
  size = blocks.queries
  rows, columns = x.q.shape[1] // size, x.k.shape[1] // size
  skipped = rows + columns - 1 - tile.shape[2]
  first_i, first_j, count = diagonal(rows - 1 - skipped - number, rows, columns)

  def step(n, total):
    i, j = first_i + n, first_j + n
    first, _, _, last = _span(x, batch, i)

    def more(total):
      q, d_out = (_heads(ref, batch, i * size, size, head) for ref in (x.q, x.d_out))
      k, v = (_heads(ref, batch, j * size, size, kv_head) for ref in (x.k, x.v))
      t = _Tile(batch, head, i * size, j * size, q, k)
      return total + _d_logits(rules, x, t, v, d_out, True)[1]

    return lax.cond((first <= j) & (j < last), more, lambda total: total, total)

  total = lax.fori_loop(0, count, step, jnp.zeros((size, size), jnp.float32))
  plgpu.store(tile.at[batch, head, number, :, :], total)
