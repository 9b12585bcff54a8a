"""The mean of a text's words, and one dense layer.

Joulin et al. 2016, https://arxiv.org/abs/1607.01759, reads its answer from the mean itself; the
dense layer between them is that of Wang et al. 2020, https://arxiv.org/abs/1912.12333, eq. 10, for
complex numbers. (The authors' code adds real and imaginary parts instead, and has no complex dense
layer there: iclr-complex-order/complex-order 4c4ec246.) A mean has no order but what the embeddings
of the words bring with them.
"""

from flax import nnx
from jaxtyping import Array, Bool, Inexact

from posjax.experiment.models.fields import Field, named_activation
from posjax.experiment.models.pooling import mean


class FastText(nnx.Module):
  """activation(dense(mean of the words)).

  Args:
    field: real or complex numbers.
    width: M.
    hidden_width: N.
    activation: a name in jax.nn.
    rngs: a stream for `params`.
  """

  def __init__(
    self, field: Field, width: int, hidden_width: int, *, activation: str, rngs: nnx.Rngs
  ):
    self.field = field
    self.activation = named_activation(activation)
    self.dense = field.dense(width, hidden_width, rngs=rngs)
    self.features = hidden_width

  def __call__(self, x: Inexact[Array, 'B T M'], real: Bool[Array, 'B T']) -> Inexact[Array, 'B N']:
    """One vector a row; `real` is False in the padding."""
    return self.field.apply(self.activation, self.dense(mean(x, real)))
