"""Position only: queries and keys come from the position alone, and the content from the values.

logits = (W_q p(q_pos)) . (W_k p(k_pos)) / sqrt(D): which tokens a token attends to depends on the
two ids and never on the words. The table p, as wide as the model, is learned and shared by all
layers; each layer has its own W_q and W_k. The model's own queries and keys are not used, and so
their projections are not trained.

Reference: Kitaev and Klein 2018, https://arxiv.org/abs/1805.01052, section 3: an encoder that
attends so in every layer loses little, because the values still carry the content. The paper
divides by sqrt(d_k); the authors' code divides by the square root of the model's width, for which
`attend` has its argument `scale`. p is drawn from N(0, 1), as in their code, and W from N(0, 1/M).
The parameters are those of the scheme `factored`, whose logits without content are these, divided
by sqrt(2).
"""

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
def scheme(max_length: Size = 512) -> Scheme:
  """Attention by position alone.

  Args:
    max_length: the number of rows of the table: ids 0 .. max_length - 1 have one, others give NaN.

  Raises:
    ValueError: if the table has no row; where used, TypeError for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(max_length=1024))
    ('query', 'key')
  """

  def init_model(key, dims):
    return normal_table(key, dims, max_length)

  def query(params, x, at):
    return position_heads(params['table'], params['query'], at).astype(x.dtype)

  def key(params, x, at):
    return position_heads(params['table'], params['key'], at).astype(x.dtype)

  return Scheme(init_model=init_model, init=normal_projections, query=query, key=key)
