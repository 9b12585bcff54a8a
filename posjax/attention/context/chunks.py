"""Attention of some queries with some of their keys: in tiles, or in fused kernels.

The output and the sums of rows are of these keys alone. The cotangents are taken from the output
and the sums over all keys, so that those of several chunks of keys are added up. All sums of rows
are [B, T, H]; heads and values come after place 2 and `values.value`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from posjax.attention import places
from posjax.attention.blockwise import engine, operands
from posjax.attention.blockwise.tiles import Plan, split
from posjax.attention.devices import here, sharded_axes
from posjax.attention.inputs import Operands, Rules
from posjax.attention.pallas import fused
from posjax.attention.softmax import Sums
from posjax.scheme import Scheme


class Tiles(NamedTuple):
  """In tiles, for any scheme."""

  plan: Plan

  def read(self, x: Operands) -> Operands:
    """The operands, without the arrays that are not needed."""
    return operands.read(self.plan, x)

  def output_and_sums(self, x: Operands) -> tuple[Array, Sums]:
    """The output, and the sums of rows."""
    return engine.output_and_sums(self.plan, x, engine.counts_up(self.plan, x))

  def cotangents(self, x: Operands, out: Array, sums: Sums, d_out: Array) -> Any:
    """The cotangents of the floats of x."""
    return engine.cotangents(self.plan, x, engine.counts_up(self.plan, x), out, sums, d_out)


class Kernels(NamedTuple):
  """In fused kernels, where ids count up by one or do not matter; else in tiles."""

  plan: fused.Plan
  tiles: Tiles

  def read(self, x: Operands) -> Operands:
    """As `Tiles.read`."""
    return self.tiles.read(x)

  def output_and_sums(self, x: Operands) -> tuple[Array, Sums]:
    """As `Tiles.output_and_sums`; the output is rounded to the dtype of the values."""

    def otherwise():
      out, sums = self.tiles.output_and_sums(x)
      return out.astype(x.v.dtype), _turned(sums)

    out, sums = fused.forward(self.plan, *_arrays(x), otherwise)
    return out, _turned(sums)

  def cotangents(self, x: Operands, out: Array, sums: Sums, d_out: Array) -> Any:
    """As `Tiles.cotangents`."""
    heads, sides = _arrays(x)

    def otherwise():
      found = self.tiles.cotangents(x, out, sums, d_out)
      return fused.Heads(found.params, found.q.positioned, found.k.positioned, found.v, None)

    found = fused.backward(self.plan, heads, sides, out, _turned(sums), d_out, otherwise)
    zeros = jax.tree.map(jnp.zeros_like, split(x)[0])
    q, k = zeros.q._replace(positioned=found.q), zeros.k._replace(positioned=found.k)
    return zeros._replace(params=found.params, q=q, k=k, v=found.v)


def plan(scheme: Scheme, rules: Rules, x: Operands) -> Tiles | Kernels:
  """How to compute chunks on this device.

  Args:
    scheme: as of `engine.in_tiles`.
    rules: the plain arguments of `attend`.
    x: the operands of two chunks.
  """
  target = None if here().platform == 'tpu' or sharded_axes() else fused.target_of(here())
  heads = x.q.positioned, x.k.positioned, x.v
  if target is None or fused.refusal(target, scheme, x, *heads, rules):
    return Tiles(engine.planned(scheme, rules, x, unroll=False))
  in_tiles = engine.planned(places.without_place_2(scheme), rules, x, unroll=False)
  counting = rules.counting or scheme.bias is None
  return Kernels(fused.Plan(scheme, rules, target, counting, alike=0), Tiles(in_tiles))


def _arrays(x: Operands) -> tuple[fused.Heads, fused.Sides]:
  q, k = jnp.asarray(x.q.positioned), jnp.asarray(x.k.positioned)
  return fused.Heads(x.params, q, k, x.v, None), fused.sides(x)


def _turned(sums: Sums) -> Sums:
  """Sums [B, T, H] as [B, H, T], or back."""
  return Sums(*(one.swapaxes(1, 2) for one in sums))
