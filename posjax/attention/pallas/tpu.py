"""Fused attention for TPU: Pallas kernels for the output, d_q, d_k with d_v, and d_table.

A tile is [keys, queries]: what belongs to a query is then a row, and the softmax reduces
along sublanes. All blocks are square. The table of the bias comes as 8 rows, each one entry later
than the row above; doubled until they are a block of rows, they are a tile's bias. The table's
gradient goes the same way back, in a kernel that walks along the diagonals of tiles, so that no two
programs add to one number; where it is not asked for, XLA drops that kernel.

Blocks without pairs that may attend are neither computed nor fetched, and those where all pairs may
are not masked: `ranges` says which, before a kernel runs.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from posjax.attention.devices import Device
from posjax.attention.inputs import Rules, Tokens
from posjax.attention.pallas import table, tpu_kernels
from posjax.attention.pallas import tpu_grids as tpu_grids
from posjax.attention.pallas.formulas import Problem, cost, widened
from posjax.attention.pallas.ranges import ranges, ranges_of_keys
from posjax.attention.pallas.tpu_kernels import ROWS, Inputs, Plan
from posjax.attention.softmax import Sums
from posjax.math.toeplitz import along


def refusal(q: Any, k: Any, v: Any, device: Device) -> str:
  """Why heads [B, T, H, D] are not computed here; '' if they are."""
  widest = max(x.shape[-1] * x.dtype.itemsize for x in (q, k, v))
  return 'a head is wider than 2048 bytes' if widest > 2048 else ''


def plan(rules: Rules, x: Problem, device: Device, interpret: bool = False) -> Plan:
  """Blocks of 512 tokens; of 256 or 128 where the attention is shorter."""
  length = max(x.q.shape[1], x.k.shape[1])
  return Plan(rules, min(512, max(128, pl.next_power_of_2(length))), interpret)


def forward(plan: Plan, x: Problem):
  """The output [B, T, H, E] in the dtype of v, and each row's sums of the softmax, [B, H, T]."""
  inputs, length = _inputs(plan, x), x.q.shape[1]
  width = inputs.v.shape[-1]
  rows = jax.ShapeDtypeStruct((*inputs.q.shape[:2], 1, inputs.q.shape[2]), jnp.float32)
  scratch = (1, plan.block), (1, plan.block), (width, plan.block)
  made = ('queries', _like(inputs.q, width, x.v.dtype)), ('rows', rows), ('rows', rows)
  out, *sums = _call(plan, tpu_kernels.forward, tpu_grids.by_queries, inputs, made, scratch)
  out = out.swapaxes(1, 2)[:, :length, :, : x.v.shape[-1]]
  return out, Sums(*(one[:, :, 0, :length] for one in sums))


def backward(plan: Plan, x: Problem, top, delta, d_out, near: int = 0):
  """The cotangents of q, k and v, in their dtypes, and of the table.

  Args:
    plan: of `plan`.
    x: the problem.
    top: as from `forward`.
    delta: the sum over E of the output times its cotangent, over the row's total, [B, H, T].
    d_out: the output's cotangent, over the row's total, [B, T, H, E].
    near: the entry of the table from which on its cotangent is asked; those before are any numbers.
  """
  inputs = _inputs(plan, x, d_out, top, delta)
  width, v_width = inputs.q.shape[-1], inputs.v.shape[-1]
  made = (('queries', _like(inputs.q, width, x.q.dtype)),)
  (d_q,) = _call(plan, tpu_kernels.d_q, tpu_grids.by_queries, inputs, made, ((width, plan.block),))
  made = tuple(('keys', _like(t, t.shape[-1], t.dtype)) for t in (inputs.k, inputs.v))
  scratch = (plan.block, width), (plan.block, v_width)
  d_k, d_v = _call(plan, tpu_kernels.d_keys, tpu_grids.by_keys, inputs, made, scratch)
  d_q, d_k, d_v = (
    d.swapaxes(1, 2)[:, : like.shape[1], :, : like.shape[-1]]
    for d, like in ((d_q, x.q), (d_k, x.k), (d_v, x.v))
  )
  return d_q, d_k, d_v, _d_table(plan, x, inputs, near)


def _d_table(plan: Plan, x: Problem, inputs: Inputs, near: int):
  if x.table is None:
    return None
  skipped = table.skipped(near, x.q.shape[1], x.k.shape[1], plan.block, plan.block)
  plan = plan._replace(skipped=skipped)
  n = _sizes(plan, inputs)
  strips = (n.batch, n.heads, n.i + n.j - 1 - skipped, ROWS, 2 * plan.block)
  made = (('strips', jax.ShapeDtypeStruct(strips, jnp.float32)),)
  scratch = ((plan.block, plan.block),)
  (d_rows,) = _call(plan, tpu_kernels.d_table, tpu_grids.by_diagonals, inputs, made, scratch)
  d_strips = jnp.pad(along(d_rows)[..., ROWS - 1 :], [(0, 0)] * 2 + [(skipped, 0), (0, 0)])
  falling = table.from_strips(d_strips[:, :, ::-1])
  found = table.unpadded(_mirrored(falling), x.q.shape[1], x.k.shape[1], plan.block)
  return found.sum(0, keepdims=True) if x.table.shape[0] == 1 else found


# The arrays that a kernel reads, and how they are cut.


def _inputs(plan: Plan, x: Problem, d_out=None, top=None, delta=None) -> Inputs:
  """Heads before tokens; padded with tokens of segment 0, and widths to multiples of 64."""
  tokens = lambda t, axis: widened(t, axis, plan.block)
  heads = lambda t: widened(tokens(t.swapaxes(1, 2), 2), 3, 64)
  rows = lambda t: tokens(t[:, :, None], 3)
  each = lambda side: Tokens(*(tokens(t[:, None], 2) for t in side))
  given = None if x.table is None else _sheared(plan, x, x.table)
  q, k, v = heads(x.q), heads(x.k), heads(x.v)
  inputs = Inputs(q, k, v, each(x.q_tokens), each(x.k_tokens), given, given, x.sinks)
  if d_out is None:
    return inputs
  return inputs._replace(d_out=heads(d_out), top=rows(top), delta=rows(delta))


def _sheared(plan: Plan, x: Problem, given: Array):
  """The padded table, by falling place of the key, 8 times: row r begins r entries later."""
  falling = _mirrored(table.padded(given, x.q.shape[1], x.k.shape[1], plan.block))
  return jnp.stack([jnp.roll(falling, r, -1) for r in range(ROWS)], -2)


def _mirrored(x):
  """Entry n as entry N - n; entry 0, which no tile reads, stays."""
  return jnp.roll(x[..., ::-1], 1, -1)


def _sizes(plan: Plan, x: Inputs) -> tpu_grids.Sizes:
  (batch, heads, queries, _), (_, kv_heads, keys, _) = x.q.shape, x.k.shape
  rows = x.q_tokens.order.shape[0]
  i, j = queries // plan.block, keys // plan.block
  return tpu_grids.Sizes(batch, heads, kv_heads, i, j, rows, plan.skipped)


def _like(x, width: int, dtype):
  return jax.ShapeDtypeStruct((*x.shape[:-1], width), dtype)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 4, 5))
def _call(plan: Plan, kernel, walk_of, x: Inputs, made, scratch):
  """Runs a kernel over a walk; `made` are the outputs: how they are cut, and their shapes."""
  sizes = _sizes(plan, x)
  walk = walk_of(sizes)
  q_tokens, k_tokens = (Tokens(*(t[:, 0] for t in each)) for each in (x.q_tokens, x.k_tokens))
  spans_of = ranges_of_keys if walk_of is tpu_grids.by_keys else ranges
  spans = spans_of(plan.rules, q_tokens, k_tokens, plan.block, plan.block)
  spec = lambda name, like: _spec(plan, sizes, walk, name, like)
  outer = ('parallel',) * (len(walk.grid) - walk.inner)
  return pl.pallas_call(
    functools.partial(kernel, plan, walk),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=walk.grid,
      in_specs=[_input_specs(spec, x)],
      out_specs=[spec(name, like) for name, like in made],
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
    ),
    out_shape=[like for _, like in made],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=outer + ('arbitrary',) * walk.inner
    ),
    cost_estimate=cost(
      kernel.__name__,
      plan.rules,
      x.q.size // x.q.shape[-1] * x.k.shape[2],
      x.q.shape[-1],
      (x, [like for _, like in made]),
    ),
    interpret=plan.interpret,
    name=kernel.__name__,
  )(spans.reshape(-1), x)  # fmt: skip


def _input_specs(spec, x: Inputs) -> Inputs:
  heads = {'q': 'queries', 'k': 'keys', 'v': 'keys', 'd_out': 'queries'}
  cuts = {field: field for field in Inputs._fields} | heads | dict.fromkeys(_ROWS, 'rows')
  specs = lambda field, tree: jax.tree.map(lambda like: spec(cuts[field], like), tree)
  return Inputs(**{field: specs(field, tree) for field, tree in x._asdict().items()})


_ROWS = ('top', 'delta')


def _spec(plan: Plan, n: tpu_grids.Sizes, walk: tpu_grids.Walk, name: str, like) -> pl.BlockSpec:
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
      lambda p: (p.batch, p.head, n.i - 1 - n.skipped - p.i + p.j, 0, 0),
    ),
  }[name]
  return pl.BlockSpec(shape, lambda *ids: index(walk.place(ids[-1], *ids[:-1])))
