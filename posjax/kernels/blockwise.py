"""Attention in tiles, for any scheme: memory linear in length, on any device, with gradients.

Online softmax over tiles of keys, and a backward pass that computes each tile again
(`kernels.tiles`), diagonal by diagonal (`kernels.walk`). No [T, S] array exists, forward or
backward, and every parameter that a scheme has gets its gradient. Where all ids count up by one,
what depends on the distance alone is tabulated first (`kernels.distances`). A CPU computes some
heads after the others (`kernels.groups`).

Reference: Rabe, Staats 2021, https://arxiv.org/abs/2112.05682 (attention in tiles); Dao et al.
2022, https://arxiv.org/abs/2205.14135, algorithms 2 and 4 (recomputation from the row's logarithm).
Derivatives are of first order, backward: `jax.custom_vjp` knows no others.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact

from posjax.border import Rules, Side
from posjax.kernels import distances, groups, operands, walk
from posjax.kernels.cut import add, at, change, cut_heads, cut_tokens, glue_rows, put
from posjax.kernels.distances import Sizes, Table
from posjax.kernels.operands import Operands, Tiles, build, tile
from posjax.kernels.tiles import Plan, Rows, Running, Sums, cotangents, join, soften, split, sums
from posjax.scheme import Params, PRNGKey, Scheme, in_tiles
from posjax.tile import UNSEEN


def attend(
  scheme: Scheme,
  params: Params,
  q: Side,
  k: Side,
  v: Inexact[Array, 'B S K E'],
  rules: Rules,
  mask: Bool[Array, 'b h T S'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
  dropout_key: PRNGKey | None = None,
) -> Inexact[Array, 'B T H E']:
  """What `attention.dense` computes, in tiles of `tile_size` queries and keys.

  Args:
    scheme: any scheme. One that needs whole rows gets all keys at once, for fewer queries.
    params: its parameters.
    q: the queries' side.
    k: the keys' side.
    v: values.
    rules: see `border.rules`.
    mask: True may attend.
    sinks: one logit per head.
    dropout_key: see `tile.kept`.
  """
  scheme = in_tiles(scheme)
  (batch, queries, heads), keys = q.placed.shape[:3], k.placed.shape[1]
  budget = groups.budget() if groups.separable(scheme) else None
  # A tile holds all heads where a bias, or `relative`, meets ids that do not count up by one.
  apart = budget is not None and scheme.bias is None and scheme.tiled.relative is None
  rows = 1 if apart else batch * heads
  size = tile_size(queries, keys, rows, 'S' in scheme.whole, budget is not None)
  if jnp.iscomplexobj(q.raw) or jnp.iscomplexobj(k.raw):  # `relative` is defined for real heads
    scheme = _without_relative(scheme)
  if distances.able(scheme, q.pos, k.pos):
    counts = distances.counts_up(q.pos, k.pos)
  else:
    counts = None
    scheme = _without_relative(scheme)
  q, k = operands.asked(scheme, rules, q), operands.asked(scheme, rules, k)
  x = Operands(params, q, k, v, mask, sinks, dropout_key)
  learned = any(leaf is not None for leaf in split(params)[0])
  plan = Plan(scheme, rules, heads, *size, learned, budget)
  return _attend(plan, jax.tree.structure(x), *split(x), counts)


def _without_relative(scheme: Scheme) -> Scheme:
  return scheme._replace(tiled=scheme.tiled._replace(relative=None))


def tile_size(queries: int, keys: int, rows: int, whole: bool, grouped: bool) -> tuple[int, int]:
  """Queries, and keys, of a tile; of several, the keys are a multiple of the queries.

  Measured on CPU (RESULTS.md): of few tokens, small tiles skip more of the future; of many, large
  ones cost less for each pair, as long as what a tile holds stays in the cache.

  Args:
    queries: in all.
    keys: in all.
    rows: batch times heads, as many as a tile may have to hold.
    whole: whether a tile must hold all keys.
    grouped: whether tiles hold some rows at a time (`kernels.groups`) where they can.

  Example:
    >>> tile_size(4096, 4096, 8, False, False), tile_size(4096, 4096, 8, False, True)
    ((128, 256), (256, 256))
  """
  most = max(queries, keys)
  if grouped:
    tall, wide = (128, 128) if most < 2048 else (256, 256)
  else:
    tall, wide = (128, 128) if most < 4096 else (128, 256)
  while rows * tall * wide > 2**21 and tall > 32:
    tall, wide = tall // 2, wide // 2
  if whole:
    return min(max(2**20 // (rows * keys), 8), tall, queries), keys
  return min(tall, queries), min(wide, keys)


# Derivatives.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(plan, tree, floats, others, counts):
  return _attend_forward(plan, tree, floats, others, counts)[0]


def _attend_forward(plan, tree, floats, others, counts):
  x = join(tree, floats, others)
  rows, log_sums = _either(counts, lambda tabled: _forward(plan, build(plan, x, tabled)))
  out = glue_rows(rows, x.q.order.shape[1], plan.heads)
  return out, (floats, others, counts, out, log_sums)


def _attend_backward(plan, tree, saved, d_out):
  floats, others, counts, out, log_sums = saved
  rows = _rows(plan, join(tree, floats, others), out, log_sums, d_out)

  def backward(tabled):
    tiles = lambda floats: build(plan, join(tree, floats, others), tabled)
    _, back = jax.vjp(lambda floats: split(tiles(floats))[0], floats)
    return back(_backward(plan, tiles(floats), rows))[0]

  return _either(counts, backward), [None] * len(others), None


_attend.defvjp(_attend_forward, _attend_backward)


def _either(counts: Bool[Array, ''] | None, run: Callable[[bool], Any]) -> Any:
  """With a table where ids count up by one, and without."""
  if counts is None:
    return run(False)
  return lax.cond(counts, lambda: run(True), lambda: run(False))


def _rows(plan: Plan, x: Operands, out, log_sums, d_out) -> Rows:
  # Of all tokens side by side: XLA's CPU backend sums rows of a batch of one more slowly.
  by_token = jnp.real((d_out * out).reshape(-1, *out.shape[2:])).sum(-1)
  delta = cut_tokens(by_token.reshape(out.shape[:3]), plan.queries).swapaxes(-1, -2)
  d_out = cut_heads(d_out, plan.queries, x.v.shape[2])
  return Rows(d_out, log_sums, delta)


# All tiles.


def _forward(plan: Plan, x: Tiles):
  """The output, [rows, B, K, t, E], and the logarithm of each row's sum of exponentials."""
  parts = groups.grouped(plan, x)
  one = groups.plan_of(plan, parts)
  if parts.number == 1:
    return _sweep(plan, x)
  found = groups.each(parts, lambda group: _sweep(one, groups.tiles_of(plan, parts, group, x)))
  return tuple(groups.joined(parts, leaf) for leaf in found)


def _sweep(plan: Plan, x: Tiles):
  """`_forward` of one group."""

  def visit(table, state, along, i, j):
    so_far, fade, more = soften(plan, tile(x, table, i, j), at(state.so_far, i))
    out = change(state.out, i, lambda old: old * fade[None] + more[None])
    return Running(put(state.so_far, i, so_far), out), along

  begin = lambda i, j: (distances.read(x.table, _sizes(plan, x), i, j), None)
  end = lambda state, along, i, j: state
  (top, total), out = walk.by_diagonals(*_meets(plan, x), begin, visit, end, _start(plan, x))
  total = jnp.maximum(total, 1e-37)
  return out / total.reshape(*out.shape[:-1], 1), top + jnp.log(total)


def _start(plan: Plan, x: Tiles) -> Running:
  """Before any key: what the sinks take."""
  wide, real = _dtypes(x)
  _, batch, kv_heads, width, _ = x.v.shape
  rows, groups = x.q_side.order.shape[0], plan.heads // kv_heads
  shape = rows, batch, plan.heads, plan.queries
  out = jnp.zeros((rows, batch, kv_heads, groups * plan.queries, width), wide)
  if x.sinks is None:
    top = jnp.full(shape, UNSEEN / 2, real)
    return Running(Sums(top, jnp.zeros_like(top)), out)
  top = jnp.broadcast_to(x.sinks.reshape(1, 1, -1, 1), shape).astype(real)
  return Running(Sums(top, jnp.ones_like(top)), out)


def _backward(plan: Plan, x: Tiles, rows: Rows) -> list[Array | None]:
  """The cotangents of the floats of `x`, in the order and the dtypes of its leaves."""
  parts = groups.grouped(plan, x)
  sweep = _sweep_back(plan, x, rows) if parts.number == 1 else _grouped_back(plan, parts, x, rows)
  (d_params, d_q_side, d_k_side), *d_heads, d_table = sweep
  d_q, d_k, d_v, d_relative = d_heads
  found = [*d_params]
  found += [*jax.tree.leaves((_turned(d_q), d_k, d_v, _turned(d_relative), d_table))]
  found += [*d_q_side, *d_k_side]
  found += [None] * (x.mask is not None)
  if x.sinks is not None:
    taken = jnp.exp(x.sinks.reshape(1, 1, -1, 1) - rows.log_sums) * rows.delta
    found.append(-taken.sum((0, 1, 3)))
  found += [None] * (x.dropout_key is not None) + [None] * (x.numbers is not None)
  return [_as(leaf, grad) for leaf, grad in zip(split(x)[0], found, strict=True)]


def _grouped_back(plan: Plan, parts: groups.Groups, x: Tiles, rows: Rows):
  """What `_sweep_back` returns, group by group."""
  one = groups.plan_of(plan, parts)

  def back(so_far, group):
    tiles, these = groups.tiles_of(plan, parts, group, x), groups.rows_of(parts, group, rows)
    (d_params, *d_sides), *d_heads, d_table = _sweep_back(one, tiles, these)
    so_far = groups.params_back(plan, parts, group, x.params, so_far, d_params)
    return so_far, (d_sides, d_heads, d_table)

  start = _zeros(split(x.params)[0])
  d_params, (d_sides, d_heads, d_table) = groups.each_adding(parts, back, start)
  sides = zip((x.q_side, x.k_side), d_sides, strict=True)
  tables = zip(d_table, x.table, strict=True)
  d_sides = [groups.side_joined(plan, parts, of, found) for of, found in sides]
  d_heads = [groups.joined(parts, leaf) for leaf in d_heads]
  d_table = Table(*(groups.summed(parts, leaf, of) for leaf, of in tables))
  return (d_params, *d_sides), *d_heads, d_table


def _sweep_back(plan: Plan, x: Tiles, rows: Rows):
  """Cotangents of (parameters, sides), q, k, v, relative queries and the table, of one group.

  Those of q and of relative queries have their tokens before their width.
  """
  sizes, (meets, ratio), (_, real) = _sizes(plan, x), _meets(plan, x), _dtypes(x)

  def begin(i, j):
    part = distances.read(x.table, sizes, i, j)
    pairs = x.v.shape[1], plan.heads, plan.queries, plan.keys
    bias = jnp.zeros(pairs, real) if part.bias is not None and plan.learned else None
    return part, Table(bias, _zeros(part.vectors))

  def visit(part, grads, d_part, i, j):
    found = cotangents(plan, tile(x, part, i, j), at(rows, i))
    (d_params, d_q_side, d_k_side), d_q, d_k, d_v, d_relative, d_table = grads
    if found.floats is not None:
      one_params, one_q, one_k = found.floats
      d_params = sums(d_params, one_params)
      d_q_side, d_k_side = add(d_q_side, i, one_q), add(d_k_side, j, one_k)
    d_q, d_relative = add((d_q, d_relative), i, (found.q, found.relative))
    d_k, d_v = add((d_k, d_v), j, (found.k, found.v))
    sides = d_params, d_q_side, d_k_side
    return (sides, d_q, d_k, d_v, d_relative, d_table), sums(d_part, found.table)

  def end(grads, d_part, i, j):
    *others, d_table = grads
    return *others, distances.add(d_table, d_part, sizes, i, j)

  heads = _turned(x.q), x.k, x.v, _turned(x.relative)
  start = _zeros((_floats(x), *heads, x.table))
  return walk.by_diagonals(meets, ratio, begin, visit, end, start)


def _floats(x: Tiles) -> tuple[list[Array | None], ...]:
  """Of the parameters, and of either side."""
  return tuple(split(group)[0] for group in (x.params, x.q_side, x.k_side))


def _turned(leaf: Array | None) -> Array | None:
  return None if leaf is None else leaf.swapaxes(-1, -2)


def _as(leaf: Array | None, grad: Array | None) -> Array | None:
  """The cotangent in the dtype of its leaf."""
  if leaf is None or grad is None:
    return None
  return (grad if jnp.iscomplexobj(leaf) else jnp.real(grad)).astype(leaf.dtype)


def _zeros(tree: Any) -> Any:
  """Zeros to add cotangents to: in float32, or what is wider."""
  zeros = lambda x: jnp.zeros(x.shape, jnp.result_type(x, jnp.float32))
  return jax.tree.map(zeros, tree)


def _dtypes(x: Tiles) -> tuple[Any, Any]:
  """To sum outputs and logits in: float32, or what is wider; the second is never complex."""
  floats = [leaf for leaf in split(x)[0] if leaf is not None]
  wide = jnp.result_type(jnp.float32, *floats)
  return wide, jnp.finfo(wide).dtype


def _sizes(plan: Plan, x: Tiles) -> Sizes:
  return Sizes(x.q_side.order.shape[0], plan.queries, plan.keys)


def _meets(plan: Plan, x: Tiles) -> tuple[Bool[Array, 'rows columns'], int]:
  """Which tiles meet, and how many rows a column is as long as."""
  meets = walk.meet(plan.rules, x.q_side, x.k_side)
  return meets, plan.keys // plan.queries if min(meets.shape) > 1 else 1
