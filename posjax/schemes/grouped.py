"""Self-Extend: near keys at their distance, far ones by groups, so that a trained RoPE reaches on.

The logits are those of RoPE for the distance i - j where this is below the window w, and otherwise
for the distance floor(i/G) - floor(j/G) + w - floor(w/G), with groups of G tokens. Nothing is
trained: a model that knows distances up to L then reads about (L - w) G + w tokens.

Reference: Jin et al. 2024, LLM Maybe LongLM, https://arxiv.org/abs/2401.01325, section 3 (neighbor
attention, grouped attention). The authors' code shifts the ids of the queries by w - w/G, in one
place without the floor, which is the same where G divides w. There are two products of T x S at
place 3, one for each distance, of the heads as they were projected. Later keys count as near; the
paper is for causal attention. The logits are scaled by 1/sqrt(D) here, because `attend` does not
scale logits that a scheme replaces. ids must be integers.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from posjax.arguments import Positive, Size, checked
from posjax.math.angles import angles, frequencies
from posjax.math.checks import check_integer_ids
from posjax.math.differences import is_below
from posjax.math.heads import product
from posjax.math.rotation import rotary_width, rotate
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
EXAMPLE = 'grouped(group=3, window=4)'
PAPERS = ('jin2024llm',)


def grouped_ids(
  q_pos: Num[Array, '*B T'], k_pos: Num[Array, '*B S'], group: int, window: int
) -> tuple[Int[Array, '*B T'], Int[Array, '*B S']]:
  """Positions of queries and of keys, whose differences are the distances of far pairs.

  Args:
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    group: G, the number of tokens in a group.
    window: w, in tokens: pairs that are nearer keep their distance. The new distance of pairs that
      are w apart is w or w + 1.

  Raises:
    TypeError: if ids are not integers.

  Example:
    >>> grouped_ids(jnp.array([8, 9, 10]), jnp.array([0, 5]), 4, 8)
    (Array([8, 8, 8], dtype=int32), Array([0, 1], dtype=int32))
  """
  for pos in (q_pos, k_pos):
    check_integer_ids(pos, 'Self-Extend groups whole tokens and needs')
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
  """The logits of near and of far pairs, scaled by 1/sqrt(D).

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
  by_pair = frequencies(rotary_width(q.shape[-1]), base)
  rotated = lambda x, ids: rotate(x, angles(ids, by_pair), interleaved)
  logits = lambda q_ids, k_ids: product(rotated(q, q_ids), rotated(k, k_ids))

  far = logits(*grouped_ids(q_pos, k_pos, group, window))
  is_near = is_below(q_pos[:, None, :, None], k_pos[:, None, None], window)
  return jnp.where(is_near, logits(q_pos, k_pos), far) * q.shape[-1] ** -0.5


@checked
def scheme(
  group: Size, window: Size, base: Positive = 10000.0, interleaved: bool = False
) -> Scheme:
  """Grouped rotary positions.

  Args:
    group: G, the number of tokens in a group of far keys; 1 is RoPE. The authors' code has 8.
    window: w, the distance in tokens from which on keys are far; a text that is no longer than the
      window has plain RoPE. The authors' code has 1024.
    base, interleaved: see `posjax.math.rotation`.

  Raises:
    ValueError: if an argument is out of range; where used, if the width of a head is odd; TypeError
      for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(group=8, window=1024))
    ('logits',)
  """

  def replaced(params, logits, q, k, q_at, k_at):
    return rotated_logits(q, k, q_at, k_at, group, window, base, interleaved)

  return Scheme(logits=replaced)
