"""Factored: content attends to content and position to position, and the two never mix.

q . k = (q_c . k_c + q_p . k_p) / sqrt(2 D): each projected head, q_c or k_c of width D, is widened
by a position half of the same width, q_p = W_q p(q_pos) or k_p = W_k p(k_pos). The table p, as wide
as the model, is learned and shared by all layers; each layer has its own W_q and W_k. No product is
of a content with a position.

Reference: Kitaev and Klein 2018, https://arxiv.org/abs/1805.01052, section 3 ("factored"). The
paper divides by sqrt(d_k), where d_k is the width of both halves together, as the authors' later
code and this file do. Their code of 2018 divides by the square root of the model's width, content
and position together. For this use `attend(..., scale=(2 / width) ** 0.5)`, because `scale` takes
the place of 1/sqrt(D) and the queries are multiplied by the other 1/sqrt(2). Initial values: p is
drawn from N(0, 1), as theirs, and W from N(0, 1/M), which gives q_p and k_p variance 1. In the
paper the position half passes through the layers, with residuals, values, an output projection and
a feed-forward network of its own: these partitioned layers belong to the model. The scheme is the
position half of the logits alone, and every layer sees the same p.
"""

import jax.numpy as jnp

from posjax.arguments import Size, checked
from posjax.math.tables import (
  normal_projections,
  normal_table,
  position_heads,
)
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
PAPERS = ('kitaev2018constituency',)


@checked
def scheme(max_length: Size = 512, content: bool = True, position: bool = True) -> Scheme:
  """A position half for every query and key.

  The parameters are the same whichever halves are used, so that a half can be left out of a model
  that was trained with both.

  Args:
    max_length: the number of rows of the table: ids 0 .. max_length - 1 have one, others give NaN.
    content: whether the content half is used; without it, the logits of the other half stay as they
      are.
    position: whether the position half is used.

  Raises:
    ValueError: if the table has no row, or neither half is used; where used, TypeError for ids that
      are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(max_length=1024))
    ('query', 'key')
  """
  if not (content or position):
    raise ValueError(
      'Attention needs content or position, but got False for both content and position.'
    )

  def init_model(key, dims):
    return normal_table(key, dims, max_length)

  def halves(params, name, x, pos):
    if not position:
      return x
    of_position = position_heads(params['table'], params[name], pos).astype(x.dtype)
    return jnp.concatenate([x, of_position], axis=-1) if content else of_position

  def query(params, x, at):
    # `attend` divides by sqrt(D), but the widened head has the width 2 D.
    return 2**-0.5 * halves(params, 'query', x, at)

  def key(params, x, at):
    return halves(params, 'key', x, at)

  return Scheme(init_model=init_model, init=normal_projections, query=query, key=key)
