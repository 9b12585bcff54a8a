"""Some heads at a time, so that what a tile holds stays in the cache of a CPU's cores.

Where no scheme computes with several heads at once, heads need not be computed side by side. A
tile of 256 queries and keys is 256 KiB a head and array: one core's cache holds the few arrays of
one head, not those of eight.

Groups depend on the number of cores that the process may use, and cotangents of parameters are
added up group by group. So gradients on another number of cores are equal to rounding only.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from posjax.border import Side
from posjax.kernels.distances import Table
from posjax.kernels.operands import Tiles, without
from posjax.kernels.tiles import Plan, Rows, join, split, sums, wide
from posjax.scheme import Params, Scheme, declares

_PAIRS = 2**16  # of a tile, in the cache of one core; measured, see RESULTS.md


class Groups(NamedTuple):
  """How rows of the batch and key heads are grouped."""

  batch: int  # rows, in all
  kv_heads: int  # key heads, in all
  rows: int  # of a group
  heads: int  # key heads of a group
  shared: int  # query heads of a key head

  @property
  def per_row(self) -> int:
    """Groups that hold different heads of the same rows."""
    return self.kv_heads // self.heads

  @property
  def number(self) -> int:
    """Of groups."""
    return self.batch // self.rows * self.per_row


def budget() -> int | None:
  """Pairs that a tile should hold at most, over all its heads; None: any number.

  On one CPU, as many as the caches of its cores hold. Other devices compute all heads side by side,
  and so do several CPU devices, which may have split the heads among them.
  """
  if jax.default_backend() != 'cpu' or jax.device_count() > 1:
    return None
  return _PAIRS * _cores()


def _cores() -> int:
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def separable(scheme: Scheme) -> bool:
  """Whether tiles may hold some heads only, once what depends on the distance is tabulated."""
  if 'H' in scheme.whole:
    return False
  return scheme.tiled.cut_heads is not None or not _inside(scheme)


def _inside(scheme: Scheme) -> bool:
  """Whether tiles call the scheme, once its distances are tabulated."""
  return declares(scheme, 'logits') or scheme.values is not None


def grouped(plan: Plan, x: Tiles) -> Groups:
  """The largest groups within the budget: whole rows, or heads of one row; one where it must."""
  batch, kv_heads = x.v.shape[1:3]
  shared = plan.heads // kv_heads
  whole = Groups(batch, kv_heads, batch, kv_heads, shared)
  by_pairs = plan.scheme.bias is not None and x.table.bias is None
  if plan.budget is None or not separable(plan.scheme) or by_pairs or x.q is None:
    return whole
  most = plan.budget // (plan.queries * plan.keys * shared)  # key heads
  if most >= kv_heads:
    return whole._replace(rows=_divisor(batch, most // kv_heads))
  return whole._replace(rows=1, heads=_divisor(kv_heads, most))


def _divisor(number: int, most: int) -> int:
  """The largest divisor that is at most `most`; 1 if there is none."""
  return max(each for each in range(1, number + 1) if number % each == 0 and each <= max(most, 1))


def each(groups: Groups, run: Callable[[Any], Any]) -> Any:
  """`run(group)` one after the other: leaves [groups, ...]."""
  return lax.map(run, jnp.arange(groups.number))


def each_adding(groups: Groups, run: Callable[[Any, Any], tuple[Any, Any]], start: Any) -> Any:
  """The last sum, and leaves [groups, ...], of `run(sum so far, group)` one after the other."""
  return lax.scan(run, start, jnp.arange(groups.number))


def plan_of(plan: Plan, groups: Groups) -> Plan:
  """The plan of one group."""
  return plan._replace(heads=groups.heads * groups.shared)


def params_of(plan: Plan, groups: Groups, group: Any, params: Params) -> Params:
  """The parameters that the tiles of one group compute with."""
  cut_heads, count = plan.scheme.tiled.cut_heads, groups.heads * groups.shared
  if cut_heads is None:  # its tiles need none
    return ()
  return cut_heads(params, group % groups.per_row * count, count, groups.shared)


def params_back(
  plan: Plan, groups: Groups, group: Any, params: Params, so_far: list, found: list
) -> list[Array | None]:
  """Cotangents of the floats of all parameters so far, and those of `params_of` of one group."""
  if plan.scheme.tiled.cut_heads is None:
    return so_far
  floats, others = split(params)
  tree = jax.tree.structure(params)
  part = lambda floats: split(params_of(plan, groups, group, join(tree, floats, others)))[0]
  return sums(so_far, jax.vjp(part, jax.tree.map(wide, floats))[1](found)[0])


def tiles_of(plan: Plan, groups: Groups, group: Any, x: Tiles) -> Tiles:
  """The tiles of one group."""
  cut = _Cut(groups, group)
  return Tiles(
    params=params_of(plan, groups, group, x.params),
    q=cut.both(x.q, 1),
    k=cut.both(x.k, 1),
    v=cut.both(x.v, 1),
    relative=cut.both(x.relative, 1, groups.shared),
    table=Table(*(cut.heads(part, 0, groups.shared) for part in x.table)),
    q_side=_side(plan, cut, x.q_side, groups.shared),
    k_side=_side(plan, cut, x.k_side, 1),
    mask=cut.both(x.mask, 2, groups.shared),
    sinks=cut.heads(x.sinks, 0, groups.shared),
    dropout_key=x.dropout_key,
    numbers=cut.both(x.numbers, 0, groups.shared),
  )


def _side(plan: Plan, cut: '_Cut', side: Side, shared: int) -> Side:
  """One side of a group: its rows of what all heads share, and its heads of the raw ones."""
  if not _inside(plan.scheme):
    side = without(side, 'raw', 'pos', 'at')
  raw = cut.heads(cut.rows(side.raw, 1), 3, shared)
  own = jax.tree.map(lambda leaf: cut.rows(leaf, 1), without(side, 'raw', 'index'))
  return own._replace(raw=raw, index=side.index)


def rows_of(groups: Groups, group: Any, x: Rows) -> Rows:
  """What the backward pass knows of the queries of one group."""
  cut = _Cut(groups, group)
  pairs = cut.both(x.log_sums, 1, groups.shared), cut.both(x.delta, 1, groups.shared)
  return Rows(cut.both(x.d_out, 1), *pairs)


class _Cut(NamedTuple):
  """Takes a group's part of one axis, or of the rows and the heads after them."""

  groups: Groups
  group: Any

  def rows(self, x: Any, axis: int) -> Any:
    return _part(x, axis, self.group // self.groups.per_row, self.groups.rows)

  def heads(self, x: Any, axis: int, shared: int = 1) -> Any:
    return _part(x, axis, self.group % self.groups.per_row, self.groups.heads * shared)

  def both(self, x: Any, axis: int, shared: int = 1) -> Any:
    return None if x is None else self.heads(self.rows(x, axis), axis + 1, shared)


def _part(x: Any, axis: int, number: Any, size: int) -> Any:
  if x is None or x.shape[axis] == 1:  # one for all
    return x
  return lax.dynamic_slice_in_dim(x, number * size, size, axis)


def joined(groups: Groups, x: Any) -> Any:
  """What each head has, [groups, tiles, rows, heads, ...], as [tiles, B, H, ...]."""
  if x is None:
    return None
  tiles, rows, heads = x.shape[1:4]
  x = x.reshape(-1, groups.per_row, tiles, rows, heads, *x.shape[4:])
  x = jnp.moveaxis(x, 2, 0).swapaxes(2, 3)  # [tiles, groups of rows, rows, groups of heads, ..]
  return x.reshape(tiles, groups.batch, -1, *x.shape[5:])


def side_joined(
  plan: Plan, groups: Groups, of: Side, found: list[Array | None]
) -> list[Array | None]:
  """The cotangents of the floats of a side, from those of the groups.

  Args:
    plan: of all.
    groups: how rows and heads are grouped.
    of: the side of all.
    found: of each group, with a first axis of groups.
  """
  if not _inside(plan.scheme):
    return jax.tree.map(lambda x: jnp.zeros_like(wide(x)), split(of)[0])
  tree = jax.tree.structure(of)
  side = tree.unflatten(found)

  def rows(of, x):
    if x is None:
      return None
    x = x.reshape(-1, groups.per_row, *x.shape[1:]).sum(1)  # of all heads
    return x.sum(0) if of.shape[1] == 1 else jnp.moveaxis(x, 0, 1).reshape(of.shape)

  own = jax.tree.map(rows, without(of, 'raw'), without(side, 'raw'))
  if side.raw is not None:
    raw = joined(groups, jnp.moveaxis(side.raw, 4, 3))
    own = own._replace(raw=jnp.moveaxis(raw, 2, 3))
  return tree.flatten_up_to(own)


def summed(groups: Groups, x: Any, of: Any) -> Any:
  """What all rows share, [groups, heads, ...], in the shape of `of`, [H, ...] or [1, ...]."""
  if x is None:
    return None
  apart = groups.per_row if of.shape[0] > 1 else 1
  return x.reshape(-1, apart, *x.shape[1:]).sum(0).reshape(of.shape)
