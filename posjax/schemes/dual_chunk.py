"""Dual chunk attention: RoPE by chunks, so that no distance exceeds what the model was trained on.

Positions are counted inside chunks of s tokens; c is the trained length, and w = c - s the local
window. A key with the id j is rotated as at position j mod s. A query with the id i is rotated
three times: for keys of its own chunk as at position i mod s; for keys of the chunk before as at
position min(i mod s + s, c - 1), so that the nearest w keys keep their distance; and for earlier
keys as at position c - 1. The logits are those of RoPE for the difference of the two positions,
which is at most c - 1.

Reference: An et al. 2024, Training-Free Long-Context Scaling of Large Language Models,
https://arxiv.org/abs/2402.17463, section 3: intra-, successive- and inter-chunk attention, here as
in the paper. In the authors' code (ChunkLlama) the position of queries reaches c instead of c - 1;
for this, make `length` one more. For a trained length L that code takes c = 3/4 L and w = L/16.
There are three products of T x S at place 3, of the heads as they were projected. The paper is for
causal attention: keys of later chunks, where no mask hides them, are treated as the earliest ones.
The logits are scaled by 1/sqrt(D) here, because `attend` does not scale logits that a scheme
replaces. ids must be integers.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from posjax.arguments import Positive, Size, checked
from posjax.math.angles import angles, frequencies
from posjax.math.checks import check_integer_ids
from posjax.math.differences import saturating_subtract
from posjax.math.heads import product
from posjax.math.rotation import rotary_width, rotate
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
EXAMPLE = 'dual_chunk(chunk_size=3, length=5)'
PAPERS = ('an2024training',)


def query_ids(
  q_pos: Num[Array, '*shape'], chunk_size: int, length: int
) -> tuple[Int[Array, '*shape'], Int[Array, '*shape'], Int[Array, '*shape']]:
  """The positions of queries for keys of their own chunk, of the one before, and of earlier ones.

  The positions of keys are k_pos mod chunk_size.

  Args:
    q_pos: ids of the queries.
    chunk_size: s, in tokens.
    length: c, in tokens.

  Raises:
    TypeError: if ids are not integers.

  Example:
    >>> for ids in query_ids(jnp.arange(6, 12), 6, 10):
    ...   print(ids)
    [0 1 2 3 4 5]
    [6 7 8 9 9 9]
    [9 9 9 9 9 9]
  """
  check_integer_ids(q_pos, 'Dual chunk attention counts whole tokens and needs')
  own = q_pos % chunk_size
  last = jnp.full_like(own, length - 1)
  return own, jnp.minimum(own + chunk_size, last), last


def rotated_logits(
  q: Float[Array, 'B T H D'],
  k: Float[Array, 'B S K D'],
  q_pos: Num[Array, 'B T'],
  k_pos: Num[Array, 'B S'],
  chunk_size: int,
  length: int,
  base: float = 10000.0,
  interleaved: bool = False,
) -> Float[Array, 'B H T S']:
  """The logits of queries and keys that are rotated by chunks, scaled by 1/sqrt(D).

  Args:
    q: queries, as projected.
    k: keys, as projected.
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    chunk_size, length, base, interleaved: see `scheme`.

  Returns:
    float32 or wider.

  Raises:
    TypeError: if ids are not integers.
    ValueError: if the width is odd.

  Example:
    >>> x = jnp.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    >>> rotated_logits(x, x, jnp.array([[20]]), jnp.array([[2]]), 6, 10)  # cos(9 - 2) / sqrt(2)
    Array([[[[0.533...]]]], dtype=float32)
  """
  by_pair = frequencies(rotary_width(q.shape[-1]), base)
  rotated = lambda x, ids: rotate(x, angles(ids, by_pair), interleaved)
  # A key has the position of a query for keys of its own chunk, and its ids are checked with it.
  rotated_k = rotated(k, query_ids(k_pos, chunk_size, length)[0])
  own, before, earlier = (
    product(rotated(q, ids), rotated_k) for ids in query_ids(q_pos, chunk_size, length)
  )
  chunk = lambda pos: pos // chunk_size
  chunks_back = saturating_subtract(chunk(q_pos)[:, None, :, None], chunk(k_pos)[:, None, None])
  logits = jnp.where(chunks_back == 0, own, jnp.where(chunks_back == 1, before, earlier))
  return logits * q.shape[-1] ** -0.5


@checked
def scheme(
  chunk_size: Size, length: int, base: Positive = 10000.0, interleaved: bool = False
) -> Scheme:
  """Rotary positions by chunks.

  Args:
    chunk_size: s, in tokens, at least 1; a text of one chunk has plain RoPE.
    length: c, the number of tokens that the model was trained on, above s: all distances are below
      it.
    base, interleaved: see `posjax.math.rotation`.

  Raises:
    ValueError: if an argument is out of range; where used, if the width of a head is odd; TypeError
      for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(chunk_size=3072, length=4096))
    ('logits',)
  """
  if not chunk_size < length:
    raise ValueError(
      f'The trained length must be above the chunk_size {chunk_size}, the rest being the local '
      f'window, but got {length}.'
    )

  def replaced(params, logits, q, k, q_at, k_at):
    return rotated_logits(q, k, q_at, k_at, chunk_size, length, base, interleaved)

  return Scheme(logits=replaced)
