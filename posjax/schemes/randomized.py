"""Randomized positions: sorted random ids in place of 0, 1, 2, .., for lengths beyond training.

Each row draws n distinct positions in [0, max_length), uniformly, and the id i becomes the
(i + 1)-th smallest of them. A model that is trained on short texts thus sees far ids and long
distances, in the right order. Chain it before any scheme, as in `randomized+rope`.

Reference: Ruoss et al. 2023, https://arxiv.org/abs/2305.16843, section 3 and DeepMind's
randomized_positional_encodings (NOISY_...). For its relative encodings that code draws distances
instead of ids, from the shape of q and k, and the same for all rows. Here the ids are drawn, so
that all parts of a scheme see the same positions, and each row has its own. The paper draws at test
time as well: pass a key then too.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Integer, Num

from posjax.arguments import Size, checked
from posjax.math.checks import check_integer_ids
from posjax.scheme import PRNGKey, Scheme, Traits

SHIFT_INVARIANT = True  # of the attention, which sees the ids that were drawn
PAPERS = ('ruoss2023randomized',)


def draw(key: PRNGKey, count: int | Int[Array, ''], max_length: int) -> Int[Array, ' N']:
  """A uniform random subset of 0 .. max_length - 1, in rising order.

  The time is O(N log N) for any count, so that the count may be traced.

  Args:
    key: a JAX random key.
    count: how many positions to draw; above max_length, all of them.
    max_length: N, the number of positions that are drawn from.

  Returns:
    int32 [max_length]: `count` positions, then the fill value max_length.

  Example:
    >>> draw(jax.random.key(0), 3, 3)
    Array([0, 1, 2], dtype=int32)
  """
  ranks = jax.random.permutation(key, max_length)
  candidates = jnp.arange(max_length, dtype=jnp.int32)
  return jnp.sort(jnp.where(ranks < count, candidates, max_length))


def randomize(
  pos: Integer[Array, ' T'], key: PRNGKey, max_length: int, length: int | None = None
) -> Int[Array, ' T']:
  """The drawn position of each id of one row; equal ids stay equal.

  Args:
    pos: ids, in tokens.
    key: a JAX random key.
    max_length: the number of positions that are drawn from.
    length: how many positions are drawn; by default 1 + the largest id.

  Returns:
    int32, rising with the ids, in 0 .. max_length - 1; -1 for negative ids, and for ids that are
    not below the number of drawn positions.

  Example:
    >>> randomize(jnp.array([2, 0, 1, 0, 5, -1]), jax.random.key(0), max_length=3)
    Array([ 2,  0,  1,  0, -1, -1], dtype=int32)
  """
  pos = pos.astype(jnp.int32)
  last = jnp.minimum(pos.max(initial=-1), max_length - 1) if length is None else length - 1
  drawn = draw(key, last + 1, max_length)
  known = (pos >= 0) & (pos <= last)
  return jnp.where(known, drawn[jnp.where(known, pos, 0)], -1)


@checked
def scheme(max_length: Size = 2048, length: int | None = None, axes: Size = 1) -> Scheme:
  """Random ids where there is a random key; the ids themselves where there is none.

  Ids that have no drawn position (negative ones, and those from `length` on) become -1, for which
  tables give NaN.

  Args:
    max_length: positions are drawn from 0 .. max_length - 1; the length of the longest text to
      prepare for.
    length: how many positions a row draws, which is the most tokens that a text has. By default
      each row draws as many positions as its largest id plus 1. Declare it where a text is computed
      in pieces (decoding with a cache), which would otherwise draw new positions for each piece.
    axes: the number of ids of each token; each axis of a row has positions of its own.

  Raises:
    ValueError: if a length is not positive or above max_length, or there is no axis; where used, if
      there are more tokens than positions and no length is declared (for one axis only, because a
      grid has more cells than it has rows). TypeError where ids are not integers, or a token has
      another number of them.

  Example:
    >>> scheme(max_length=4).ids(jnp.arange(4), jax.random.key(0))
    Array([0, 1, 2, 3], dtype=int32)
  """
  if length is not None and not 1 <= length <= max_length:
    raise ValueError(
      f'The length must be in 1 .. max_length {max_length}, to draw distinct positions, but got '
      f'{length}.'
    )
  tail = (axes,) if axes > 1 else ()

  def ids(pos: Num[Array, '...'], key: PRNGKey | None) -> Int[Array, '...']:
    check_integer_ids(pos, 'Randomized positions need')
    if pos.ndim - len(tail) not in (1, 2) or pos.shape[pos.ndim - len(tail) :] != tail:
      shown = '[B, T, n] or [T, n]' if tail else '[B, T] or [T]'
      raise TypeError(
        f'Randomized positions of {axes} axes need ids {shown}, but got shape {pos.shape}.'
      )
    if key is None:
      return pos
    if length is None and not tail and pos.shape[-1] > max_length:
      raise ValueError(
        f'{pos.shape[-1]} tokens may need more than the {max_length} positions of max_length; if '
        'they are several texts, declare the length of the longest.'
      )
    streams = jnp.moveaxis(pos, -1, -2) if tail else pos  # tokens last
    if streams.ndim == 1:
      return randomize(pos, key, max_length, length)
    rows = streams.reshape(-1, streams.shape[-1])
    of_row = lambda row, key: randomize(row, key, max_length, length)
    drawn = jax.vmap(of_row)(rows, jax.random.split(key, len(rows))).reshape(streams.shape)
    return jnp.moveaxis(drawn, -1, -2) if tail else drawn

  return Scheme(ids=ids, traits=Traits(axes))
