"""Fused attention for TPU: Pallas kernels for the output, d_q, d_k with d_v, and d_table.

A tile lies as [keys, queries]: what belongs to a query is then a row, and the softmax reduces
along sublanes. All blocks are square. The table of the bias comes as 8 rows, each one entry later
than the row above; doubled until they are a block of rows, they are a tile's bias. The table's
gradient goes the same way back, in a kernel that walks along the diagonals of tiles, so that no two
programs add to one number; where it is not asked for, XLA drops that kernel.

Blocks that do not meet are neither computed nor fetched, and those that meet whole are not masked:
`ranges` says which, before a kernel runs.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from posjax.border import Rules
from posjax.kernels import flash, table, walks
from posjax.kernels.flash import Problem, Tokens, product, widened
from posjax.kernels.ranges import ranges, ranges_of_keys
from posjax.tile import UNSEEN

ROWS = 8  # of the table that a kernel gets: the sublanes of a register


class Plan(NamedTuple):
  """What is known when the attention is traced."""

  rules: Rules
  block: int  # queries, and keys, of a tile: a power of two; 128 or more on a device
  interpret: bool = False


def plan(rules: Rules, x: Problem, interpret: bool = False) -> Plan:
  """Blocks of 512 tokens; of 256 or 128 where the attention is shorter."""
  length = max(x.q.shape[1], x.k.shape[1])
  return Plan(rules, min(512, max(128, pl.next_power_of_2(length))), interpret)


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


def forward(plan: Plan, x: Problem):
  """The output [B, T, H, E] in the dtype of v, and each row's logarithm of the sum, [B, H, T]."""
  inputs, length = _inputs(plan, x), x.q.shape[1]
  width = inputs.v.shape[-1]
  rows = jax.ShapeDtypeStruct((*inputs.q.shape[:2], 1, inputs.q.shape[2]), jnp.float32)
  scratch = [(1, plan.block), (1, plan.block), (width, plan.block)]
  made = [('queries', _like(inputs.q, width, x.v.dtype)), ('rows', rows)]
  out, log_sums = _call(plan, _forward_kernel, walks.by_queries, inputs, made, scratch)
  return out.swapaxes(1, 2)[:, :length, :, : x.v.shape[-1]], log_sums[:, :, 0, :length]


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
  width, v_width = inputs.q.shape[-1], inputs.v.shape[-1]
  made = [('queries', inputs.q)]
  (d_q,) = _call(plan, _d_q_kernel, walks.by_queries, inputs, made, [(width, plan.block)])
  made = [('keys', inputs.k), ('keys', inputs.v)]
  scratch = [(plan.block, width), (plan.block, v_width)]
  d_k, d_v = _call(plan, _d_keys_kernel, walks.by_keys, inputs, made, scratch)
  d_q, d_k, d_v = (
    d.swapaxes(1, 2)[:, : like.shape[1], :, : like.shape[-1]]
    for d, like in ((d_q, x.q), (d_k, x.k), (d_v, x.v))
  )
  return d_q, d_k, d_v, _d_table(plan, x, inputs)


def _d_table(plan: Plan, x: Problem, inputs: Inputs):
  if x.table is None:
    return None
  n = _sizes(plan, inputs)
  strips = (n.batch, n.heads, n.i + n.j - 1, ROWS, 2 * plan.block)
  made = [('strips', jax.ShapeDtypeStruct(strips, jnp.float32))]
  scratch = [(plan.block, plan.block)]
  (d_rows,) = _call(plan, _d_table_kernel, walks.by_diagonals, inputs, made, scratch)
  d_strips = table.folded(d_rows)[..., ROWS - 1 :]
  falling = table.from_strips(d_strips[:, :, ::-1])
  found = table.unpadded(_mirrored(falling), x.q.shape[1], x.k.shape[1], plan.block)
  return found.sum(0, keepdims=True) if x.table.shape[0] == 1 else found


# What a kernel reads, and how.


def _inputs(plan: Plan, x: Problem, d_out=None, log_sums=None, delta=None) -> Inputs:
  """Heads before tokens; padded with tokens of segment 0, and widths to multiples of 64."""
  tokens = lambda t, axis: widened(t, axis, plan.block)
  heads = lambda t: widened(tokens(t.swapaxes(1, 2), 2), 3, 64)
  rows = lambda t: tokens(t[:, :, None], 3)
  each = lambda side: Tokens(*(tokens(t[:, None], 2) for t in side))
  given = None if x.table is None else _sheared(plan, x)
  sides = each(x.q_tokens), each(x.k_tokens)
  inputs = Inputs(*map(heads, x[:3]), *sides, given, given, x.sinks)
  if d_out is None:
    return inputs
  return inputs._replace(d_out=heads(d_out), log_sums=rows(log_sums), delta=rows(delta))


def _sheared(plan: Plan, x: Problem):
  """The padded table, by falling place of the key, 8 times: row r begins r entries later."""
  falling = _mirrored(table.padded(x.table, x.q.shape[1], x.k.shape[1], plan.block))
  falling = jnp.broadcast_to(falling, (falling.shape[0], x.q.shape[2], falling.shape[2]))
  return jnp.stack([jnp.roll(falling, r, -1) for r in range(ROWS)], -2)


def _mirrored(x):
  """Entry n as entry N - n; entry 0, which no tile reads, stays."""
  return jnp.roll(x[..., ::-1], 1, -1)


def _sizes(plan: Plan, x: Inputs) -> walks.Sizes:
  (batch, heads, queries, _), (_, kv_heads, keys, _) = x.q.shape, x.k.shape
  rows = x.q_tokens.order.shape[0]
  return walks.Sizes(batch, heads, kv_heads, queries // plan.block, keys // plan.block, rows)


def _like(x, width: int, dtype):
  return jax.ShapeDtypeStruct((*x.shape[:-1], width), dtype)


def _call(plan: Plan, kernel, walk_of, x: Inputs, made, scratch):
  """Runs a kernel over a walk; `made` are the outputs: how they are cut, and their shapes."""
  sizes = _sizes(plan, x)
  walk = walk_of(sizes)
  tokens = [Tokens(*(t[:, 0] for t in side)) for side in (x.q_tokens, x.k_tokens)]
  spans = (ranges_of_keys if walk_of is walks.by_keys else ranges)(
    plan.rules, *tokens, plan.block, plan.block
  )
  spec = lambda name, like: _spec(plan, sizes, walk, name, like)
  outer = ('parallel',) * (len(walk.grid) - walk.inner)
  return pl.pallas_call(
    functools.partial(kernel, plan, walk),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=walk.grid,
      in_specs=[Inputs(*(jax.tree.map(lambda t: spec(c, t), f) for c, f in zip(_CUT, x)))],
      out_specs=[spec(name, like) for name, like in made],
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
    ),
    out_shape=[like for _, like in made],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=outer + ('arbitrary',) * walk.inner
    ),
    interpret=plan.interpret,
    name=kernel.__name__.strip('_'),
  )(spans.reshape(-1), x)  # fmt: skip


_CUT = Inputs(
  'queries', 'keys', 'keys', 'q_tokens', 'k_tokens', 'low', 'high', 'sinks', 'queries', 'rows', 'rows'
)  # fmt: skip


def _spec(plan: Plan, n: walks.Sizes, walk: walks.Walk, name: str, like) -> pl.BlockSpec:
  """The block of an array that belongs to the walk's tile."""
  if name == 'sinks':
    return pl.BlockSpec(memory_space=pltpu.SMEM)
  block, width = plan.block, like.shape[-1]
  batch = lambda p: p.batch if like.shape[0] > 1 else 0
  shape, index = {
    'queries': ((None, None, block, width), lambda p: (p.batch, p.head, p.i, 0)),
    'keys': ((None, None, block, width), lambda p: (p.batch, p.kv_head, p.j, 0)),
    'rows': ((None, None, 1, block), lambda p: (p.batch, p.head, 0, p.i)),
    'q_tokens': ((None, 1, block), lambda p: (batch(p), 0, p.i)),
    'k_tokens': ((None, 1, block), lambda p: (batch(p), 0, p.j)),
    'low': ((None, None, ROWS, block), lambda p: (batch(p), p.head, 0, n.j - 1 - p.j + p.i)),
    'high': ((None, None, ROWS, block), lambda p: (batch(p), p.head, 0, n.j - p.j + p.i)),
    'strips': (
      (None, None, None, ROWS, width),
      lambda p: (p.batch, p.head, n.i - 1 - p.i + p.j, 0, 0),
    ),
  }[name]
  return pl.BlockSpec(shape, lambda *ids: index(walk.place(ids[-1], *ids[:-1])))


# The kernels. A tile is [keys, queries].


def _forward_kernel(plan, walk, spans, x, out, log_sums, top, total, mixed):
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


def _d_q_kernel(plan, walk, spans, x, d_q, total):
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


def _d_keys_kernel(plan, walk, spans, x, d_k, d_v, k_total, v_total):
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


def _d_table_kernel(plan, walk, spans, x, strip, total):
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

