"""The order in which a TPU's grid visits tiles: one walk for each kernel.

The outer axes of a grid choose the block of the result that a program computes, the inner ones the
tiles that it sums over. A tile without pairs that may attend is not computed, and nothing new is
fetched for it, since its place is given as that of the nearest tile with such pairs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from posjax.attention.pallas.formulas import Ref
from posjax.attention.schedule import diagonal

Index = Any  # an integer of a program


class Place(NamedTuple):
  """The place of a tile: i is its block of queries, j its block of keys."""

  batch: Index
  head: Index
  kv_head: Index
  i: Index
  j: Index


class Sizes(NamedTuple):
  """How many rows, heads and blocks there are.

  `rows` are those of the ranges, the batch or 1; `skipped`, the diagonals before the first that
  `by_diagonals` visits.
  """

  batch: int
  heads: int
  kv_heads: int
  i: int
  j: int
  rows: int
  skipped: int = 0

  @property
  def group(self) -> int:
    """How many query heads share one key head."""
    return self.heads // self.kv_heads


class Here(NamedTuple):
  """The tile of a program. To be made at the top of a kernel, outside branches.

  Attributes:
    place: where it is.
    begins: whether it is the first of its sum.
    ends: whether it is the last.
    some: whether any pair of it may attend.
    whole: whether all pairs of it may.
  """

  place: Place
  begins: Any
  ends: Any
  some: Any
  whole: Any

  def visit(self, step: Callable[[bool], None]) -> None:
    """Calls `step(masked)` if any pair of the tile may attend."""
    pl.when(self.some & self.whole)(lambda: step(False))
    pl.when(self.some & ~self.whole)(lambda: step(True))


class Walk(NamedTuple):
  """A grid, and the places of its programs.

  Attributes:
    grid: its axes.
    inner: how many of the last axes are summed over.
    place: `(ranges, *ids) -> Place`.
    visible: `(ranges, *ids) -> (some, whole)`, as in `Here`.
  """

  grid: tuple[int, ...]
  inner: int
  place: Callable[..., Place]
  visible: Callable[..., tuple[Any, Any]]

  def here(self, ranges: Ref) -> Here:
    """Inside a kernel: this program's tile."""
    ids = [pl.program_id(axis) for axis in range(len(self.grid))]
    summed = list(zip(ids, self.grid, strict=True))[-self.inner :]
    begins = functools.reduce(jnp.logical_and, [n == 0 for n, _ in summed])
    ends = functools.reduce(jnp.logical_and, [n == last - 1 for n, last in summed])
    return Here(self.place(ranges, *ids), begins, ends, *self.visible(ranges, *ids))


def by_queries(n: Sizes) -> Walk:
  """For each block of queries, along the keys. Its ranges are those of the queries."""

  def place(ranges, b, h, i, j):
    return Place(b, h, _over(h, n.group), i, _clipped(_range(ranges, n.rows, n.i, b, i), j))

  def visible(ranges, b, h, i, j):
    return _visible(_range(ranges, n.rows, n.i, b, i), j)

  return Walk((n.batch, n.heads, n.i, n.j), 1, place, visible)


def by_keys(n: Sizes) -> Walk:
  """For each block of keys, along the heads that share them and the queries; ranges of the keys."""

  def place(ranges, b, h, j, g, i):
    i = _clipped(_range(ranges, n.rows, n.j, b, j), i)
    return Place(b, h * n.group + g, h, i, j)

  def visible(ranges, b, h, j, g, i):
    return _visible(_range(ranges, n.rows, n.j, b, j), i)

  return Walk((n.batch, n.kv_heads, n.j, n.group, n.i), 2, place, visible)


def by_diagonals(n: Sizes) -> Walk:
  """For each diagonal, along it: the tiles where j - i is one number. Ranges of the queries."""

  def tile(d, t):
    i, j, count = diagonal(n.i - 1 - n.skipped - d, n.i, n.j)
    inside = jnp.minimum(t, count - 1)
    return i + inside, j + inside, t < count

  def place(ranges, b, h, d, t):
    return Place(b, h, _over(h, n.group), *tile(d, t)[:2])

  def visible(ranges, b, h, d, t):
    i, j, inside = tile(d, t)
    some, whole = _visible(_range(ranges, n.rows, n.i, b, i), j)
    return some & inside, whole

  return Walk((n.batch, n.heads, n.i + n.j - 1 - n.skipped, min(n.i, n.j)), 1, place, visible)


def _range(ranges: Ref, rows: int, blocks: int, b: Index, block: Index) -> tuple[Index, ...]:
  """The four numbers of a block, from ranges [rows * blocks * 4]."""
  start = ((b if rows > 1 else 0) * blocks + block) * 4
  return tuple(ranges[start + n] for n in range(4))


def _clipped(span, number: Index) -> Index:
  first, _, _, last = span
  return jnp.clip(number, first, jnp.maximum(last - 1, first))


def _visible(span, number: Index) -> tuple[Any, Any]:
  first, first_whole, last_whole, last = span
  some = (first <= number) & (number < last)
  return some, (first_whole <= number) & (number < last_whole)


def _over(number: Index, by: int) -> Index:
  """The quotient of what is not negative: `//` asks for signs, which a TPU looks up in its kind."""
  return lax.div(number, jnp.int32(by))
