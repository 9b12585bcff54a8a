"""Which tiles hold pairs of tokens that may attend, and the order in which tiles are visited.

Tiles without such a pair (the future, other documents, tokens beyond the window, padding) are left
out. That is decided from the order and the segments that each block of tokens holds, so it is right
for any. Along a diagonal, tiles hold the same distances where ids count up by one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from posjax.attention.inputs import Rules, Tokens
from posjax.math.differences import is_below


def visible_tiles(
  rules: Rules, q: Tokens, k: Tokens
) -> tuple[Bool[Array, 'b i j'], Bool[Array, 'b i j']]:
  """Whether any pair of a tile may attend, and whether all pairs of it may.

  The first is never False where a pair may attend, the second never True where one may not.

  Args:
    rules: causality and the window.
    q: order and segments of the queries in blocks, [b, i, tokens].
    k: the same of the keys, [b, j, tokens].
  """
  q_real, q_order, q_segments = (span[:, :, None] for span in _spans(q))
  k_real, k_order, k_segments = (span[:, None] for span in _spans(k))
  some = (q_segments[..., 0] <= k_segments[..., 1]) & (k_segments[..., 0] <= q_segments[..., 1])
  some = some & q_real[..., 1] & k_real[..., 1]
  whole = (q_segments[..., 0] == k_segments[..., 1]) & (q_segments[..., 1] == k_segments[..., 0])
  whole = whole & q_real[..., 0] & k_real[..., 0]
  q_first, q_last, k_first, k_last = (
    q_order[..., 0],
    q_order[..., 1],
    k_order[..., 0],
    k_order[..., 1],
  )
  if rules.causal:
    some, whole = some & (q_last >= k_first), whole & (q_first >= k_last)
  before, after = rules.window or (None, None)
  if before is not None:
    some = some & is_below(q_first, k_last, before + 1)
    whole = whole & is_below(q_last, k_first, before + 1)
  if after is not None:
    some = some & is_below(k_first, q_last, after + 1)
    whole = whole & is_below(k_last, q_first, after + 1)
  return some, whole


def _spans(tokens: Tokens):
  """Three pairs of numbers for each block, [b, blocks, 2] each.

  Whether all and any of its tokens are real; and of these the least and the largest order, and the
  least and the largest segment.
  """
  real = tokens.segments != 0

  def span(x):
    info = jnp.finfo if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo
    limits = info(x.dtype)
    low = jnp.where(real, x, limits.max).min(-1)
    return jnp.stack([low, jnp.where(real, x, limits.min).max(-1)], -1)

  both = jnp.stack([real.all(-1), real.any(-1)], -1)
  return both, span(tokens.order), span(tokens.segments)


def diagonal(offset: Any, rows: int, columns: int, ratio: int = 1) -> tuple[Any, Any, Any]:
  """The first tile (i, j) of the diagonal where i - ratio j is `offset`, and how many tiles it has.

  Args:
    offset: an integer, perhaps traced, also within a kernel.
    rows: of tiles.
    columns: of tiles.
    ratio: how many rows of tiles one column is as long as.

  Example:
    >>> [int(n) for n in diagonal(-1, rows=3, columns=3)]
    [0, 1, 2]
  """
  over = (lambda n: n) if ratio == 1 else (lambda n: n // ratio)  # kernels cannot divide cheaply
  j = jnp.maximum(0, -over(offset))
  last = jnp.minimum(columns - 1, over(rows - 1 - offset))
  return offset + ratio * j, j, last - j + 1


def one_by_one(
  spans: Sequence[tuple[int, int]],
  keys: int,
  begin: Callable[..., Any],
  visit: Callable[..., Any],
  end: Callable[..., Any],
  carry: Any,
) -> Any:
  """Visits the tiles of the spans, row by row, in a loop whose length is known.

  Args:
    spans: the first key of each row of tiles, and the one after the last.
    keys: of a tile.
    begin: as for `by_diagonals`; each tile is a diagonal of its own.
    visit: likewise.
    end: likewise.
    carry: likewise.
  """
  columns = lambda span: range(span[0] // keys, -(-span[1] // keys))
  tiles = [(i, j) for i, span in enumerate(spans) for j in columns(span)]

  def one(carry, tile):
    i, j = tile
    shared, along = begin(i, j)
    carry, along = visit(shared, carry, along, i, j)
    return end(carry, along, i, j), None

  return lax.scan(one, carry, jnp.array(tiles, jnp.int32))[0]


def by_diagonals(
  visible: Bool[Array, 'rows columns'],
  ratio: int,
  begin: Callable[..., Any],
  visit: Callable[..., Any],
  end: Callable[..., Any],
  carry: Any,
) -> Any:
  """Visits the visible tiles, one diagonal after the other.

  Args:
    visible: which tiles to visit.
    ratio: how many rows of tiles one column is as long as.
    begin: (i, j) -> (shared, along), called with the first tile of each diagonal, visible or not:
      what the tiles of the diagonal have in common, and what they change together.
    visit: (shared, carry, along, i, j) -> (carry, along), called for each visible tile.
    end: (carry, along, i, j) -> carry, called with the first tile again.
    carry: what all tiles change.

  Returns:
    The last carry.
  """
  rows, columns = visible.shape
  i, j = jnp.indices(visible.shape)
  offsets = i - ratio * j
  lowest = jnp.where(visible, offsets, rows).min()
  highest = jnp.where(visible, offsets, -ratio * columns).max()

  def one(offset, carry):
    first_i, first_j, count = diagonal(offset, rows, columns, ratio)
    shared, along = begin(first_i, first_j)

    def tile(n, both):
      i, j = first_i + ratio * n, first_j + n
      visited = lambda both: visit(shared, *both, i, j)
      return lax.cond(visible[i, j], visited, lambda both: both, both)

    carry, along = lax.fori_loop(0, count, tile, (carry, along))
    return end(carry, along, first_i, first_j)

  return lax.fori_loop(lowest, highest + 1, one, carry)
