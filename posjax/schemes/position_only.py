"""Position only: queries and keys come from the position alone, and the content from the values.

logits = (W_q p(q_pos)) . (W_k p(k_pos)) / sqrt(D): whom a token looks at depends on the two ids,
never on the words. The table p, as wide as the model, is learned and shared by all layers; W_q and
W_k are each layer's. The model's own queries and keys are not read, and so not trained.

Reference: Kitaev and Klein 2018, https://arxiv.org/abs/1805.01052, section 3: an encoder whose
every layer attends so loses little, where the values still carry the content. The paper divides by
sqrt(d_k); the authors' code by the square root of the model's width, `attend(..., scale=)`. p from
N(0, 1), as in their code; W from N(0, 1/M). The parameters are those of the factored scheme, whose
logits without content are these, divided by sqrt(2).
"""

from posjax.scheme import Scheme
from posjax.schemes import factored

SHIFT_INVARIANT = False


def scheme(max_length: int = 512) -> Scheme:
  """Attention by position alone.

  Args:
    max_length: rows of the table: ids 0 .. max_length - 1 have one; others give NaN.

  Raises:
    ValueError: if the table has no row; where used, TypeError for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(max_length=1024))
    ('query', 'key')
  """

  def query(params, x, at):
    return factored.position_heads(params['table'], params['query'], at).astype(x.dtype)

  def key(params, x, at):
    return factored.position_heads(params['table'], params['key'], at).astype(x.dtype)

  return factored.scheme(max_length)._replace(query=query, key=key)
