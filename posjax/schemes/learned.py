"""Learned positions: one trained vector per id, added to the embedding of the token.

x + table[pos], and NaN for any id that the table does not hold: the lengths end with the table.

Reference: Gehring et al. 2017, https://arxiv.org/abs/1705.03122, section 3.1; Devlin et al. 2019,
BERT, https://arxiv.org/abs/1810.04805, section 3. 512 rows, truncated normal of deviation 0.02 cut
at twice that, as in BERT's code, whose token embeddings are as small; where they have deviation 1
(embeddings multiplied by sqrt(M)), `stddev=1.0` starts the two alike. BERT's sum with segment
embeddings, its layer norm and its dropout are the model's.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.scheme import Scheme

SHIFT_INVARIANT = False


def lookup(table: Float[Array, 'N M'], pos: Num[Array, '*shape']) -> Float[Array, '*shape M']:
  """table[pos], NaN outside of 0 .. N - 1.

  NumPy would count a negative id from the end, and JAX would answer a far one with the last row:
  both would hide a mistake.

  Args:
    table: one row per id.
    pos: integer ids, in tokens.

  Raises:
    TypeError: if ids are not integers.

  Example:
    >>> lookup(jnp.array([[1.0], [2.0]]), jnp.array([1, 2, -1]))
    Array([[ 2.], [nan], [nan]], dtype=float32)
  """
  if not jnp.issubdtype(pos.dtype, jnp.integer):
    raise TypeError(f'A table of positions needs integer ids, but got {pos.dtype}.')
  return table.at[pos].get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)


def scheme(max_length: int = 512, stddev: float = 0.02) -> Scheme:
  """A table of positions, a parameter of the model.

  Args:
    max_length: rows of the table: ids 0 .. max_length - 1 have one.
    stddev: of the initial values, before the cut at twice that; 0 starts without positions.

  Raises:
    ValueError: if the table has no row or the deviation is negative; where used, TypeError for ids
      that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(max_length=1024))
    ('embed',)
  """
  if max_length < 1:
    raise ValueError(f'A table of positions needs at least one row, but got {max_length}.')

  if not stddev >= 0:
    raise ValueError(f'The standard deviation must not be negative, but got {stddev}.')

  def init_model(key, dims):
    normal = jax.random.truncated_normal(key, -2, 2, (max_length, dims.width), jnp.float32)
    return {'table': stddev * normal}

  def embed(params, x, tokens, pos):
    return (x + lookup(params['table'], pos)).astype(x.dtype)

  return Scheme(init_model=init_model, embed=embed, axes=1)
