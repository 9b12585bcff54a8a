"""Dual chunk attention: RoPE by chunks, so that no distance exceeds what the model was trained on.

Positions are counted inside chunks of s tokens; c is the trained length, w = c - s the local
window. A key at j stands at j mod s. A query at i stands, for keys of its own chunk, at i mod s;
for those of the chunk before, at min(i mod s + s, c - 1), so that the nearest w keep their
distance; for earlier ones, at c - 1. logits = RoPE at the difference, at most c - 1.

Reference: An et al. 2024, Training-Free Long-Context Scaling of Large Language Models,
https://arxiv.org/abs/2402.17463, section 3: intra-, successive- and inter-chunk attention. Here as
in the paper. The authors' code (ChunkLlama) lets the position of queries reach c, one more, for
which `length` is one more; of a trained length L it takes c = 3/4 L and w = L/16. Three products of
T x S at place 3, of the raw heads. The paper is for causal attention: keys of later chunks, where
no mask hides them, are treated as the earliest. The scale is 1/sqrt(D): `attend`'s own does not
reach logits that a scheme replaces. ids must be integers.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from posjax.angles import angles, frequencies
from posjax.heads import product
from posjax.scheme import Scheme
from posjax.schemes.rope import rotary_width, rotate

SHIFT_INVARIANT = False
EXAMPLE = 'dual_chunk(chunk_size=3, length=5)'


def query_ids(
  q_pos: Num[Array, '*shape'], chunk_size: int, length: int
) -> tuple[Int[Array, '*shape'], Int[Array, '*shape'], Int[Array, '*shape']]:
  """Where queries stand for keys of their own chunk, of the one before, and of earlier ones.

  Keys stand at k_pos mod chunk_size.

  Args:
    q_pos: ids of the queries.
    chunk_size: s, tokens.
    length: c, tokens.

  Raises:
    TypeError: if ids are not integers.

  Example:
    >>> for ids in query_ids(jnp.arange(6, 12), 6, 10):
    ...   print(ids)
    [0 1 2 3 4 5]
    [6 7 8 9 9 9]
    [9 9 9 9 9 9]
  """
  if not jnp.issubdtype(q_pos.dtype, jnp.integer):
    raise TypeError(
      f'Dual chunk attention counts whole tokens: integer ids, but got {q_pos.dtype}.'
    )
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
  """The content logits rotated by chunks, scaled by 1/sqrt(D).

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
  each = frequencies(rotary_width(q.shape[-1]), base)
  turned = lambda x, ids: rotate(x, angles(ids, each), interleaved)
  # The ids are checked once for both sides: a key stands where a query of its chunk does.
  placed = turned(k, query_ids(k_pos, chunk_size, length)[0])
  own, before, earlier = (
    product(turned(q, ids), placed) for ids in query_ids(q_pos, chunk_size, length)
  )
  chunks = (q_pos // chunk_size)[:, None, :, None] - (k_pos // chunk_size)[:, None, None]
  found = jnp.where(chunks == 0, own, jnp.where(chunks == 1, before, earlier))
  return found * q.shape[-1] ** -0.5


def scheme(
  chunk_size: int, length: int, base: float = 10000.0, interleaved: bool = False
) -> Scheme:
  """Rotary positions by chunks.

  Args:
    chunk_size: s, tokens, at least 1: within one chunk, RoPE.
    length: c, tokens that the model was trained on, above s: all distances are below it.
    base: of the frequencies, as trained.
    interleaved: pair neighbours (GPT-J), instead of halves (Llama).

  Raises:
    ValueError: if an argument is out of range; where used, if the width is odd; TypeError for ids
      that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(chunk_size=3072, length=4096))
    ('logits',)
  """
  if chunk_size < 1:
    raise ValueError(f'A chunk must hold at least 1 token, but got {chunk_size}.')
  if not chunk_size < length:
    raise ValueError(
      f'The trained length must be above the chunk_size {chunk_size}, the rest being the local '
      f'window, but got {length}.'
    )
  if not base > 0:
    raise ValueError(f"Dual chunk attention's base must be positive, but got {base}.")

  def replaced(params, logits, q, k, q_at, k_at):
    return rotated_logits(q, k, q_at, k_at, chunk_size, length, base, interleaved)

  return Scheme(logits=replaced, axes=1)
