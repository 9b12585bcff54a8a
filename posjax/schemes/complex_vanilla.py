"""Complex-vanilla: a learned phase for each number of a word's embedding, and no position.

x_d -> x_d e^(i t_jd) for word j: the baseline of complex-order, which differs by the term w_jd pos
alone. Attention takes the modulus of the complex logits in both.

Reference: Wang et al. 2020, Encoding Word Order in Complex Embeddings,
https://arxiv.org/abs/1912.12333, section 3.1: the phases start uniformly in [-pi, pi]. The authors'
TensorFlow code (iclr-complex-order/complex-order 4c4ec246) draws them from [0, 2 pi], the same
circle. Their PyTorch code under this name multiplies the phases by the position all the same: it
is complex-order with another initialization, not this baseline.
"""

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme
from posjax.schemes.complex_order import conjugated, modulus, rotate, words

SHIFT_INVARIANT = True


def scheme(conjugate: bool = True) -> Scheme:
  """Complex embeddings without positions.

  Args:
    conjugate: q . conj(k), as in the paper, instead of q . k, as in the authors' code.

  Raises:
    ValueError: where used, if tokens are missing or the vocabulary was unknown.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('embed', 'logits')
  """

  def init_model(key, dims):
    shape = (dims.vocab, dims.width)
    return {'phase': jax.random.uniform(key, shape, minval=-jnp.pi, maxval=jnp.pi)}

  def embed(params, x, tokens, pos):
    return rotate(x, words(params['phase'], tokens))

  made = Scheme(init_model=init_model, embed=embed, logits=modulus)
  return made if conjugate else made._replace(key=conjugated)
