"""Fused attention for Hopper GPUs in Pallas' Mosaic GPU backend, in 16 bits.

It computes what `gpu` computes by the Triton backend, which JAX will remove, with the same inputs
and results. Each program copies what it reads ahead of its products (see `mosaic_kernels`). A bias
by distance needs no gather: the table is written once with its row r moved by r numbers, for 64
rows, so that the bias of any tile is one rectangle of it. The table's gradient has a kernel of its
own, in which a program walks along two diagonals of tiles, so that no two programs add to one
number.

It needs jax 0.11.2. No device has run these kernels yet: they are tested as JAX interprets them on
a CPU, with its detection of races, and compiled ahead of time.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from posjax.attention.devices import Device
from posjax.attention.inputs import Rules, Tokens
from posjax.attention.pallas import mosaic_kernels as kernels
from posjax.attention.pallas import table
from posjax.attention.pallas.formulas import Problem, widened
from posjax.attention.pallas.mosaic_kernels import COMPUTING, PAIR, ROWS, Inputs, Scratch
from posjax.attention.pallas.ranges import ranges, ranges_of_keys
from posjax.attention.schedule import visible_tiles
from posjax.attention.softmax import Sums
from posjax.math.toeplitz import along, layout

_WIDTHS = 64, 128  # of heads: others are filled up with zeros


class Plan(NamedTuple):
  """The facts that are known when the attention is traced, for either pass."""

  forward: kernels.Plan
  backward: kernels.Plan


def refusal(q: Any, k: Any, v: Any, device: Device) -> str:
  """Why heads [B, T, H, D] are not computed here; '' if they are."""
  if max(x.shape[-1] for x in (q, k, v)) > max(_WIDTHS):
    return f'a head is wider than {max(_WIDTHS)}'
  if {x.dtype for x in (q, k, v)} != {jnp.dtype(jnp.bfloat16)}:
    return 'the heads are not bfloat16'
  return ''


def plan(rules: Rules, x: Problem, device: Device, interpret: Any = None) -> Plan:
  """Blocks that fit the registers and the shared memory of a Hopper.

  Args:
    rules: the plain arguments of `attend`.
    x: the problem.
    device: Hopper.
    interpret: True, or parameters of JAX's interpreter.
  """
  if interpret is True:
    interpret = plgpu.InterpretGPUParams()  # pyrefly: ignore[missing-attribute]
  columns = PAIR if x.table is None else ROWS  # a tile of the table is square
  return Plan(
    kernels.Plan(rules, columns, 2, interpret or None),
    kernels.Plan(rules, ROWS, 2, interpret or None),
  )


def forward(plan: Plan, x: Problem):
  """The output [B, T, H, E] in the dtype of v, and each row's sums of the softmax, [B, H, T]."""
  own = plan.forward
  inputs = _inputs(x)
  spans = ranges(own.rules, inputs.q_tokens, inputs.k_tokens, PAIR, own.columns)
  inputs = inputs._replace(spans=spans, table=_sheared(x))
  batch, queries, heads, width = inputs.q.shape
  row = jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32)
  out = jax.ShapeDtypeStruct((batch, queries, heads, inputs.v.shape[-1]), x.v.dtype)
  scratch = Scratch.of(own, width, inputs.v.shape[-1], dtype=x.v.dtype, copied=1)
  out, *sums = _call(own, kernels.forward, queries // PAIR, inputs, (out, row, row), scratch)
  out = out[:, : x.q.shape[1], :, : x.v.shape[-1]]
  return out, Sums(*(one[..., : x.q.shape[1]] for one in sums))


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
  own, inputs = plan.backward, _inputs(x, d_out, top, delta)
  q, k, v = (jax.ShapeDtypeStruct(t.shape, t.dtype) for t in (inputs.q, inputs.k, inputs.v))
  scratch = Scratch.of(own, q.shape[-1], v.shape[-1], dtype=v.dtype, copied=2)
  tokens = inputs.q_tokens, inputs.k_tokens
  of_queries = inputs._replace(
    spans=ranges(own.rules, *tokens, PAIR, own.columns), table=_sheared(x)
  )
  (d_q,) = _call(own, kernels.d_q, q.shape[1] // PAIR, of_queries, (q,), scratch)
  of_keys = inputs._replace(
    spans=ranges_of_keys(own.rules, *tokens, own.columns, PAIR), table=_sheared(x, keys_first=True)
  )
  d_k, d_v = _call(own, kernels.d_keys, k.shape[1] // PAIR, of_keys, (k, v), scratch)
  d_q, d_k, d_v = (
    d[:, : like.shape[1], :, : like.shape[-1]] for d, like in ((d_q, x.q), (d_k, x.k), (d_v, x.v))
  )
  return d_q, d_k, d_v, _d_table(own, x, of_queries, near)


def _d_table(plan: kernels.Plan, x: Problem, inputs: Inputs, near: int):
  """The table's cotangent, from the sums of the tiles of each diagonal."""
  if x.table is None:
    return None
  batch, _, heads, _ = inputs.q.shape
  spans = _diagonals(plan.rules, inputs.q_tokens, inputs.k_tokens)
  # A program has tiles of two diagonals, of which the second is that of the program before it.
  skipped = max(0, table.skipped(near, x.q.shape[1], x.k.shape[1], PAIR, ROWS) - 1)
  number = spans.shape[1] - skipped
  made = (jax.ShapeDtypeStruct((batch, heads, number, COMPUTING, ROWS, ROWS), jnp.float32),)
  (tiles,) = _call(plan, kernels.d_table, number, inputs._replace(spans=spans), made)
  # The tiles of warpgroup w in program n are on the diagonal n - w.
  pad = lambda w: jnp.pad(tiles[:, :, :, w], [(0, 0)] * 2 + [(1 - w, w)] + [(0, 0)] * 2)
  strips = jnp.pad(along(pad(0) + pad(1)), [(0, 0)] * 2 + [(skipped, 0), (1, 0)])
  found = table.unpadded(table.from_strips(strips), x.q.shape[1], x.k.shape[1], PAIR)
  return found.sum(0, keepdims=True) if x.table.shape[0] == 1 else found


def _diagonals(rules: Rules, q: Tokens, k: Tokens):
  """For each diagonal of tiles [128, 64], the steps to visit, [b, diagonals, 2].

  Step n of diagonal d is at block n of the queries, and block 2 (n + 1 - blocks of queries) + d of
  the keys. No visible tile is outside of the steps from the first to the one before the last.
  """
  cut = lambda tokens, size: Tokens(*(x.reshape(x.shape[0], -1, size) for x in tokens))
  visible, _ = visible_tiles(rules, cut(q, PAIR), cut(k, ROWS))
  rows, columns = visible.shape[1:]
  step = jnp.arange(rows)
  diagonal = jnp.arange(COMPUTING * (rows - 1) + columns)
  j = COMPUTING * (step + 1 - rows) + diagonal[:, None]
  met = visible[:, step, jnp.clip(j, 0, columns - 1)] & (j >= 0) & (j < columns)
  first = jnp.where(met, step, rows).min(-1)
  last = jnp.where(met, step + 1, 0).max(-1)
  return jnp.stack([jnp.minimum(first, last), last], -1).astype(jnp.int32)


# The arrays that a kernel reads, and how it is called.


def _inputs(x: Problem, d_out=None, top=None, delta=None) -> Inputs:
  """Padded with tokens of segment 0, and widths with zeros."""
  tokens = lambda t, axis: widened(t, axis, PAIR)
  heads = lambda t: widened(tokens(t, 1), 3, _width(t.shape[-1]))
  each = lambda side: Tokens(tokens(side.order, 1), tokens(side.segments, 1))
  inputs = Inputs(
    None, heads(x.q), heads(x.k), heads(x.v), each(x.q_tokens), each(x.k_tokens), None, x.sinks
  )
  if d_out is None:
    return inputs
  return inputs._replace(d_out=heads(d_out), top=tokens(top, 2), delta=tokens(delta, 2))


def _width(width: int) -> int:
  return next(limit for limit in _WIDTHS if limit >= width)


def _sheared(x: Problem, keys_first: bool = False):
  """The table with row r moved by r numbers, [b, H, 64, T + S]: see `kernels.Inputs`."""
  if x.table is None:
    return None
  line = table.padded(x.table, x.q.shape[1], x.k.shape[1], PAIR)
  if keys_first:
    line = jnp.roll(jnp.flip(line, -1), 1, -1)
  return layout(jnp.pad(line, [(0, 0), (0, 0), (ROWS - 1, 0)]), ROWS)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 4, 5))
def _call(plan: kernels.Plan, kernel, blocks: int, x: Inputs, made, scratch: Scratch | None = None):
  """Runs a kernel for each block of its rows; `made` are the shapes of what it makes."""
  rows = made[0].shape
  heads = rows[1] if kernel is kernels.d_table else rows[2]
  return plgpu.kernel(
    functools.partial(kernel, plan),
    out_type=made,
    scratch_types=[] if scratch is None else [scratch],
    grid=(rows[0], heads, blocks),
    grid_names=('batch', 'head', 'block'),
    num_threads=COMPUTING + 1,
    thread_name='warpgroup',
    interpret=plan.interpret,
  )(x)
