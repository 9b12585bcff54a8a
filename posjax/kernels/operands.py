"""What attention in tiles is computed from: the operands of `attend`, and all tiles of them."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, UInt32

from posjax.border import Rules, Side
from posjax.kernels import distances
from posjax.kernels.cut import at, cut_heads, cut_mask, cut_tokens
from posjax.kernels.distances import Table
from posjax.kernels.tiles import Plan, Tile
from posjax.scheme import Params, PRNGKey, Scheme, declares
from posjax.tile import numbered


class Operands(NamedTuple):
  """What attention is computed from, as `attend` gets it."""

  params: Params
  q: Side
  k: Side
  v: Inexact[Array, 'B S K E']
  mask: Bool[Array, 'b h T S'] | None
  sinks: Float[Array, ' H'] | None
  dropout_key: PRNGKey | None


class Tiles(NamedTuple):
  """All tiles: their number is the first axis, of the rows for queries, of the columns for keys."""

  params: Params
  q: Inexact[Array, 'rows B K D t'] | None  # None: the tiles place their heads themselves
  k: Inexact[Array, 'columns B K D S'] | None
  v: Inexact[Array, 'columns B K E S']
  relative: Inexact[Array, 'rows B H W T'] | None
  table: Table
  q_side: Side
  k_side: Side
  mask: Bool[Array, 'rows columns b h T S'] | None
  sinks: Float[Array, ' H'] | None
  dropout_key: PRNGKey | None
  numbers: UInt32[Array, 'B H'] | None  # of the dropout


def asked(scheme: Scheme, rules: Rules, side: Side) -> Side:
  """What of a side the tiles ask for; None for the rest."""
  logits, relative = declares(scheme, 'logits'), scheme.tiled.relative is not None
  wanted = {
    'raw': logits or relative,
    'placed': not relative,
    'pos': scheme.bias is not None or relative,
    'at': logits or relative or scheme.values is not None,
    'index': rules.dropout_rate > 0,
  }
  return without(side, *(name for name, is_wanted in wanted.items() if not is_wanted))


def without(side: Side, *names: str) -> Side:
  """The side with None in the place of some of its fields."""
  left_out: dict[str, Any] = dict.fromkeys(names)
  return side._replace(**left_out)


def build(plan: Plan, x: Operands, tabled: bool) -> Tiles:
  """Cuts the operands.

  Args:
    plan: the sizes.
    x: what to cut.
    tabled: whether all ids count up by one: what depends on the distance alone is tabulated then.
  """
  scheme, params, kv_heads = plan.scheme, x.params, x.v.shape[2]
  own = scheme.tiled.relative
  tall = functools.partial(cut_heads, size=plan.queries)
  wide = functools.partial(cut_heads, size=plan.keys, kv_heads=kv_heads)
  v = wide(x.v)
  q_side = cut_tokens(without(x.q, 'placed'), plan.queries)
  k_side = cut_tokens(without(x.k, 'placed'), plan.keys)
  q = k = relative = None
  table = Table(None, None)
  if tabled:
    lengths = q_side.order.shape[0] * plan.queries, v.shape[0] * plan.keys
    table = distances.tabulate(scheme, params, x.q.pos, x.k.pos, *lengths)
  if own is None:
    q, k = tall(x.q.placed, kv_heads=kv_heads), wide(_conjugate(x.k.placed))
  elif tabled:
    q, k = tall(own.content(params, x.q.raw), kv_heads=kv_heads), wide(x.k.raw)
    relative = tall(own.heads(params, x.q.raw), kv_heads=plan.heads)
  mask = cut_mask(x.mask, plan.queries, plan.keys)
  numbers = numbered(x.v.shape[0], plan.heads) if plan.rules.dropout_rate else None
  tail = mask, x.sinks, x.dropout_key, numbers
  return Tiles(params, q, k, v, relative, table, q_side, k_side, *tail)


def _conjugate(k: Array) -> Array:
  return k.conj() if jnp.iscomplexobj(k) else k


def tile(x: Tiles, part: Table, i: Any, j: Any) -> Tile:
  """Tile (i, j), with its part of the table."""
  q, relative, q_side = at((x.q, x.relative, x.q_side), i)
  k, v, k_side = at((x.k, x.v, x.k_side), j)
  mask = at(at(x.mask, i), j)
  tail = mask, x.dropout_key, x.numbers
  return Tile(x.params, q, k, v, relative, part, q_side, k_side, *tail)
