"""Rows of tiles, one after the other, each with all keys that it may see: for GPUs and TPUs.

There, a tile costs the launches of what computes it, whatever it holds, and a branch that is taken
when the program runs has to be read back. So where the logits of some queries and all their keys
fit `BUDGET`, the rows are unrolled: the program has no loop and no branch, and the products of a
row are large. Which keys a row may see is found while the call is traced, where the order of the
tokens is known then; else a row takes all keys, of which masks hide some.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from posjax.attention import distances, schedule
from posjax.attention.blockwise.cut import at
from posjax.attention.blockwise.operands import Tiles
from posjax.attention.blockwise.tiles import (
  Cotangents,
  Plan,
  Rows,
  Running,
  Tile,
  add_wide,
  backward,
  forward,
  join,
  split,
)
from posjax.attention.distances import Sizes
from posjax.attention.inputs import Rules, Side, Tokens
from posjax.attention.softmax import Sums
from posjax.known import known_numbers

Span = tuple[int, int]  # the first key, and the one after the last
BUDGET = 2**27  # logits of a row, over all heads: 512 MiB in float32
_MOST, _TALL, _STEP = 64, (128, 1024), 128  # rows; queries of a row; keys that spans are made of


def height(queries: int, keys: int, heads: int) -> int | None:
  """How many queries a row has; None where there would be too many rows.

  Args:
    queries: in all.
    keys: in all.
    heads: batch times heads.

  Example:
    >>> (
    ...   height(16384, 16384, 8),
    ...   height(4096, 4096, 128),
    ...   height(10**6, 10**6, 8),
    ... )
    (1024, 256, None)
  """
  least, most = _TALL
  tall = most
  while tall * keys * heads > BUDGET and tall > least:
    tall //= 2
  fits = tall * keys * heads <= BUDGET and -(-queries // tall) <= _MOST
  return min(tall, queries) if fits else None


def all_keys(queries: int, keys: int, tall: int) -> tuple[Span, ...]:
  """The spans of rows of `tall` queries that take all keys."""
  return ((0, keys),) * -(-queries // tall)


def spans(rules: Rules, q: Side, k: Side, tall: int) -> tuple[Span, ...] | None:
  """The keys of each row of queries: none is left out that one of them may see.

  Args:
    rules: causality and the window.
    q: the queries.
    k: the keys.
    tall: queries of a row.

  Returns:
    A span for each row; None where the order is known only when the program runs.
  """
  keys, orders = k.order.shape[1], (q.order, k.order)
  if any(isinstance(order, jax.core.Tracer) for order in orders):
    return None
  with known_numbers():
    blocks = [_blocks(order, size) for order, size in zip(orders, (tall, _STEP), strict=True)]
    some = schedule.visible_tiles(rules, *blocks)[0].any(0)
  if isinstance(some, jax.core.Tracer):
    return None
  seen = np.asarray(some)
  first = np.where(seen.any(1), seen.argmax(1), 0) * _STEP
  last = np.where(seen.any(1), seen.shape[1] - seen[:, ::-1].argmax(1), 1) * _STEP
  return tuple((int(a), min(int(b), keys)) for a, b in zip(first, last, strict=True))


def _blocks(order: Any, size: int) -> Tokens:
  """All tokens in one document; the last block is filled up with the last token."""
  order = jnp.pad(order, [(0, 0), (0, -order.shape[1] % size)], mode='edge')
  order = order.reshape(order.shape[0], -1, size)
  return Tokens(order, jnp.ones_like(order, jnp.int32))


def sweep(plan: Plan, x: Tiles, start: Running) -> Running:
  """The sums and the outputs of all rows; `start` is their state before any key."""
  found: list[Running] = []
  for i, span in enumerate(plan.spans or ()):
    one, tile = _row(plan, x, i, span)
    tile, found = _after(tile, found)
    sums, factor, more = forward(one, tile, Sums(*at(start.sums, i)))
    found.append(Running(sums, at(start.out, i) * factor + more))
  return jax.tree.map(lambda *rows: jnp.stack(rows), *found)


def sweep_back(plan: Plan, x: Tiles, rows: Rows, zeros: Any) -> Any:
  """The cotangents of all arrays, as `engine._sweep_back` returns them, added to zeros."""
  (d_params, d_q_side, d_k_side), d_q, d_k, d_v, d_relative, d_table, d_bias = zeros
  for i, span in enumerate(plan.spans or ()):
    one, tile = _row(plan, x, i, span)
    tile, (d_q, d_k, d_v) = _after(tile, (d_q, d_k, d_v))
    found: Cotangents = backward(one, tile, at(rows, i))
    if found.scheme is not None:
      one_params, one_q, one_k = found.scheme
      d_params = add_wide(d_params, one_params)
      d_q_side = _add(d_q_side, one_q, lambda leaf, i=i: (i,))
      d_k_side = _add(d_k_side, one_k, lambda leaf, span=span: (0, *_tokens(leaf, span)))
    d_q, d_relative = _add((d_q, d_relative), (found.q, found.relative), lambda leaf, i=i: (i,))
    d_k, d_v = _add((d_k, d_v), (found.k, found.v), lambda leaf, span=span: (0, ..., slice(*span)))
    if d_bias is not None and found.bias is not None:
      d_bias = _add(d_bias, found.bias, lambda leaf, i=i, span=span: _of_bias(plan, leaf, i, span))
    d_table = distances.add(d_table, found.table, _sizes(one, x), i, span[0])
  return (d_params, d_q_side, d_k_side), d_q, d_k, d_v, d_relative, d_table, d_bias


def _after(tile: Tile, done: Any) -> tuple[Tile, Any]:
  """The tile and what is done, such that nothing of the tile is computed before.

  XLA would else compute many rows side by side, and hold all their logits.
  """
  floats, others = split(tile)
  floats, done = lax.optimization_barrier((floats, done))
  return join(floats, others), done


def _add(tree: Any, one: Any, place: Any) -> Any:
  return jax.tree.map(lambda leaf, more: leaf.at[place(leaf)].add(more), tree, one)


def _row(plan: Plan, x: Tiles, i: int, span: Span) -> tuple[Plan, Tile]:
  """Row i as a tile, with the plan of a tile as wide as its keys."""
  one = plan._replace(keys=span[1] - span[0])
  table = distances.read(x.table, _sizes(one, x), i, span[0])
  q, relative, q_side = at((x.q, x.relative, x.q_side), i)
  k = None if x.k is None else x.k[0][..., slice(*span)]
  k_side = jax.tree.map(lambda leaf: leaf[0][_tokens(leaf, span)], x.k_side)
  mask = None if x.mask is None else x.mask[i, 0][..., slice(*span)]
  bias = None if x.bias is None else x.bias[_of_bias(plan, x.bias, i, span)]
  rest = mask, x.dropout_key, x.dropout_rows, bias
  v = x.v[0][..., slice(*span)]
  return one, Tile(x.params, q, k, v, relative, table, q_side, k_side, *rest)


def _tokens(leaf: Any, span: Span) -> tuple[Any, ...]:
  """The index of some tokens in a leaf of a side, [b, tokens, ...]; `index` is [tokens]."""
  return (slice(*span),) if leaf.ndim == 2 else (slice(None), slice(*span))


def _of_bias(plan: Plan, bias: Any, i: int, span: Span) -> tuple[Any, ...]:
  """The index of row i in the caller's bias [b, h, T, S], in which an axis may be 1."""
  queries = slice(i * plan.queries, (i + 1) * plan.queries) if bias.shape[2] > 1 else slice(None)
  return ..., queries, slice(*span) if bias.shape[3] > 1 else slice(None)


def _sizes(plan: Plan, x: Tiles) -> Sizes:
  return Sizes(x.q_side.order.shape[0], plan.queries, plan.keys)
