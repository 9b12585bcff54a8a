"""Which tiles meet, and the order in which they are visited: by diagonals.

Along a diagonal, tiles hold the same distances where ids count up by one. Tiles that cannot see
each other (the future, other documents, beyond the window, padding) are left out, by a test on the
order and the segments that they hold: right for any.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from posjax.border import Rules, Side


def meet(rules: Rules, q: Side, k: Side) -> Bool[Array, 'rows columns']:
  """Whether any pair of a tile may meet: never False where one does.

  Args:
    rules: of the attention.
    q: the queries' side, cut into tiles.
    k: the keys' side, likewise.
  """
  q_low, q_high = (edge[:, None] for edge in _spans(q, q.segments))
  k_low, k_high = (edge[None] for edge in _spans(k, k.segments))
  found = (q_low <= k_high) & (k_low <= q_high)
  q_low, q_high = (edge[:, None] for edge in _spans(q, q.order))
  k_low, k_high = (edge[None] for edge in _spans(k, k.order))
  if rules.causal:
    found = found & (k_low <= q_high)
  if rules.window is not None:
    found = found & (q_low - k_high < rules.window) & (k_low - q_high < rules.window)
  return found.any(-1)


def _spans(side: Side, numbers: Array) -> tuple[Array, Array]:
  """Least and largest number of each row of each tile, padding apart: [tiles, b]."""
  info = jnp.finfo if jnp.issubdtype(numbers.dtype, jnp.inexact) else jnp.iinfo
  limits = info(numbers.dtype)
  real = side.segments != 0
  low = jnp.where(real, numbers, limits.max).min(-1)
  return low, jnp.where(real, numbers, limits.min).max(-1)


def by_diagonals(
  meets: Bool[Array, 'rows columns'],
  ratio: int,
  begin: Callable[..., Any],
  visit: Callable[..., Any],
  end: Callable[..., Any],
  carry: Any,
) -> Any:
  """Visits the tiles (i, j) that meet, for one i - ratio j after the other.

  Args:
    meets: which tiles to visit.
    ratio: how many rows of tiles a column is as long as.
    begin: (i, j) -> (shared, along), at the first tile of a diagonal, whether it meets or not: what
      its tiles have in common, and what they change together.
    visit: (shared, carry, along, i, j) -> (carry, along), at each tile.
    end: (carry, along, i, j) -> carry, with the first tile again.
    carry: what all tiles change.

  Returns:
    The last carry.
  """
  rows, columns = meets.shape
  i, j = jnp.indices(meets.shape)
  each = i - ratio * j
  lowest = jnp.where(meets, each, rows).min()
  highest = jnp.where(meets, each, -ratio * columns).max()

  def diagonal(d, carry):
    first = jnp.maximum(0, -(d // ratio))
    last = jnp.minimum(columns - 1, (rows - 1 - d) // ratio)
    start = d + ratio * first, first
    shared, along = begin(*start)

    def tile(j, both):
      i = d + ratio * j
      met = lambda both: visit(shared, *both, i, j)
      return lax.cond(meets[i, j], met, lambda both: both, both)

    carry, along = lax.fori_loop(first, last + 1, tile, (carry, along))
    return end(carry, along, *start)

  return lax.fori_loop(lowest, highest + 1, diagonal, carry)
