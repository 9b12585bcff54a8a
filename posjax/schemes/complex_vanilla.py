"""Complex-vanilla: a learned phase for each dimension of a word's embedding, and no position.

x_d -> x_d e^(i t_jd) for word j: the baseline of `complex_order`, which has the term w_jd pos
besides. In both, attention takes the modulus of the complex logits.

Reference: Wang et al. 2020, Encoding Word Order in Complex Embeddings,
https://arxiv.org/abs/1912.12333, section 3.1: the phases start uniformly in [-pi, pi]. The authors'
TensorFlow code (iclr-complex-order/complex-order 4c4ec246) draws them from [0, 2 pi], which is the
same circle. Their PyTorch code under this name multiplies the phases by the position all the same:
it is complex-order with another initialization, not this baseline.
"""

import jax
import jax.numpy as jnp

from posjax.arguments import checked
from posjax.math.complex_embeddings import conjugated, modulus, with_phase, words
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('wang2020encoding',)


@checked
def scheme(conjugate: bool = True) -> Scheme:
  """Complex embeddings without positions.

  Args:
    conjugate: whether logits are q . conj(k), as in the paper, instead of q . k, as in the authors'
      code.

  Raises:
    ValueError: where used, if there are no tokens or the size of the vocabulary is not known.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('embed', 'logits')
  """

  def init_model(key, dims):
    shape = (dims.vocab, dims.width)
    return {'phase': jax.random.uniform(key, shape, minval=-jnp.pi, maxval=jnp.pi)}

  def embed(params, x, tokens, pos):
    return with_phase(x, words(params['phase'], tokens))

  paper = Scheme(init_model=init_model, embed=embed, logits=modulus, traits=Traits(axes=0))
  return paper if conjugate else paper._replace(key=conjugated)
