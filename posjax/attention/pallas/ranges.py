"""Which blocks of keys each block of queries visits, found before a kernel runs.

Four numbers for each block of queries: it visits the blocks of keys from `first` to `last`, and
from `first_whole` to `last_whole` every pair may attend, so that no mask is needed there. (Each end
is one beyond the last block.) Blocks may be visited in vain, but none is left out, for any order
and segments.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from posjax.attention.inputs import Rules, Tokens
from posjax.attention.schedule import visible_tiles


def ranges(rules: Rules, q: Tokens, k: Tokens, queries: int, keys: int) -> Int[Array, 'b blocks 4']:
  """For each block of queries: the blocks of keys to visit.

  Args:
    rules: for causality and window.
    q: the queries' tokens, of a length that `queries` divides.
    k: the keys' tokens, of a length that `keys` divides.
    queries: tokens of a block of queries.
    keys: tokens of a block of keys.

  Returns:
    first, first_whole, last_whole, last.
  """
  return _spans(*_visible(rules, q, k, queries, keys))


def ranges_of_keys(
  rules: Rules, q: Tokens, k: Tokens, queries: int, keys: int
) -> Int[Array, 'b blocks 4']:
  """The same for each block of keys: the blocks of queries to visit."""
  some, whole = _visible(rules, q, k, queries, keys)
  return _spans(some.swapaxes(1, 2), whole.swapaxes(1, 2))


def _spans(some: Bool[Array, 'b i j'], whole: Bool[Array, 'b i j']) -> Int[Array, 'b i 4']:
  count = some.shape[-1]
  number = jnp.arange(count, dtype=jnp.int32)[None, None]
  first = jnp.where(some, number, count).min(-1)
  last = jnp.where(some, number + 1, 0).max(-1)
  first_whole = jnp.where(whole, number, count).min(-1)
  ended = ~whole & (number >= first_whole[..., None])
  last_whole = jnp.where(ended, number, count).min(-1)
  first = jnp.minimum(first, last)  # 0, 0 where nothing is visited
  first_whole = jnp.minimum(first_whole, last)
  return jnp.stack([first, first_whole, jnp.clip(last_whole, first_whole, last), last], -1)


def _visible(
  rules: Rules, q: Tokens, k: Tokens, queries: int, keys: int
) -> tuple[Bool[Array, 'b i j'], Bool[Array, 'b i j']]:
  return visible_tiles(rules, _blocks(q, queries), _blocks(k, keys))


def _blocks(tokens: Tokens, size: int) -> Tokens:
  return Tokens(*(x.reshape(x.shape[0], -1, size) for x in tokens))
