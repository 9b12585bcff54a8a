"""Some heads at a time, so that the arrays of a tile stay in the cache of a CPU's cores.

A tile of 256 queries and keys needs 256 KiB for each head and array, and one core's cache holds the
few arrays of one head, not those of eight. So where a scheme leaves heads to themselves, groups of
heads, or of rows of the batch, are computed one after the other.

Groups depend on the number of cores that the process may use, and cotangents of parameters are
added up group by group. So gradients on another number of cores are equal to rounding only.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from posjax.attention.blockwise.operands import Tiles, without
from posjax.attention.blockwise.tiles import Plan, Rows, add_wide, join, split, wide
from posjax.attention.distances import Table
from posjax.attention.inputs import Side
from posjax.scheme import Params, Scheme, declares

_PAIRS = 2**16  # pairs of a tile that fit the cache of one core: measured, see RESULTS.md


class Groups(NamedTuple):
  """How rows of the batch and key heads are grouped.

  Attributes:
    batch: rows in all.
    kv_heads: key heads in all.
    rows: rows of a group.
    heads: key heads of a group.
    shared: query heads of each key head.
  """

  batch: int
  kv_heads: int
  rows: int
  heads: int
  shared: int

  @property
  def per_row(self) -> int:
    """How many groups hold different heads of the same rows."""
    return self.kv_heads // self.heads

  @property
  def total(self) -> int:
    """How many groups there are."""
    return self.batch // self.rows * self.per_row


def most_pairs() -> int | None:
  """How many pairs a tile should hold at most, over all its heads; None: any number of them.

  On one CPU, as many as the caches of its cores hold. Other devices compute all heads side by side,
  and so do several CPU devices, which may have divided the heads among them.
  """
  if jax.default_backend() != 'cpu' or jax.device_count() > 1:
    return None
  return _PAIRS * _cores()


def _cores() -> int:
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def heads_are_independent(scheme: Scheme) -> bool:
  """Whether tiles may hold some heads only, once what depends on the distance is tabulated."""
  if 'H' in scheme.traits.mixes:
    return False
  return scheme.traits.tiled.cut_heads is not None or not _is_called(scheme)


def _is_called(scheme: Scheme) -> bool:
  """Whether tiles call the scheme at all, once its distances are tabulated."""
  return declares(scheme, 'logits') or scheme.values.add is not None


def grouped(plan: Plan, x: Tiles) -> Groups:
  """The largest groups within the budget: whole rows, or some heads of one row.

  All is one group where heads cannot be computed apart.
  """
  batch, kv_heads = x.v.shape[1:3]
  shared = plan.heads // kv_heads
  whole = Groups(batch, kv_heads, batch, kv_heads, shared)
  by_pairs = plan.scheme.bias is not None and x.table.bias is None
  if plan.budget is None or not heads_are_independent(plan.scheme) or by_pairs or x.q is None:
    return whole
  most = plan.budget // (plan.queries * plan.keys * shared)  # key heads
  if most >= kv_heads:
    return whole._replace(rows=_divisor(batch, most // kv_heads))
  return whole._replace(rows=1, heads=_divisor(kv_heads, most))


def _divisor(number: int, most: int) -> int:
  """The largest divisor that is at most `most`; 1 if there is none."""
  return max(n for n in range(1, number + 1) if number % n == 0 and n <= max(most, 1))


def run_each(groups: Groups, run: Callable[[Any], Any]) -> Any:
  """Calls `run(group)` for one group after the other; the results have a first axis of groups."""
  return lax.map(run, jnp.arange(groups.total))


def run_adding(groups: Groups, run: Callable[[Any, Any], tuple[Any, Any]], start: Any) -> Any:
  """Calls `run(sum so far, group) -> (sum, result)` for one group after the other.

  Returns:
    The last sum, and the results with a first axis of groups.
  """
  return lax.scan(run, start, jnp.arange(groups.total))


def plan_of(plan: Plan, groups: Groups) -> Plan:
  """The plan of one group."""
  return plan._replace(heads=groups.heads * groups.shared)


def params_of(plan: Plan, groups: Groups, group: Any, params: Params) -> Params:
  """The parameters that the tiles of one group compute with."""
  cut_heads, count = plan.scheme.traits.tiled.cut_heads, groups.heads * groups.shared
  if cut_heads is None:  # its tiles need none
    return ()
  return cut_heads(params, group % groups.per_row * count, count, groups.shared)


def add_params_back(
  plan: Plan, groups: Groups, group: Any, params: Params, so_far: Any, d_part: Any
) -> Any:
  """Adds the cotangents of one group's parameters to those of all parameters.

  Args:
    plan: of all heads.
    groups: how rows and heads are grouped.
    group: number of the group.
    params: all parameters.
    so_far: cotangents of their floats, see `tiles.split`.
    d_part: cotangents of the floats of `params_of` the group.
  """
  if plan.scheme.traits.tiled.cut_heads is None:
    return so_far
  floats, others = split(params)
  part = lambda floats: split(params_of(plan, groups, group, join(floats, others)))[0]
  return add_wide(so_far, jax.vjp(part, jax.tree.map(wide, floats))[1](d_part)[0])


def add_bias_back(groups: Groups, group: Any, so_far: Any, d_part: Any) -> Any:
  """Adds the cotangent of one group's part of the caller's bias to that of the whole bias.

  Args:
    groups: how rows and heads are grouped.
    group: number of the group.
    so_far: the cotangent [b, h, T, S], in which an axis of 1 is shared; None where there is none.
    d_part: of the part that `tiles_of` has cut out.
  """
  if so_far is None:
    return None
  row = group // groups.per_row * groups.rows if so_far.shape[0] > 1 else 0
  head = group % groups.per_row * d_part.shape[1] if so_far.shape[1] > 1 else 0
  starts = row, head, 0, 0
  added = lax.dynamic_slice(so_far, starts, d_part.shape) + d_part
  return lax.dynamic_update_slice(so_far, added, starts)


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
    dropout_rows=cut.both(x.dropout_rows, 0, groups.shared),
    bias=cut.both(x.bias, 0, groups.shared),
  )


def _side(plan: Plan, cut: '_Cut', side: Side, shared: int) -> Side:
  """One side of a group: its rows, and of the raw heads its heads."""
  if not _is_called(plan.scheme):
    side = without(side, 'raw', 'pos', 'at')
  raw = cut.heads(cut.rows(side.raw, 1), 3, shared)
  own = jax.tree.map(lambda leaf: cut.rows(leaf, 1), without(side, 'raw', 'index'))
  return own._replace(raw=raw, index=side.index)


def rows_of(groups: Groups, group: Any, x: Rows) -> Rows:
  """The part of one group in the arrays of the backward pass."""
  cut = _Cut(groups, group)
  pairs = cut.both(x.top, 1, groups.shared), cut.both(x.delta, 1, groups.shared)
  return Rows(cut.both(x.d_out, 1), *pairs)


class _Cut(NamedTuple):
  """Cuts a group's part out of one axis, or out of the rows and the axis of heads after them."""

  groups: Groups
  group: Any

  def rows(self, x: Any, axis: int) -> Any:
    return _part(x, axis, self.group // self.groups.per_row, self.groups.rows)

  def heads(self, x: Any, axis: int, shared: int = 1) -> Any:
    return _part(x, axis, self.group % self.groups.per_row, self.groups.heads * shared)

  def both(self, x: Any, axis: int, shared: int = 1) -> Any:
    return None if x is None else self.heads(self.rows(x, axis), axis + 1, shared)


def _part(x: Any, axis: int, number: Any, size: int) -> Any:
  if x is None or x.shape[axis] == 1:  # it is the same for all
    return x
  return lax.dynamic_slice_in_dim(x, number * size, size, axis)


def joined(groups: Groups, x: Any) -> Any:
  """Joins results of each head, [groups, tiles, rows, heads, ...], as [tiles, B, H, ...]."""
  if x is None:
    return None
  tiles, rows, heads = x.shape[1:4]
  x = x.reshape(-1, groups.per_row, tiles, rows, heads, *x.shape[4:])
  x = jnp.moveaxis(x, 2, 0).swapaxes(2, 3)  # [tiles, groups of rows, rows, groups of heads, ..]
  return x.reshape(tiles, groups.batch, -1, *x.shape[5:])


def side_joined(plan: Plan, groups: Groups, side: Side, d_groups: Side) -> Side:
  """The cotangents of the floats of a side, from those of the groups.

  Args:
    plan: of all heads.
    groups: how rows and heads are grouped.
    side: the side of all.
    d_groups: cotangents of the groups' sides, with a first axis of groups.
  """
  floats, _ = split(side)
  if not _is_called(plan.scheme):
    return jax.tree.map(lambda x: jnp.zeros_like(wide(x)), floats)

  def rows(leaf, x):
    x = x.reshape(-1, groups.per_row, *x.shape[1:]).sum(1)  # over groups of heads
    return x.sum(0) if leaf.shape[1] == 1 else jnp.moveaxis(x, 0, 1).reshape(leaf.shape)

  own = jax.tree.map(rows, without(floats, 'raw'), without(d_groups, 'raw'))
  if d_groups.raw is None:
    return own
  raw = joined(groups, jnp.moveaxis(d_groups.raw, 4, 3))
  return own._replace(raw=jnp.moveaxis(raw, 2, 3))


def summed(groups: Groups, x: Any, table: Any) -> Any:
  """Sums cotangents [groups, heads, ...] of a table that all rows share, [H, ...] or [1, ...]."""
  if x is None:
    return None
  apart = groups.per_row if table.shape[0] > 1 else 1
  return x.reshape(-1, apart, *x.shape[1:]).sum(0).reshape(table.shape)
