"""Floor-log: queries grow with the logarithm of their position, in steps of many tokens.

q_p -> q_p (1 + scale log(1 + floor((p + offset) / floor))), so that nothing changes before the
first step, at p = floor - offset. Far on, where a query sees many keys, its weights stay sharp.

Reference: Meta 2025, The Llama 4 herd, https://ai.meta.com/blog/llama-4-multimodal-intelligence/
("temperature scaling"); the formula is that of the models' code, which Hugging Face's transformers
has too. Llama 4 has scale 0.1, floor 8192 and offset 1, on the layers without RoPE. Ministral 3 and
Mistral Small 4 have offset 0 on all layers, after RoPE: `rope+floor_log(floor=16384, offset=0)`.

Steps are exact at every int32 id. Ids below 0 count as 0. Ids that the scheme before in
the chain changed (`randomized`) are taken as they are, although they no longer count the tokens.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import NonNegative, Size, Whole, checked
from posjax.math.checks import check_ids
from posjax.math.heads import multiplied
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
EXAMPLE = 'floor_log(floor=4)'
PAPERS = ('meta2025llama',)


def temperature(
  pos: Num[Array, '*B T'], floor: int, scale: float = 0.1, offset: int = 1
) -> Float[Array, '*B T']:
  """1 + scale log(1 + floor((pos + offset) / floor)), for ids of 0 and more.

  Args:
    pos: ids; those below 0 count as 0.
    floor: the number of tokens of one step.
    scale: the factor of the logarithm.
    offset: what is added to each id, between 0 and `floor`.

  Returns:
    float32, or float64 for such ids.

  Example:
    >>> temperature(jnp.array([0, 8190, 8191, 16383]), 8192)
    Array([1.       , 1.       , 1.0693147, 1.1098613], dtype=float32)
  """
  check_ids(pos)
  if jnp.issubdtype(pos.dtype, jnp.integer):
    pos = jnp.maximum(pos.astype(jnp.result_type(pos, jnp.int32)), 0)
    # The sum pos + offset could exceed the integers.
    one_more = (pos % floor >= floor - offset).astype(pos.dtype)
    steps = (pos // floor + one_more).astype(jnp.float32)
  else:
    steps = jnp.floor((jnp.maximum(pos, 0) + offset) / floor)
  return 1 + scale * jnp.log1p(steps)


@checked
def scheme(floor: Size, scale: NonNegative = 0.1, offset: Whole = 1) -> Scheme:
  """Queries that grow in steps.

  Args:
    floor: the number of tokens of one step; usually the training length.
    scale: the factor of the logarithm; 0 changes nothing.
    offset: what is added to each id, between 0 and `floor`.

  Raises:
    ValueError: if an argument is out of range.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(floor=8192))
    ('query',)
  """
  if not 0 <= offset <= floor:
    raise ValueError(f"Floor-log's offset must be in [0, {floor}], its floor, but got {offset}.")

  def query(params, x, at):
    return multiplied(x, temperature(at, floor, scale, offset)[..., None, None])

  return Scheme(query=query)
