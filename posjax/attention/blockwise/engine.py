"""Attention in tiles, for any scheme: memory linear in length, on any device, with gradients.

The forward pass is an online softmax over tiles of keys. The backward pass computes each tile again
(`tiles`), diagonal by diagonal (`attention.schedule`). No [T, S] array exists in either, and every
parameter of a scheme gets its gradient. Where all ids count up by one, what depends on the distance
alone is computed once for each distance (`attention.distances`). A CPU computes one group of heads
after the other (`groups`).

Reference: Rabe, Staats 2021, https://arxiv.org/abs/2112.05682 (attention in tiles); Dao et al.
2022, https://arxiv.org/abs/2205.14135, algorithms 2 and 4 (recomputation from each row's sums).
Derivatives are of first order, backward: `jax.custom_vjp` knows no others.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Inexact

from posjax.attention import distances, places, schedule
from posjax.attention.blockwise import groups, operands, unrolled
from posjax.attention.blockwise.cut import (
  add,
  add_to_bias,
  at,
  change,
  cut_heads,
  cut_tokens,
  join_rows,
  put,
)
from posjax.attention.blockwise.operands import Tiles, build, tile
from posjax.attention.blockwise.tiles import (
  Plan,
  Rows,
  Running,
  add_wide,
  backward,
  forward,
  join,
  split,
)
from posjax.attention.distances import Sizes, Table
from posjax.attention.inputs import Operands, Rules, Side, Tokens
from posjax.attention.softmax import Sums, started
from posjax.known import known
from posjax.math.heads import at_least_float32
from posjax.scheme import Scheme, Values


def attend(
  scheme: Scheme, rules: Rules, x: Operands, inner: Callable[..., Array] | None = None
) -> Inexact[Array, 'B T H E']:
  """Attention in tiles of `tile_size` queries and keys.

  Args:
    scheme: any scheme. One that may not be cut along the keys gets all of them in each tile.
    rules: the plain arguments of `attend`.
    x: its arrays.
    inner: computes places 3 and 4 of a scheme as of `in_tiles`, once place 2 and `values.value` are
      done; None: all keys are here.
  """
  q, k = x.q, x.k
  new_q, new_k = places.query_and_key(scheme, x.params, q, k)  # place 2
  x = x._replace(v=places.value(scheme, x.params, x.v, k))  # place 4: values.value
  width = x.v.shape[-1]
  extra = _added_width(scheme, x)
  if extra:  # `values.output` does not apply to what is added, which gets dimensions of its own
    x = x._replace(v=jnp.pad(x.v, (*((0, 0),) * 3, (0, extra))))
  x = x._replace(q=q._replace(positioned=new_q), k=k._replace(positioned=new_k))
  total = (inner or _in_tiles)(in_tiles(scheme, width if extra else 0), rules, x)
  out = places.output(scheme, x.params, total[..., :width], q)  # place 4: values.output
  return out + total[..., width:] if extra else out


def _added_width(scheme: Scheme, x: Operands) -> int:
  """The width of the output, where the scheme has `values.output` and `values.add`; else 0."""
  if scheme.values.add is None or scheme.values.output == Values().output:
    return 0
  total = jax.ShapeDtypeStruct((*x.q.raw.shape[:-1], x.v.shape[-1]), x.v.dtype)
  output = lambda total: places.output(scheme, x.params, total, x.q)
  return jax.eval_shape(output, total).shape[-1]


@functools.lru_cache(maxsize=1024)  # an equal scheme for each call: JAX would compile another anew
def in_tiles(scheme: Scheme, offset: int) -> Scheme:
  """The scheme with its faster forms in their places, for values after `values.value`.

  Args:
    scheme: any scheme.
    offset: after how many dimensions of the values those of `values.add` begin.
  """
  tiled = scheme.traits.tiled
  add: Any = tiled.add or scheme.values.add

  def padded(params, weights, q_at, k_at):
    return jnp.pad(add(params, weights, q_at, k_at), (*((0, 0),) * 3, (offset, 0)))

  values = Values(add=padded if offset else add)
  return scheme._replace(logits=tiled.logits or scheme.logits, values=values)


def _in_tiles(
  scheme: Scheme, rules: Rules, x: Operands, unroll: bool = True
) -> Inexact[Array, 'B T H E']:
  plan = planned(scheme, rules, x, unroll)
  return _attend(plan, *split(operands.read(plan, x)), counts_up(plan, x))


# For `attend`, as its `inner`: a loop over tiles, where one device of several has the queries.
in_loops = functools.partial(_in_tiles, unroll=False)


def planned(scheme: Scheme, rules: Rules, x: Operands, unroll: bool = True) -> Plan:
  """The facts of a call that are known when it is traced.

  Args:
    scheme: as of `in_tiles`.
    rules: the plain arguments of `attend`.
    x: its arrays, after place 2 and `values.value`.
    unroll: whether a device that launches each computation may get whole rows of tiles; else it
      gets a loop over all tiles, which has no branches either, and needs less memory.
  """
  q, k = x.q, x.k
  (batch, queries, heads), keys = q.raw.shape[:3], k.raw.shape[1]
  budget = groups.most_pairs() if groups.heads_are_independent(scheme) else None
  # A tile holds all heads where a bias, or `relative`, meets ids that do not count up by one.
  apart = budget is not None and scheme.bias is None and scheme.traits.tiled.relative is None
  rows = 1 if apart else batch * heads
  size = tile_size(queries, keys, rows, 'S' in scheme.traits.mixes, budget is not None)
  if jnp.iscomplexobj(q.raw) or jnp.iscomplexobj(k.raw):  # `relative` is defined for real heads
    scheme = _without_relative(scheme)
  tabulated = False
  if distances.is_useful(scheme, q.pos, k.pos):
    tabulated = rules.counting or known(distances.counts_up, q.pos, k.pos)
  if tabulated is False:
    scheme = _without_relative(scheme)
  trained = bool(jax.tree.leaves(split(x.params)[0]))
  plan = Plan(scheme, rules, heads, *size, tabulated, trained, budget)
  if not launches():
    return plan
  if not unroll and 'S' not in scheme.traits.mixes:
    return plan._replace(spans=unrolled.all_keys(queries, keys, plan.queries))
  return _without_branches(plan, q, k, batch)


def counts_up(plan: Plan, x: Operands) -> Bool[Array, ''] | None:
  """Whether all ids count up by one, where that is known only when the program runs; else None."""
  return distances.counts_up(x.q.pos, x.k.pos) if plan.tabulated is None else None


def launches() -> bool:
  """Whether the device launches each computation from the host, as all but CPUs do."""
  return jax.default_backend() != 'cpu'


def _without_branches(plan: Plan, q: Side, k: Side, batch: int) -> Plan:
  """The plan for a device that launches each computation: see `unrolled`."""
  queries, keys = q.order.shape[1], k.order.shape[1]
  known = functools.partial(unrolled.spans, plan.rules, q, k)
  whole = 'S' in plan.scheme.traits.mixes
  if tall := unrolled.height(queries, keys, batch * plan.heads):
    found = None if whole else known(tall)
    found = found or unrolled.all_keys(queries, keys, tall)
    return plan._replace(queries=tall, keys=keys, spans=found, unrolled=True)
  return plan if whole else plan._replace(spans=known(plan.queries))


def _without_relative(scheme: Scheme) -> Scheme:
  tiled = scheme.traits.tiled._replace(relative=None)
  return scheme._replace(traits=scheme.traits._replace(tiled=tiled))


def tile_size(
  queries: int, keys: int, rows: int, whole: bool, grouped: bool, platform: str | None = None
) -> tuple[int, int]:
  """How many queries, and how many keys, a tile has.

  Where there are several tiles, their keys are a multiple of their queries. Measured on CPU
  (RESULTS.md): with few tokens, small tiles leave out more of the future; with many, large ones
  cost less for each pair, as long as their arrays stay in the cache. On an H100, tiles of 128 by
  256 took 0.1 ms each whatever they hold, which is the time to launch what computes them: there,
  and on TPUs, a tile is as large as its arrays of 32 MiB allow.

  Args:
    queries: in all.
    keys: in all.
    rows: batch times heads, as many of them as a tile may have to hold.
    whole: whether a tile must hold all keys.
    grouped: whether tiles hold some rows at a time (`groups`) where they can.
    platform: 'cpu', 'gpu' or 'tpu'; by default what JAX runs on.

  Example:
    >>> tile_size(4096, 4096, 8, False, False, 'cpu'), tile_size(4096, 4096, 8, False, True, 'cpu')
    ((128, 256), (256, 256))
    >>> [tile_size(4096, 4096, rows, False, False, 'gpu') for rows in (8, 96)]
    [(1024, 1024), (256, 256)]
  """
  most, room = max(queries, keys), 2**21
  if (platform or jax.default_backend()) != 'cpu':
    tall, wide, room = 1024, 1024, 2**23
  elif grouped:
    tall, wide = (128, 128) if most < 2048 else (256, 256)
  else:
    tall, wide = (128, 128) if most < 4096 else (128, 256)
  while rows * tall * wide > room and tall > 32:
    tall, wide = tall // 2, wide // 2
  if whole:
    return min(max(room // 2 // (rows * keys), 8), tall, queries), keys
  return min(tall, queries), min(wide, keys)


# Derivatives.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, floats, others, counts_up):
  return _attend_forward(plan, floats, others, counts_up)[0]


def _attend_forward(plan, floats, others, counts_up):
  out, sums = output_and_sums(plan, join(floats, others), counts_up)
  return out, (floats, others, counts_up, out, sums)


def _attend_backward(plan, saved, d_out):
  floats, others, counts_up, out, sums = saved
  d_floats = cotangents(plan, join(floats, others), counts_up, out, sums, d_out)
  return d_floats, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def output_and_sums(
  plan: Plan, x: Operands, counts_up: Bool[Array, ''] | None
) -> tuple[Inexact[Array, 'B T H E'], Sums]:
  """The output before `values.output`, in float32 or wider, and each row's sums, [B, T, H].

  Args:
    plan: of `planned`.
    x: the arrays that it reads (`operands.read`).
    counts_up: of `counts_up`.
  """
  run = lambda tabulated: _forward(plan, build(plan, x, tabulated))
  rows, sums = _either(plan, counts_up, run)
  length = x.q.order.shape[1]
  by_token = lambda one: one.transpose(1, 0, 3, 2).reshape(one.shape[1], -1, plan.heads)[:, :length]
  return join_rows(rows, length, plan.heads), Sums(*map(by_token, sums))


def cotangents(plan: Plan, x: Operands, counts_up, out: Array, sums: Sums, d_out: Array) -> Any:
  """The cotangents of the floats of x, of which these keys may be a part.

  Args:
    plan: as for `output_and_sums`.
    x: likewise.
    counts_up: likewise.
    out: the output over all keys.
    sums: those over all keys.
    d_out: the cotangent of the output.
  """
  floats, others = split(x)
  rows = _rows(plan, x, out, sums, d_out)

  def back(tabulated):
    tiles = lambda floats: build(plan, join(floats, others), tabulated)
    _, tiles_back = jax.vjp(lambda floats: split(tiles(floats))[0], floats)
    return tiles_back(_backward(plan, tiles(floats), rows))[0]

  return _either(plan, counts_up, back)


def _either(plan: Plan, counts_up: Bool[Array, ''] | None, run: Callable[[bool], Any]) -> Any:
  """Calls `run(True)` where ids count up by one, so that a table can be used, else `run(False)`."""
  if counts_up is None:
    return run(bool(plan.tabulated))
  return lax.cond(counts_up, lambda: run(True), lambda: run(False))


def _rows(plan: Plan, x: Operands, out, sums: Sums, d_out) -> Rows:
  cut = lambda by_token: cut_tokens(by_token, plan.queries).swapaxes(-1, -2)
  # All tokens side by side: XLA's CPU backend sums rows of a batch of one more slowly.
  by_token = jnp.real((d_out * out).reshape(-1, *out.shape[2:])).sum(-1)
  delta = cut(by_token.reshape(out.shape[:3]))
  d_out, divisor = cut_heads(d_out, plan.queries, x.v.shape[2]), Sums(*map(cut, sums)).divisor()
  return Rows(d_out / divisor.reshape(*d_out.shape[:3], 1, -1), cut(sums.top), delta / divisor)


# All tiles.


def _forward(plan: Plan, x: Tiles):
  """The output, [rows, B, K, t, E], and the sums of each query."""
  parts = groups.grouped(plan, x)
  if parts.total == 1:
    return _sweep(plan, x)
  one = groups.plan_of(plan, parts)
  run = lambda group: _sweep(one, groups.tiles_of(plan, parts, group, x))
  return jax.tree.map(lambda leaf: groups.joined(parts, leaf), groups.run_each(parts, run))


def _sweep(plan: Plan, x: Tiles):
  """The forward pass over the tiles of one group."""

  def begin(i, j):
    return distances.read(x.table, _sizes(plan, x), i, j * plan.keys), None

  def visit(part, state, along, i, j):
    sums, factor, more = forward(plan, tile(plan, x, part, i, j), at(state.sums, i))
    out = change(state.out, i, lambda old: old * factor[None] + more[None])
    return Running(put(state.sums, i, sums), out), along

  end = lambda state, along, i, j: state
  if plan.unrolled:
    sums, out = unrolled.sweep(plan, x, _start(plan, x))
  else:
    sums, out = _visit_all(plan, x, begin, visit, end, _start(plan, x))
  return out / sums.divisor().reshape(*out.shape[:-1], 1), sums


def _start(plan: Plan, x: Tiles) -> Running:
  """The state before any key, in which the sinks already have their share."""
  wide, real = _dtypes(x)
  _, batch, kv_heads, width, _ = x.v.shape
  rows, shared = x.q_side.order.shape[0], plan.heads // kv_heads
  out = jnp.zeros((rows, batch, kv_heads, shared * plan.queries, width), wide)
  return Running(started((rows, batch, plan.heads, plan.queries), real, x.sinks), out)


def _backward(plan: Plan, x: Tiles, rows: Rows) -> Tiles:
  """The cotangents of the floats of all tiles, in their trees and dtypes."""
  parts = groups.grouped(plan, x)
  sweep = _sweep_back(plan, x, rows) if parts.total == 1 else _grouped_back(plan, parts, x, rows)
  (d_params, d_q_side, d_k_side), d_q, d_k, d_v, d_relative, d_table, d_bias = sweep
  d_sinks = None
  if x.sinks is not None:  # a sink takes its share of each row, and adds nothing to the output
    share = jnp.exp(jnp.minimum(x.sinks.reshape(1, 1, -1, 1) - rows.top, 0))  # padding has a top 0
    d_sinks = -(share * rows.delta).sum((0, 1, 3))
  d_tiles = Tiles(
    params=d_params,
    q=_turned(d_q),
    k=d_k,
    v=d_v,
    relative=_turned(d_relative),
    table=d_table,
    q_side=d_q_side,
    k_side=d_k_side,
    mask=None,
    sinks=d_sinks,
    dropout_key=None,
    dropout_rows=None,
    bias=d_bias,
  )
  return jax.tree.map(like, split(x)[0], d_tiles)


def _grouped_back(plan: Plan, parts: groups.Groups, x: Tiles, rows: Rows):
  """The result of `_sweep_back`, computed group by group."""
  one = groups.plan_of(plan, parts)

  def back(so_far, group):
    tiles, these = groups.tiles_of(plan, parts, group, x), groups.rows_of(parts, group, rows)
    (d_params, *d_sides), *d_heads, d_table, d_part = _sweep_back(one, tiles, these)
    of_params, of_bias = so_far
    of_params = groups.add_params_back(plan, parts, group, x.params, of_params, d_params)
    of_bias = groups.add_bias_back(parts, group, of_bias, d_part)
    return (of_params, of_bias), (d_sides, d_heads, d_table)

  # What groups may share is added up: one cotangent for each group would need far more memory.
  start = _zeros((split(x.params)[0], x.bias))
  (d_params, d_bias), (d_sides, d_heads, d_table) = groups.run_adding(parts, back, start)
  pairs = zip((x.q_side, x.k_side), d_sides, strict=True)
  d_sides = [groups.side_joined(plan, parts, side, d_groups) for side, d_groups in pairs]
  d_heads = [groups.joined(parts, leaf) for leaf in d_heads]
  tables = zip(d_table, x.table, strict=True)
  d_table = Table(*(groups.summed(parts, leaf, table) for leaf, table in tables))
  return (d_params, *d_sides), *d_heads, d_table, d_bias


def _sweep_back(plan: Plan, x: Tiles, rows: Rows):
  """The backward pass over the tiles of one group.

  Returns:
    Cotangents of the floats of (parameters, q_side, k_side), of q, k, v, relative queries, the
    table and the caller's bias. Those of q and of relative queries have their tokens before their
    width.
  """
  heads = _turned(x.q), x.k, x.v, _turned(x.relative)
  start = _zeros((split((x.params, x.q_side, x.k_side))[0], *heads, x.table, x.bias))
  if plan.unrolled:
    return unrolled.sweep_back(plan, x, rows, start)
  sizes, (_, real) = _sizes(plan, x), _dtypes(x)

  def begin(i, j):
    part = distances.read(x.table, sizes, i, j * plan.keys)
    pairs = x.v.shape[1], plan.heads, plan.queries, plan.keys
    bias = jnp.zeros(pairs, real) if part.bias is not None and plan.trained else None
    return part, Table(bias, _zeros(part.vectors))

  def visit(part, grads, d_part, i, j):
    d_tile = backward(plan, tile(plan, x, part, i, j), at(rows, i))
    (d_params, d_q_side, d_k_side), d_q, d_k, d_v, d_relative, d_table, d_bias = grads
    if d_tile.scheme is not None:
      one_params, one_q, one_k = d_tile.scheme
      d_params = add_wide(d_params, one_params)
      d_q_side, d_k_side = add(d_q_side, i, one_q), add(d_k_side, j, one_k)
    d_q, d_relative = add((d_q, d_relative), i, (d_tile.q, d_tile.relative))
    d_k, d_v = add((d_k, d_v), j, (d_tile.k, d_tile.v))
    if d_bias is not None and d_tile.bias is not None:
      d_bias = add_to_bias(d_bias, plan.queries, plan.keys, i, j, d_tile.bias)
    d_scheme = d_params, d_q_side, d_k_side
    sums = d_scheme, d_q, d_k, d_v, d_relative, d_table, d_bias
    return sums, add_wide(d_part, d_tile.table)

  def end(grads, d_part, i, j):
    *others, d_table, d_bias = grads
    return *others, distances.add(d_table, d_part, sizes, i, j * plan.keys), d_bias

  return _visit_all(plan, x, begin, visit, end, start)


def _visit_all(plan: Plan, x: Tiles, begin, visit, end, carry) -> Any:
  """Visits all tiles: those that are known, or those that the program finds visible."""
  if plan.spans is not None:
    return schedule.one_by_one(plan.spans, plan.keys, begin, visit, end, carry)
  return schedule.by_diagonals(*_visible(plan, x), begin, visit, end, carry)


def _turned(leaf: Array | None) -> Array | None:
  return None if leaf is None else leaf.swapaxes(-1, -2)


def like(leaf: Array, cotangent: Array) -> Array:
  """The cotangent in the dtype of its leaf."""
  real = cotangent if jnp.iscomplexobj(leaf) else jnp.real(cotangent)
  return real.astype(leaf.dtype)


def _zeros(tree: Any) -> Any:
  """Zeros to add cotangents to: in float32, or what is wider."""
  zeros = lambda x: jnp.zeros(x.shape, at_least_float32(x))
  return jax.tree.map(zeros, tree)


def _dtypes(x: Tiles) -> tuple[Any, Any]:
  """The dtypes to add outputs and logits in: float32 or wider; the second is never complex."""
  wide = at_least_float32(*jax.tree.leaves(split(x)[0]))
  return wide, jnp.finfo(wide).dtype


def _sizes(plan: Plan, x: Tiles) -> Sizes:
  return Sizes(x.q_side.order.shape[0], plan.queries, plan.keys)


def _visible(plan: Plan, x: Tiles) -> tuple[Bool[Array, 'rows columns'], int]:
  """Which tiles have pairs that may attend, and how many rows one column is as long as."""
  blocks = lambda side: Tokens(side.order.swapaxes(0, 1), side.segments.swapaxes(0, 1))
  some, _ = schedule.visible_tiles(plan.rules, blocks(x.q_side), blocks(x.k_side))
  visible = some.any(0)
  return visible, plan.keys // plan.queries if min(visible.shape) > 1 else 1
