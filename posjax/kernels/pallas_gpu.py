"""Fused attention for NVIDIA GPUs: Pallas kernels for the output, d_q, d_k with d_v, and d_table.

Each program makes one block and loops over the blocks that it meets; those that meet whole are not
masked: `ranges` says which, before a kernel runs. The bias of a tile is gathered from the table.
The table's gradient has a kernel of its own, in which a program walks along one diagonal of square
tiles, so that no two programs add to one number (no atomics: the same bits each time). It gives a
tile for each diagonal, linear in the length, and XLA sums the tile's diagonals; where the gradient
is not asked for, XLA drops the kernel.

The kernels are for Pallas' Triton backend, which is named by its compiler parameters: the default
differs between jax 0.10 and 0.11. It is deprecated since jax 0.11, with no date. The other backend,
Mosaic GPU, needs Hopper or later and 16-bit heads, and cannot be interpreted on a CPU in jax 0.10.2
and 0.11.2, so that nothing could test it without a device.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from posjax.border import Rules
from posjax.kernels import flash, table
from posjax.kernels.flash import Problem, Tokens, product, widened
from posjax.kernels.ranges import ranges, ranges_of_keys
from posjax.tile import UNSEEN


class Blocks(NamedTuple):
  """Of one kernel; all but the last two powers of two."""

  queries: int
  keys: int
  warps: int
  stages: int


class Plan(NamedTuple):
  """What is known when the attention is traced."""

  rules: Rules
  output: Blocks
  d_q: Blocks
  d_keys: Blocks
  d_table: Blocks  # square
  interpret: bool = False

  @property
  def multiple(self) -> int:
    """Of which the padded lengths are."""
    return max(n for blocks in self[1:5] for n in blocks[:2])


class Inputs(NamedTuple):
  """What a kernel reads: whole arrays, padded. Nothing is fetched before the program asks."""

  spans: Any  # [b, blocks, 4]
  q: Any  # [B, T, H, D]
  k: Any  # [B, S, K, D]
  v: Any  # [B, S, K, E]
  q_tokens: Tokens  # [b, T]
  k_tokens: Tokens  # [b, S]
  table: Any  # [b, H, N], or None
  sinks: Any  # [H], or None
  d_out: Any = None  # [B, T, H, E]
  log_sums: Any = None  # [B, H, T]
  delta: Any = None  # [B, H, T]


def plan(rules: Rules, x: Problem, interpret: bool = False) -> Plan:
  """Blocks that fit the registers and the shared memory of a Hopper at the head width."""
  width = max(_width(x.q.shape[-1]), _width(x.v.shape[-1])) * x.q.dtype.itemsize // 2
  if width <= 64:
    sizes = Blocks(128, 64, 4, 3), Blocks(128, 64, 4, 2), Blocks(64, 128, 4, 2), Blocks(64, 64, 4, 2)
  elif width <= 128:
    sizes = Blocks(128, 64, 8, 3), Blocks(128, 64, 8, 2), Blocks(64, 128, 8, 2), Blocks(64, 64, 4, 2)
  elif width <= 256:
    sizes = (Blocks(64, 32, 8, 2),) * 3 + (Blocks(32, 32, 4, 2),)
  else:
    sizes = (Blocks(32, 32, 8, 1),) * 4
  return Plan(rules, *sizes, interpret)


def forward(plan: Plan, x: Problem):
  """The output [B, T, H, E] in the dtype of v, and each row's logarithm of the sum, [B, H, T]."""
  inputs = _inputs(plan, x)
  batch, queries, heads, _ = inputs.q.shape
  made = [
    jax.ShapeDtypeStruct((batch, queries, heads, inputs.v.shape[-1]), x.v.dtype),
    jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32),
  ]
  grid = queries // plan.output.queries, heads, batch
  out, log_sums = _call(plan, _forward_kernel, plan.output, ranges, grid, inputs, made)
  return out[:, : x.q.shape[1], :, : x.v.shape[-1]], log_sums[..., : x.q.shape[1]]


def backward(plan: Plan, x: Problem, log_sums, delta, d_out):
  """The cotangents of q, k and v, in their dtypes, and of the table.

  Args:
    plan: what is known.
    x: the problem.
    log_sums: as from `forward`.
    delta: the sum over E of the output times its cotangent, [B, H, T].
    d_out: the output's cotangent, [B, T, H, E].
  """
  inputs = _inputs(plan, x, d_out, log_sums, delta)
  q, k, v = inputs[1:4]
  grid = q.shape[1] // plan.d_q.queries, q.shape[2], q.shape[0]
  (d_q,) = _call(plan, _d_q_kernel, plan.d_q, ranges, grid, inputs, [q])
  grid = k.shape[1] // plan.d_keys.keys, k.shape[2], k.shape[0]
  d_k, d_v = _call(plan, _d_keys_kernel, plan.d_keys, ranges_of_keys, grid, inputs, [k, v])
  d_heads = (
    d[:, : like.shape[1], :, : like.shape[-1]] for d, like in zip((d_q, d_k, d_v), x, strict=False)
  )
  return *d_heads, _d_table(plan, x, inputs)


def _d_table(plan: Plan, x: Problem, inputs: Inputs):
  if x.table is None:
    return None
  (batch, queries, heads, _), keys = inputs.q.shape, inputs.k.shape[1]
  block = plan.d_table.queries
  grid = (queries + keys) // block - 1, heads, batch
  made = [jax.ShapeDtypeStruct((batch, heads, grid[0], block, block), jnp.float32)]
  (tiles,) = _call(plan, _d_table_kernel, plan.d_table, ranges, grid, inputs, made)
  strips = jnp.pad(table.folded(tiles), [(0, 0)] * 3 + [(1, 0)])
  found = table.from_strips(strips)
  found = table.unpadded(found, x.q.shape[1], x.k.shape[1], plan.multiple)
  return found.sum(0, keepdims=True) if x.table.shape[0] == 1 else found


# What a kernel reads, and how.


def _inputs(plan: Plan, x: Problem, d_out=None, log_sums=None, delta=None) -> Inputs:
  """Padded with tokens of segment 0, and widths to powers of two."""
  tokens = lambda t, axis: widened(t, axis, plan.multiple)
  heads = lambda t: widened(tokens(t, 1), 3, _width(t.shape[-1]))
  each = lambda side: Tokens(*(tokens(t, 1) for t in side))
  sides = each(x.q_tokens), each(x.k_tokens)
  given = None
  if x.table is not None:
    given = table.padded(x.table, x.q.shape[1], x.k.shape[1], plan.multiple)
    given = jnp.broadcast_to(given, (given.shape[0], x.q.shape[2], given.shape[2]))
  inputs = Inputs(None, *map(heads, x[:3]), *sides, given, x.sinks)
  if d_out is None:
    return inputs
  return inputs._replace(d_out=heads(d_out), log_sums=tokens(log_sums, 2), delta=tokens(delta, 2))


def _width(width: int) -> int:
  return max(16, pl.next_power_of_2(width))


def _call(plan: Plan, kernel, blocks: Blocks, spans_of, grid, x: Inputs, made):
  spans = spans_of(plan.rules, x.q_tokens, x.k_tokens, blocks.queries, blocks.keys)
  return pl.pallas_call(
    functools.partial(kernel, plan.rules, blocks),
    grid=grid,
    out_shape=[jax.ShapeDtypeStruct(like.shape, like.dtype) for like in made],
    compiler_params=plgpu.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
    interpret=plan.interpret,
    name=kernel.__name__.strip('_'),
  )(x._replace(spans=spans))


class _Tile(NamedTuple):
  """Where a program is, and the placed heads of its queries and keys."""

  batch: Any
  head: Any
  start: Any  # the first query
  k_start: Any
  q: Any  # [queries, D]
  k: Any  # [keys, D]


def _heads(ref, batch, start, size: int, head):
  """[size, width] of one head."""
  return plgpu.load(ref.at[batch, pl.ds(start, size), head, :])


def _row(ref, batch, head, start, size: int):
  """Numbers of queries, as a column."""
  return plgpu.load(ref.at[batch, head, pl.ds(start, size)])[:, None]


def _tokens(side: Tokens, batch, start, size: int) -> list[Any]:
  return [plgpu.load(ref.at[_either(ref, batch), pl.ds(start, size)]) for ref in side]


def _either(ref, batch):
  """The row of what may be shared by all rows."""
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
  """The tile's logits, and which pairs meet; None where all do."""
  queries, keys = t.q.shape[0], t.k.shape[0]
  meet, bias = None, None
  if masked:
    q_tokens = Tokens(*(n[:, None] for n in _tokens(x.q_tokens, t.batch, t.start, queries)))
    k_tokens = Tokens(*(n[None] for n in _tokens(x.k_tokens, t.batch, t.k_start, keys)))
    meet = flash.seen(rules, q_tokens, k_tokens)
  if x.table is not None:
    place = t.k_start - t.start + x.q_tokens.order.shape[1]
    place = place + lax.broadcasted_iota(jnp.int32, (queries, keys), 1)
    place = place - lax.broadcasted_iota(jnp.int32, (queries, keys), 0)
    bias = plgpu.load(x.table.at[_either(x.table, t.batch), t.head, place])
  return flash.logits(rules, product(t.q, t.k, 1, 1), bias), meet


def _d_logits(rules: Rules, x: Inputs, t: _Tile, v, d_out, masked: bool):
  """The tile's weights, and the cotangents of its logits."""
  logits, meet = _logits(rules, x, t, masked)
  row = lambda ref: _row(ref, t.batch, t.head, t.start, t.q.shape[0])
  weights = flash.weights(logits, row(x.log_sums), meet)
  d_weights = product(d_out, v, 1, 1)
  return weights, flash.d_logits(rules, logits, weights, d_weights, row(x.delta), meet)


# The kernels. A tile is [queries, keys].


def _forward_kernel(rules, blocks, x, out, log_sums):
  """Online softmax along the keys: running maximum, sum, and output."""
  i, head, batch = (pl.program_id(axis) for axis in range(3))
  kv_head = _over(head, x.q.shape[2] // x.k.shape[2])
  start = i * blocks.queries
  q = _heads(x.q, batch, start, blocks.queries, head)

  def step(masked, j, carry):
    top, total, mixed = carry
    k, v = (_heads(ref, batch, j * blocks.keys, blocks.keys, kv_head) for ref in (x.k, x.v))
    t = _Tile(batch, head, start, j * blocks.keys, q, k)
    logits, meet = _logits(rules, x, t, masked)
    logits = flash.masked(logits, meet)
    highest = jnp.maximum(top, logits.max(1))
    weights = flash.weights(logits, highest[:, None], meet)
    fade = jnp.exp(top - highest)
    mixed = mixed * fade[:, None] + product(weights.astype(v.dtype), v, 1, 0)
    return highest, total * fade + weights.sum(1), mixed

  rows, width = (blocks.queries,), x.v.shape[-1]
  top = jnp.full(rows, UNSEEN if x.sinks is None else x.sinks[head], jnp.float32)
  total = jnp.full(rows, 0 if x.sinks is None else 1, jnp.float32)
  carry = top, total, jnp.zeros((blocks.queries, width), jnp.float32)
  top, total, mixed = _along(_span(x, batch, i), step, carry)
  total = jnp.maximum(total, 1e-37)
  place = pl.ds(start, blocks.queries)
  plgpu.store(out.at[batch, place, head, :], (mixed / total[:, None]).astype(out.dtype))
  plgpu.store(log_sums.at[batch, head, place], top + jnp.log(total))


def _d_q_kernel(rules, blocks, x, d_q):
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


def _d_keys_kernel(rules, blocks, x, d_k, d_v):
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
    t = _Tile(batch, head, i * blocks.queries, start, q, k)
    weights, d_logits = _d_logits(rules, x, t, v, d_out, masked)
    v_total += product(weights.astype(d_out.dtype), d_out, 0, 0)
    k_total += product(d_logits.astype(q.dtype), q, 0, 0)
    return k_total, v_total

  span = _span(x, batch, j)
  one = lambda g, carry: _along(span, functools.partial(step, kv_head * group + g), carry)
  zeros = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
  k_total, v_total = lax.fori_loop(0, group, one, zeros)
  place = pl.ds(start, blocks.keys)
  plgpu.store(d_k.at[batch, place, kv_head, :], (k_total * rules.scale).astype(d_k.dtype))
  plgpu.store(d_v.at[batch, place, kv_head, :], v_total.astype(d_v.dtype))


def _d_table_kernel(rules, blocks, x, tile):
  """Sums the tiles of one diagonal, which share their bias."""
  diagonal, head, batch = (pl.program_id(axis) for axis in range(3))
  kv_head = _over(head, x.q.shape[2] // x.k.shape[2])
  size = blocks.queries
  rows, columns = x.q.shape[1] // size, x.k.shape[1] // size
  first_i = jnp.maximum(rows - 1 - diagonal, 0)
  first_j = jnp.maximum(diagonal + 1 - rows, 0)

  def step(n, total):
    i, j = first_i + n, first_j + n
    first, _, _, last = _span(x, batch, i)

    def more(total):
      q, d_out = (_heads(ref, batch, i * size, size, head) for ref in (x.q, x.d_out))
      k, v = (_heads(ref, batch, j * size, size, kv_head) for ref in (x.k, x.v))
      t = _Tile(batch, head, i * size, j * size, q, k)
      return total + _d_logits(rules, x, t, v, d_out, True)[1]

    return lax.cond((first <= j) & (j < last), more, lambda total: total, total)

  steps = jnp.minimum(rows - first_i, columns - first_j)
  total = lax.fori_loop(0, steps, step, jnp.zeros((size, size), jnp.float32))
  plgpu.store(tile.at[batch, head, diagonal, :, :], total)
