"""Learned positions: one trained vector per id, added to the embedding of the token.

x + table[pos], and NaN for any id that the table has no row for: no text can be longer than the
table.

Reference: Gehring et al. 2017, https://arxiv.org/abs/1705.03122, section 3.1; Devlin et al. 2019,
BERT, https://arxiv.org/abs/1810.04805, section 3. 512 rows, drawn from a normal distribution of
standard deviation 0.02 that is truncated at twice that, as in BERT's code, whose token embeddings
are as small. Where token embeddings have deviation 1 (embeddings multiplied by sqrt(M)),
`stddev=1.0` gives both the same size at first. BERT's sum with segment embeddings, its layer norm
and its dropout belong to the model.
"""

import jax
import jax.numpy as jnp

from posjax.arguments import NonNegative, Size, checked
from posjax.math.tables import lookup
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
PAPERS = ('gehring2017convolutional', 'devlin2019bert')


@checked
def scheme(max_length: Size = 512, stddev: NonNegative = 0.02) -> Scheme:
  """A table of positions, which is a parameter of the model.

  Args:
    max_length: the number of rows: ids 0 .. max_length - 1 have one, others give NaN.
    stddev: the standard deviation of the initial values before they are truncated at twice that; 0
      starts without positions.

  Raises:
    ValueError: if the table has no row or the deviation is negative; where used, TypeError for ids
      that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(max_length=1024))
    ('embed',)
  """

  def init_model(key, dims):
    normal = jax.random.truncated_normal(key, -2, 2, (max_length, dims.width), jnp.float32)
    return {'table': stddev * normal}

  def embed(params, x, tokens, pos):
    return (x + jnp.broadcast_to(lookup(params['table'], pos), x.shape)).astype(x.dtype)

  return Scheme(init_model=init_model, embed=embed)
