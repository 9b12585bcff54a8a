"""Which blocks of keys a block of queries meets, found from order and segments.

Found before a kernel runs. Four numbers for each block of queries: it meets no block of keys
outside `first` to `last`, and from `first_whole` to `last_whole` every pair meets, so that no mask
is needed there. (The ends are beyond the block.) Never too few blocks, for any orders and segments.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from posjax.border import Rules
from posjax.kernels.flash import Tokens


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
  return _spans(*_meetings(rules, q, k, queries, keys))


def ranges_of_keys(
  rules: Rules, q: Tokens, k: Tokens, queries: int, keys: int
) -> Int[Array, 'b blocks 4']:
  """The same for each block of keys: the blocks of queries to visit."""
  some, whole = _meetings(rules, q, k, queries, keys)
  return _spans(some.swapaxes(1, 2), whole.swapaxes(1, 2))


def _spans(some: Bool[Array, 'b i j'], whole: Bool[Array, 'b i j']) -> Int[Array, 'b i 4']:
  count = some.shape[-1]
  number = jnp.arange(count, dtype=jnp.int32)[None, None]
  first = jnp.where(some, number, count).min(-1)
  last = jnp.where(some, number + 1, 0).max(-1)
  first_whole = jnp.where(whole, number, count).min(-1)
  ended = ~whole & (number >= first_whole[..., None])
  last_whole = jnp.where(ended, number, count).min(-1)
  first = jnp.minimum(first, last)  # 0, 0 where nothing is met
  first_whole = jnp.minimum(first_whole, last)
  return jnp.stack([first, first_whole, jnp.clip(last_whole, first_whole, last), last], -1)


def _meetings(rules, q, k, queries, keys) -> tuple[Bool[Array, 'b i j'], Bool[Array, 'b i j']]:
  """Whether any pair of two blocks may meet (never False where one does), and whether all do."""
  q_real, q_order, q_segments = (span[:, :, None] for span in _block_spans(q, queries))
  k_real, k_order, k_segments = (span[:, None] for span in _block_spans(k, keys))
  some = _overlap(q_segments, k_segments) & (q_real[..., 1] & k_real[..., 1])
  whole = (q_segments[..., 0] == k_segments[..., 1]) & (q_segments[..., 1] == k_segments[..., 0])
  whole = whole & q_real[..., 0] & k_real[..., 0]
  least = q_order[..., 0] - k_order[..., 1]
  most = q_order[..., 1] - k_order[..., 0]
  if rules.causal:
    some, whole = some & (most >= 0), whole & (least >= 0)
  if rules.window is not None:
    some = some & (least < rules.window) & (-most < rules.window)
    whole = whole & (most < rules.window) & (-least < rules.window)
  return some, whole


def _overlap(one, other):
  return (one[..., 0] <= other[..., 1]) & (other[..., 0] <= one[..., 1])


def _block_spans(tokens: Tokens, size: int):
  """Of each block: whether all and any are real; least and largest order; and segment."""
  order, segments = (x.reshape(x.shape[0], -1, size) for x in tokens)
  real = segments != 0

  def span(x):
    info = jnp.finfo if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo
    limits = info(x.dtype)
    low = jnp.where(real, x, limits.max).min(-1)
    return jnp.stack([low, jnp.where(real, x, limits.min).max(-1)], -1)

  return jnp.stack([real.all(-1), real.any(-1)], -1), span(order), span(segments)
