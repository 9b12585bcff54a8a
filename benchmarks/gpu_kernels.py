"""The fused kernels one by one, with blocks of one's own, beside dense attention: for gpu_sweep.

A check looks at the last queries alone: their logits fit into memory, all keys take part in them,
and the gradients of all other queries are zero where their cotangents are.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from posjax.attention.devices import Device
from posjax.attention.inputs import Rules, Tokens
from posjax.attention.pallas import gpu
from posjax.attention.pallas.formulas import Problem
from posjax.attention.pallas.gpu_kernels import Blocks

Sweep = dict[str, tuple[tuple[int, int, int, int], ...]]
# Queries and keys of a block, warps, stages, for each kernel: those that published sweeps of such
# kernels ended with, and neighbours.
BLOCKS: Sweep = {
  'output': ((128, 64, 4, 3), (64, 128, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3)),
  'd_q': ((64, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 2)),
  'd_keys': ((64, 64, 4, 3), (64, 128, 4, 2), (64, 128, 8, 2)),
  'd_table': ((64, 64, 4, 2), (64, 64, 4, 3), (128, 128, 8, 1)),
}
SMALL_BLOCKS: Sweep = {
  'output': ((16, 32, 4, 2),),
  'd_q': ((32, 16, 4, 2),),
  'd_keys': ((16, 32, 4, 2),),
  'd_table': ((32, 32, 4, 2),),
}


class Rehearsed:
  """The GPU's kernels in small blocks, interpreted: what runs where there is no GPU."""

  forward, backward, refusal = map(staticmethod, (gpu.forward, gpu.backward, gpu.refusal))

  @staticmethod
  def plan(rules: Rules, x: Problem, device: Device, interpret: bool = True) -> gpu.Plan:
    """Blocks of 16 tokens."""
    return gpu.Plan(rules, *[Blocks(16, 16, 4, 2)] * 4, interpret=True)


class Given(NamedTuple):
  """What a backward kernel reads besides the problem, as `backward` of the kernels says."""

  top: jax.Array
  delta: jax.Array
  d_out: jax.Array


def rules_of(width: int) -> Rules:
  """Causal attention."""
  return Rules(width**-0.5, True, None, None, 0.0)


def problem(length: int, heads: int, width: int, table: bool) -> tuple[Problem, jax.Array]:
  """One row of random bfloat16 heads, perhaps a bias, and the cotangent of the output."""
  keys = jax.random.split(jax.random.key(0), 5)
  shape = 1, length, heads, width
  q, k, v, d_out = (jax.random.normal(key, shape, jnp.bfloat16) for key in keys[:4])
  bias = jax.random.normal(keys[4], (1, heads, 2 * length - 1)) if table else None
  order = jnp.arange(length, dtype=jnp.int32)[None]
  tokens = Tokens(order, jnp.ones_like(order))
  return Problem(q, k, v, bias, None, tokens, tokens), d_out


def given(kernels: ModuleType, plan: Any, x: Problem, d_out: jax.Array) -> Given:
  """What forward kernels and a cotangent give to backward ones, as `fused` computes it."""
  out, sums = kernels.forward(plan, x)
  divisor, wide = sums.divisor(), d_out.astype(jnp.float32)
  delta = (out.astype(jnp.float32) * wide).sum(-1).swapaxes(1, 2) / divisor
  over = wide / divisor.swapaxes(1, 2)[..., None]
  return Given(sums.top, delta, over.astype(x.v.dtype))


def pieces(kernels: ModuleType, plan: Any, table: bool) -> dict[str, Callable[..., dict]]:
  """A function of (problem, given) for each kernel: XLA drops the kernels whose results it drops.

  Each returns its results by name.
  """

  def backward(*names):
    def some(x, given):
      found = kernels.backward(plan, x, *given)
      return {name: found[('d_q', 'd_k', 'd_v', 'd_table').index(name)] for name in names}

    return some

  found = {
    'output': lambda x, given: {'output': kernels.forward(plan, x)[0]},
    'd_q': backward('d_q'),
    'd_keys': backward('d_k', 'd_v'),
  }
  return found | {'d_table': backward('d_table')} if table else found


def dense(x: Problem, d_out: jax.Array, last: int) -> dict[str, jax.Array]:
  """The output of the last queries and all gradients, where only these have a cotangent."""
  length = x.q.shape[1]
  t = jnp.arange(length - last, length)[:, None]
  s = jnp.arange(length)[None]

  def attention(q, k, v, table):
    logits = jnp.einsum('bthd,bshd->bhts', q, k) * rules_of(q.shape[-1]).scale
    if table is not None:
      logits = logits + table[:, :, s - t + length - 1]
    weights = jax.nn.softmax(jnp.where(s <= t, logits, -jnp.inf), -1)
    return jnp.einsum('bhts,bshd->bthd', weights, v)

  @jax.jit
  def both(q, k, v, table, d_out):
    out, back = jax.vjp(attention, q, k, v, table)
    return dict(zip(('output', 'd_q', 'd_k', 'd_v', 'd_table'), (out, *back(d_out)), strict=True))

  wide = [heads.astype(jnp.float32) for heads in (x.q[:, -last:], x.k, x.v)]
  with jax.default_matmul_precision('highest'):
    return both(*wide, x.table, d_out[:, -last:].astype(jnp.float32))


def error(found: dict[str, jax.Array], expected: dict[str, jax.Array], last: int) -> float:
  """The largest error of some results, each relative to the largest number of its like."""
  most = 0.0
  for name, one in found.items():
    one = one[:, -last:] if name in ('output', 'd_q') else one
    other = expected[name]
    most = max(most, float(abs(one.astype(jnp.float32) - other).max() / abs(other).max()))
  return most
