"""The order in which a TPU's grid visits tiles: one walk for each kernel.

The outer axes of a grid choose what a program makes, the inner ones the tiles that it sums over. A
tile outside the range that meets is not computed, and nothing new is fetched for it, since its
place is that of the nearest tile that does.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from posjax.kernels.flash import Ref

Index = Any  # an integer of a program


class Place(NamedTuple):
  """Where a tile is."""

  batch: Index
  head: Index
  kv_head: Index
  i: Index  # block of queries
  j: Index  # block of keys


class Sizes(NamedTuple):
  """How many there are of each."""

  batch: int
  heads: int
  kv_heads: int
  i: int
  j: int
  rows: int  # of the ranges: the batch, or 1 where all rows are alike

  @property
  def group(self) -> int:
    """Query heads of one key head."""
    return self.heads // self.kv_heads


class Here(NamedTuple):
  """What a program knows of its tile. To be asked for at the top of a kernel, outside branches."""

  place: Place
  begins: Any  # whether the tile is the first of its sum
  ends: Any
  some: Any  # whether any pair of it may meet
  whole: Any  # whether all pairs do

  def visit(self, step: Callable[[bool], None]) -> None:
    """Calls `step(masked)` if the tile is met."""
    pl.when(self.some & self.whole)(lambda: step(False))
    pl.when(self.some & ~self.whole)(lambda: step(True))


class Walk(NamedTuple):
  """A grid, and where its programs are."""

  grid: tuple[int, ...]
  inner: int  # axes that are summed over
  place: Callable[..., Place]  # (ranges, *ids)
  met: Callable[..., tuple[Any, Any]]  # (ranges, *ids) -> some pair of the tile, all pairs

  def here(self, ranges: Ref) -> Here:
    """Inside a kernel: this program's tile."""
    ids = [pl.program_id(axis) for axis in range(len(self.grid))]
    summed = list(zip(ids, self.grid, strict=True))[-self.inner :]
    begins = functools.reduce(jnp.logical_and, [n == 0 for n, _ in summed])
    ends = functools.reduce(jnp.logical_and, [n == last - 1 for n, last in summed])
    return Here(self.place(ranges, *ids), begins, ends, *self.met(ranges, *ids))


def by_queries(n: Sizes) -> Walk:
  """For each block of queries, along the keys. Its ranges are those of the queries."""

  def place(ranges, b, h, i, j):
    return Place(b, h, _over(h, n.group), i, _clipped(_range(ranges, n.rows, n.i, b, i), j))

  def met(ranges, b, h, i, j):
    return _met(_range(ranges, n.rows, n.i, b, i), j)

  return Walk((n.batch, n.heads, n.i, n.j), 1, place, met)


def by_keys(n: Sizes) -> Walk:
  """For each block of keys, along the heads that share them and the queries; ranges of the keys."""

  def place(ranges, b, h, j, g, i):
    i = _clipped(_range(ranges, n.rows, n.j, b, j), i)
    return Place(b, h * n.group + g, h, i, j)

  def met(ranges, b, h, j, g, i):
    return _met(_range(ranges, n.rows, n.j, b, j), i)

  return Walk((n.batch, n.kv_heads, n.j, n.group, n.i), 2, place, met)


def by_diagonals(n: Sizes) -> Walk:
  """For each diagonal, along it: the tiles where j - i is one number. Ranges of the queries."""

  def tile(d, t):
    i, j = jnp.maximum(n.i - 1 - d, 0), jnp.maximum(d + 1 - n.i, 0)
    last = jnp.minimum(n.i - i, n.j - j) - 1
    inside = jnp.minimum(t, last)
    return i + inside, j + inside, t <= last

  def place(ranges, b, h, d, t):
    return Place(b, h, _over(h, n.group), *tile(d, t)[:2])

  def met(ranges, b, h, d, t):
    i, j, inside = tile(d, t)
    some, whole = _met(_range(ranges, n.rows, n.i, b, i), j)
    return some & inside, whole

  return Walk((n.batch, n.heads, n.i + n.j - 1, min(n.i, n.j)), 1, place, met)


def _range(ranges: Ref, rows: int, blocks: int, b: Index, block: Index) -> tuple[Index, ...]:
  """The four numbers of a block, from ranges [rows * blocks * 4]."""
  start = ((b if rows > 1 else 0) * blocks + block) * 4
  return tuple(ranges[start + n] for n in range(4))


def _clipped(span, number: Index) -> Index:
  first, _, _, last = span
  return jnp.clip(number, first, jnp.maximum(last - 1, first))


def _met(span, number: Index) -> tuple[Any, Any]:
  first, first_whole, last_whole, last = span
  some = (first <= number) & (number < last)
  return some, (first_whole <= number) & (number < last_whole)


def _over(number: Index, by: int) -> Index:
  """The quotient of what is not negative: `//` asks for signs, which a TPU looks up in its kind."""
  return lax.div(number, jnp.int32(by))
