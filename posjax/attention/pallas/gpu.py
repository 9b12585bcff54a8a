"""Fused attention for NVIDIA GPUs: Pallas kernels for the output, d_q, d_k with d_v, and d_table.

Each program computes one block of the result and loops over the blocks that it visits. Those where
all pairs may attend are not masked: `ranges` says which, before a kernel runs. The bias of a tile
is gathered from the table. The table's gradient has a kernel of its own, in which a program walks
along one diagonal of square tiles, so that no two programs add to one number (no atomics: the same
bits each time). It writes a tile for each diagonal, linear in the length, and XLA sums the tile's
diagonals; where the gradient is not asked for, XLA drops the kernel.

The kernels are for Pallas' Triton backend, which is named by its compiler parameters: the default
differs between jax 0.10 and 0.11. It is deprecated since jax 0.11, and will be removed, no date
given. `mosaic` computes the same on Hopper in the backend that stays.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from posjax.attention.devices import KNOWN, Device
from posjax.attention.inputs import Rules, Tokens
from posjax.attention.pallas import gpu_kernels, table
from posjax.attention.pallas.formulas import Problem, cost, widened
from posjax.attention.pallas.gpu_kernels import Blocks, Inputs
from posjax.attention.pallas.ranges import ranges, ranges_of_keys
from posjax.attention.softmax import Sums
from posjax.math.toeplitz import along


class Plan(NamedTuple):
  """The facts that are known when the attention is traced; `d_table` has square blocks."""

  rules: Rules
  output: Blocks
  d_q: Blocks
  d_keys: Blocks
  d_table: Blocks
  interpret: bool = False

  @property
  def multiple(self) -> int:
    """The number that padded lengths are a multiple of."""
    return max(n for blocks in self[1:5] for n in blocks[:2])


# By head width in 16 bits, for the output, d_q, d_keys and d_table: queries and keys of a block,
# warps, stages. Chosen by what the compiler says for an H100, where next to nothing is spilled; by
# measured time not yet. float32 is multiplied without tensor cores, and takes the last line. To a
# width of 256, the blocks fit the 163 KiB of shared memory of an A100, too.
_BLOCKS = {
  64: ((128, 64, 8, 3), (128, 64, 8, 2), (64, 128, 8, 2), (64, 64, 4, 2)),
  128: ((128, 64, 8, 3), (128, 32, 8, 2), (32, 128, 8, 2), (64, 64, 4, 2)),
  256: ((128, 32, 8, 2), (64, 32, 8, 2), (32, 64, 8, 2), (64, 64, 8, 1)),
  1024: ((32, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)),
}
# The same for the 99 KiB of other GPUs before Hopper, to a width of 256.
_SMALL_BLOCKS = {
  64: ((64, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 2), (64, 64, 4, 2)),
  128: ((64, 64, 4, 2), (64, 32, 4, 2), (32, 64, 4, 2), (64, 64, 4, 1)),
  256: ((64, 32, 4, 2), (32, 32, 4, 2), (32, 32, 4, 2), (32, 32, 4, 1)),
  1024: ((16, 16, 4, 1), (16, 16, 4, 1), (16, 16, 4, 1), (16, 16, 4, 1)),
}


def refusal(q: Any, k: Any, v: Any, device: Device) -> str:
  """Why heads [B, T, H, D] are not computed here; '' if they are."""
  if max(_width(x.shape[-1]) * x.dtype.itemsize for x in (q, k, v)) > 2048:
    return 'a head is wider than 2048 bytes'
  if _before_hopper(device) and max(x.shape[-1] for x in (q, k, v)) > 256:
    return 'a head is wider than 256, and the GPU is older than Hopper'
  if max(x.size // x.shape[-1] * _width(x.shape[-1]) for x in (q, v)) >= 2**31:
    return 'the heads are 2^31 numbers or more, and a kernel counts in int32'
  return ''


def plan(rules: Rules, x: Problem, device: Device, interpret: bool = False) -> Plan:
  """Blocks that fit the registers and the shared memory of the device at the head width."""
  width = max(_width(x.q.shape[-1]), _width(x.v.shape[-1]))
  wide = x.q.dtype.itemsize > 2 or x.v.dtype.itemsize > 2
  least = max(_BLOCKS) if wide else min(limit for limit in _BLOCKS if limit >= width)
  blocks = _SMALL_BLOCKS if _before_hopper(device) and device != KNOWN['ampere'] else _BLOCKS
  output, d_q, d_keys, d_table = (Blocks(*one) for one in blocks[least])
  return Plan(rules, output, d_q, d_keys, d_table, interpret)


def _before_hopper(device: Device) -> bool:
  return device.capability is not None and device.capability < (9, 0)


def forward(plan: Plan, x: Problem):
  """The output [B, T, H, E] in the dtype of v, and each row's sums of the softmax, [B, H, T]."""
  inputs = _inputs(plan, x)
  batch, queries, heads, _ = inputs.q.shape
  out = jax.ShapeDtypeStruct((batch, queries, heads, inputs.v.shape[-1]), x.v.dtype)
  row = jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32)
  grid = queries // plan.output.queries, heads, batch
  made = out, row, row
  out, *sums = _call(plan, gpu_kernels.forward, plan.output, ranges, grid, inputs, made)
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
  inputs = _inputs(plan, x, d_out, top, delta)
  q, k, v = (jax.ShapeDtypeStruct(t.shape, t.dtype) for t in inputs[1:4])
  grid = q.shape[1] // plan.d_q.queries, q.shape[2], q.shape[0]
  (d_q,) = _call(plan, gpu_kernels.d_q, plan.d_q, ranges, grid, inputs, (q,))
  grid = k.shape[1] // plan.d_keys.keys, k.shape[2], k.shape[0]
  d_k, d_v = _call(plan, gpu_kernels.d_keys, plan.d_keys, ranges_of_keys, grid, inputs, (k, v))
  d_q, d_k, d_v = (
    d[:, : like.shape[1], :, : like.shape[-1]] for d, like in ((d_q, x.q), (d_k, x.k), (d_v, x.v))
  )
  return d_q, d_k, d_v, _d_table(plan, x, inputs, near)


def _d_table(plan: Plan, x: Problem, inputs: Inputs, near: int):
  if x.table is None:
    return None
  (batch, queries, heads, _), keys = inputs.q.shape, inputs.k.shape[1]
  block = plan.d_table.queries
  skipped = table.skipped(near, x.q.shape[1], x.k.shape[1], plan.multiple, block)
  grid = (queries + keys) // block - 1 - skipped, heads, batch
  made = (jax.ShapeDtypeStruct((batch, heads, grid[0], block, block), jnp.float32),)
  (tiles,) = _call(plan, gpu_kernels.d_table, plan.d_table, ranges, grid, inputs, made)
  strips = jnp.pad(along(tiles), [(0, 0)] * 2 + [(skipped, 0), (1, 0)])
  found = table.from_strips(strips)
  found = table.unpadded(found, x.q.shape[1], x.k.shape[1], plan.multiple)
  return found.sum(0, keepdims=True) if x.table.shape[0] == 1 else found


# The arrays that a kernel reads, and how they are cut.


def _inputs(plan: Plan, x: Problem, d_out=None, top=None, delta=None) -> Inputs:
  """Padded with tokens of segment 0, and widths to powers of two."""
  tokens = lambda t, axis: widened(t, axis, plan.multiple)
  heads = lambda t: widened(tokens(t, 1), 3, _width(t.shape[-1]))
  each = lambda side: Tokens(tokens(side.order, 1), tokens(side.segments, 1))
  given = None
  if x.table is not None:
    given = table.padded(x.table, x.q.shape[1], x.k.shape[1], plan.multiple)
  q, k, v = heads(x.q), heads(x.k), heads(x.v)
  inputs = Inputs(None, q, k, v, each(x.q_tokens), each(x.k_tokens), given, x.sinks)
  if d_out is None:
    return inputs
  return inputs._replace(d_out=heads(d_out), top=tokens(top, 2), delta=tokens(delta, 2))


def _width(width: int) -> int:
  return max(16, pl.next_power_of_2(width))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 6))
def _call(plan: Plan, kernel, blocks: Blocks, spans_of, grid, x: Inputs, made):
  """Runs a kernel over a grid; `made` are the shapes of what it makes."""
  spans = spans_of(plan.rules, x.q_tokens, x.k_tokens, blocks.queries, blocks.keys)
  return pl.pallas_call(
    functools.partial(kernel, plan.rules, blocks),
    grid=grid,
    out_shape=made,
    compiler_params=plgpu.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
    cost_estimate=cost(
      kernel.__name__,
      plan.rules,
      x.q.size // x.q.shape[-1] * x.k.shape[1],
      x.q.shape[-1],
      (x, made),
    ),
    interpret=plan.interpret,
    name=kernel.__name__,
  )(x._replace(spans=spans))
