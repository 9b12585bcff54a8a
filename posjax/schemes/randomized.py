"""Randomized positions: sorted random ids in place of 0, 1, 2, .., for lengths beyond training.

Each row draws n distinct positions of [0, max_length), uniformly; the id i becomes the (i + 1)-th
smallest of them. So a short text meets far ids and long distances, in the right order. To be
chained before any scheme: `randomized+rope`.

Reference: Ruoss et al. 2023, https://arxiv.org/abs/2305.16843, section 3 and DeepMind's
randomized_positional_encodings (NOISY_...). That code draws distances, not ids, for its relative
encodings, from the shape of q and k, and the same for all rows; here it is the ids that are drawn,
so that every scheme sees positions that fit together, and each row has its own. The paper draws at
test time as well: pass a key then too.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Integer, Num

from posjax.scheme import PRNGKey, Scheme

SHIFT_INVARIANT = True  # of the attention, which sees the ids that were drawn


def draw(key: PRNGKey, count: int | Int[Array, ''], max_length: int) -> Int[Array, ' N']:
  """A uniform random subset of 0 .. max_length - 1, in rising order.

  O(N log N), whatever the count, which may be traced.

  Args:
    key: a JAX random key.
    count: positions to draw; above max_length, all of them.
    max_length: N.

  Returns:
    int32 [max_length]: `count` positions, then the fill value max_length.

  Example:
    >>> draw(jax.random.key(0), 3, 3)
    Array([0, 1, 2], dtype=int32)
  """
  ranks = jax.random.permutation(key, max_length)
  every = jnp.arange(max_length, dtype=jnp.int32)
  return jnp.sort(jnp.where(ranks < count, every, max_length))


def randomize(
  pos: Integer[Array, ' T'], key: PRNGKey, max_length: int, length: int | None = None
) -> Int[Array, ' T']:
  """The drawn position of each id of one row; equal ids stay equal.

  Args:
    pos: ids, in tokens.
    key: a JAX random key.
    max_length: positions that are drawn from.
    length: how many are drawn; by default 1 + the largest id.

  Returns:
    int32, rising with the ids, in 0 .. max_length - 1; -1 for ids below 0, or not below what was
    drawn.

  Example:
    >>> randomize(jnp.array([2, 0, 1, 0, 5, -1]), jax.random.key(0), max_length=3)
    Array([ 2,  0,  1,  0, -1, -1], dtype=int32)
  """
  pos = pos.astype(jnp.int32)
  last = jnp.minimum(pos.max(initial=-1), max_length - 1) if length is None else length - 1
  drawn = draw(key, last + 1, max_length)
  known = (pos >= 0) & (pos <= last)
  return jnp.where(known, drawn[jnp.where(known, pos, 0)], -1)


def scheme(max_length: int = 2048, length: int | None = None, axes: int = 1) -> Scheme:
  """Random ids where there is a key; the ids themselves where there is none.

  Ids that were not drawn (negative, or `length` and above) become -1, for which tables give NaN.

  Args:
    max_length: positions 0 .. max_length - 1 are drawn from: the longest text to prepare for.
    length: how many positions a row draws: the most tokens that one text has. By default each row
      draws 1 + its largest id; declare it where a text comes in pieces (decoding with a cache),
      which otherwise would draw anew each time.
    axes: ids per token: each axis of a row draws for itself.

  Raises:
    ValueError: if a length is not positive or more than max_length, or the axes are none; where
      used, if there are more tokens than positions and no length is declared (one axis alone:
      cells of a grid are many, their rows few). TypeError where ids are not integers, or not as
      many per token.

  Example:
    >>> scheme(max_length=4).ids(jnp.arange(4), jax.random.key(0))
    Array([0, 1, 2, 3], dtype=int32)
  """
  if max_length < 1:
    raise ValueError(f'Positions must be drawn from at least one, but max_length is {max_length}.')
  if length is not None and not 1 <= length <= max_length:
    raise ValueError(
      f'The length must be in 1 .. max_length {max_length}, to draw distinct positions, but got '
      f'{length}.'
    )
  if axes < 1:
    raise ValueError(f'Randomized positions need at least one axis, but got {axes}.')
  tail = (axes,) if axes > 1 else ()

  def ids(pos: Num[Array, '...'], key: PRNGKey | None) -> Int[Array, '...']:
    if not jnp.issubdtype(pos.dtype, jnp.integer):
      raise TypeError(f'Randomized positions need integer ids, but got {pos.dtype}.')
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
    one = lambda row, key: randomize(row, key, max_length, length)
    drawn = jax.vmap(one)(rows, jax.random.split(key, len(rows))).reshape(streams.shape)
    return jnp.moveaxis(drawn, -1, -2) if tail else drawn

  return Scheme(ids=ids, axes=axes)
