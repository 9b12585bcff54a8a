"""Self-Extend: near keys at their distance, far ones by groups, so that a trained RoPE reaches on.

logits = RoPE at the distance i - j where that is below the window w, and otherwise at
floor(i/G) - floor(j/G) + w - floor(w/G), for groups of G tokens. Nothing is trained: a model that
knows distances up to L then reads about (L - w) G + w tokens.

Reference: Jin et al. 2024, LLM Maybe LongLM, https://arxiv.org/abs/2401.01325, section 3 (neighbor
attention, grouped attention). The authors' code shifts the ids of the queries by w - w/G, in one
place without the floor: the same where G divides w. Both distances come from the raw heads at place
3, two products of T x S. Keys ahead are near; the paper is for causal attention. The scale is
1/sqrt(D): `attend`'s own does not reach logits that a scheme replaces. ids must be integers.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from posjax.angles import angles, frequencies
from posjax.heads import product
from posjax.scheme import Scheme
from posjax.schemes.rope import rotary_width, rotate

SHIFT_INVARIANT = False
EXAMPLE = 'grouped(group=3, window=4)'


def grouped_ids(
  q_pos: Num[Array, '*B T'], k_pos: Num[Array, '*B S'], group: int, window: int
) -> tuple[Int[Array, '*B T'], Int[Array, '*B S']]:
  """Ids whose differences are the distances of far pairs.

  Args:
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    group: G, tokens to a group.
    window: w, tokens; pairs below it keep their distance, pairs w apart then are w or w + 1.

  Raises:
    TypeError: if ids are not integers.

  Example:
    >>> grouped_ids(jnp.array([8, 9, 10]), jnp.array([0, 5]), 4, 8)
    (Array([8, 8, 8], dtype=int32), Array([0, 1], dtype=int32))
  """
  for pos in (q_pos, k_pos):
    if not jnp.issubdtype(pos.dtype, jnp.integer):
      raise TypeError(f'Self-Extend groups whole tokens: integer ids, but got {pos.dtype}.')
  return q_pos // group + (window - window // group), k_pos // group


def rotated_logits(
  q: Float[Array, 'B T H D'],
  k: Float[Array, 'B S K D'],
  q_pos: Num[Array, 'B T'],
  k_pos: Num[Array, 'B S'],
  group: int,
  window: int,
  base: float = 10000.0,
  interleaved: bool = False,
) -> Float[Array, 'B H T S']:
  """The content logits with near and far rotations, scaled by 1/sqrt(D).

  Args:
    q: queries, as projected.
    k: keys, as projected.
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    group, window, base, interleaved: see `scheme`.

  Returns:
    float32 or wider.

  Raises:
    TypeError: if ids are not integers.
    ValueError: if the width is odd.

  Example:
    >>> x = jnp.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    >>> rotated_logits(x, x, jnp.array([[9]]), jnp.array([[0]]), 4, 8)  # cos(2 - 0 + 6) / sqrt(2)
    Array([[[[-0.10288...]]]], dtype=float32)
  """
  each = frequencies(rotary_width(q.shape[-1]), base)

  def at(q_ids, k_ids):
    placed = (rotate(x, angles(ids, each), interleaved) for x, ids in ((q, q_ids), (k, k_ids)))
    return product(*placed)

  far = at(*grouped_ids(q_pos, k_pos, group, window))
  near = q_pos[:, None, :, None] - k_pos[:, None, None] < window
  return jnp.where(near, at(q_pos, k_pos), far) * q.shape[-1] ** -0.5


def scheme(group: int, window: int, base: float = 10000.0, interleaved: bool = False) -> Scheme:
  """Grouped rotary positions.

  Args:
    group: G, tokens to a group of far keys; 1 is RoPE. The authors' code has 8.
    window: w, tokens from which on keys are far; from the length on, RoPE. The authors' has 1024.
    base: of the frequencies, as trained.
    interleaved: pair neighbours (GPT-J), instead of halves (Llama).

  Raises:
    ValueError: if an argument is out of range; where used, if the width is odd; TypeError for ids
      that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(group=8, window=1024))
    ('logits',)
  """
  if group < 1:
    raise ValueError(f"Self-Extend's group must be at least 1 token, but got {group}.")
  if window < 1:
    raise ValueError(f"Self-Extend's window must be at least 1 token, but got {window}.")
  if not base > 0:
    raise ValueError(f"Self-Extend's base must be positive, but got {base}.")

  def replaced(params, logits, q, k, q_at, k_at):
    return rotated_logits(q, k, q_at, k_at, group, window, base, interleaved)

  return Scheme(logits=replaced, axes=1)
