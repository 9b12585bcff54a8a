"""The operands of attention, cut into tiles."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, UInt32

from posjax.attention import distances
from posjax.attention.blockwise.cut import at, bias_at, cut_heads, cut_mask, cut_tokens, whole_tiles
from posjax.attention.blockwise.tiles import Plan, Tile
from posjax.attention.distances import Table
from posjax.attention.inputs import Operands, Rules, Side
from posjax.attention.masks import dropout_rows
from posjax.scheme import Params, PRNGKey, Scheme, declares


class Tiles(NamedTuple):
  """The arrays of all tiles: those of `tiles.Tile`, with the number of the tile as first axis.

  The caller's bias alone is not cut, which would be a copy of it.
  There is a row of tiles for each block of queries, and a column for each block of keys.
  """

  params: Params
  q: Inexact[Array, 'rows B K D t'] | None
  k: Inexact[Array, 'columns B K D S'] | None
  v: Inexact[Array, 'columns B K E S']
  relative: Inexact[Array, 'rows B H W T'] | None
  table: Table
  q_side: Side
  k_side: Side
  mask: Bool[Array, 'rows columns b h T S'] | None
  sinks: Float[Array, ' H'] | None
  dropout_key: PRNGKey | None
  dropout_rows: UInt32[Array, 'B H'] | None
  bias: Float[Array, 'b h T S'] | None


def read(plan: Plan, x: Operands) -> Operands:
  """The operands, without the arrays that no tile reads."""
  needed = functools.partial(_needed, plan.scheme, plan.rules)
  return x._replace(q=needed(x.q), k=needed(x.k))


def _needed(scheme: Scheme, rules: Rules, side: Side) -> Side:
  logits, relative = declares(scheme, 'logits'), scheme.traits.tiled.relative is not None
  is_read = {
    'raw': logits or relative,
    'positioned': not relative,
    'pos': scheme.bias is not None or relative,
    'at': logits or relative or scheme.values.add is not None,
    'index': rules.dropout_rate > 0,
  }
  return without(side, *(name for name, read in is_read.items() if not read))


def without(side: Side, *names: str) -> Side:
  """The side with None in the place of some of its fields."""
  left_out: dict[str, Any] = dict.fromkeys(names)
  return side._replace(**left_out)


def build(plan: Plan, x: Operands, tabulated: bool) -> Tiles:
  """Cuts the operands into tiles.

  Args:
    plan: the sizes of the tiles.
    x: the operands.
    tabulated: whether all ids count up by one, so that a table by distance can be used.
  """
  scheme, params, kv_heads = plan.scheme, x.params, x.v.shape[2]
  of_queries = functools.partial(cut_heads, size=plan.queries)
  of_keys = functools.partial(cut_heads, size=plan.keys, kv_heads=kv_heads)
  v = of_keys(x.v)
  q_side = cut_tokens(without(x.q, 'positioned'), plan.queries)
  k_side = cut_tokens(without(x.k, 'positioned'), plan.keys)
  table = Table(None, None)
  if tabulated:
    lengths = q_side.order.shape[0] * plan.queries, v.shape[0] * plan.keys
    table = distances.tabulate(scheme, params, x.q.pos, x.k.pos, *lengths)
  q = k = relative = None
  form = scheme.traits.tiled.relative
  if form is None:
    q = of_queries(jnp.asarray(x.q.positioned), kv_heads=kv_heads)
    k = of_keys(_conjugate(jnp.asarray(x.k.positioned)))
  elif tabulated:
    q, k = of_queries(form.content(params, x.q.raw), kv_heads=kv_heads), of_keys(x.k.raw)
    relative = of_queries(form.heads(params, x.q.raw), kv_heads=plan.heads)
  return Tiles(
    params=params,
    q=q,
    k=k,
    v=v,
    relative=relative,
    table=table,
    q_side=q_side,
    k_side=k_side,
    mask=cut_mask(x.mask, plan.queries, plan.keys),
    sinks=x.sinks,
    dropout_key=x.dropout_key,
    dropout_rows=_dropout_rows(plan, x),
    bias=whole_tiles(x.bias, plan.queries, plan.keys),
  )


def _dropout_rows(plan: Plan, x: Operands) -> UInt32[Array, 'B H'] | None:
  broadcast = plan.rules.broadcast_dropout
  return None if x.rows is None else dropout_rows(x.rows, plan.heads, broadcast)


def _conjugate(k: Array) -> Array:
  return k.conj() if jnp.iscomplexobj(k) else k


def tile(plan: Plan, x: Tiles, part: Table, i: Any, j: Any) -> Tile:
  """Tile (i, j), with its part of the table."""
  q, relative, q_side = at((x.q, x.relative, x.q_side), i)
  k, v, k_side = at((x.k, x.v, x.k_side), j)
  mask = at(at(x.mask, i), j)
  bias = None if x.bias is None else bias_at(x.bias, plan.queries, plan.keys, i, j)
  rest = mask, x.dropout_key, x.dropout_rows, bias
  return Tile(x.params, q, k, v, relative, part, q_side, k_side, *rest)
