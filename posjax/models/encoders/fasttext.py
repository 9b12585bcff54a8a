"""The mean of a text's words, and one dense layer.

Joulin et al. 2016, https://arxiv.org/abs/1607.01759, reads its answer from the mean itself; the
dense layer between them is that of Wang et al. 2020, https://arxiv.org/abs/1912.12333, eq. 10, for
complex numbers. (The authors' code adds real and imaginary parts instead, and has no complex dense
layer there: iclr-complex-order/complex-order 4c4ec246.) A mean has no order but what the embeddings
of the words bring with them.
"""

from flax import nnx
from jaxtyping import Array, Inexact

from posjax.keys import Count
from posjax.models.embedding import Embedded
from posjax.models.encoders import Encoder
from posjax.models.layer_sets import LayerSet, activation_named
from posjax.models.pooling import Encoded, Group
from posjax.scheme import PRNGKey


class FastText(Encoder):
  """activation(dense(mean of the words)); the features of a word are its embedding.

  Args:
    layer_set: real or complex layers.
    width: M.
    hidden_width: of the dense layer.
    activation: a name in jax.nn.
    rngs: a stream for `params`.
  """

  pooling = 'mean'

  def __init__(
    self, layer_set: LayerSet, width: int, *, hidden_width: Count, activation: str, rngs: nnx.Rngs
  ):
    self.layer_set = layer_set
    self.activation = activation_named(activation)
    self.dense = layer_set.dense(width, hidden_width, rngs=rngs)
    self.features, self.hidden_width = width, hidden_width

  @property
  def pooled_features(self) -> int:
    """The width of the dense layer."""
    return self.hidden_width

  def __call__(self, embedded: Embedded, *, train_key: PRNGKey | None = None) -> Encoded:
    """The embeddings as they are; nothing is random."""
    return Encoded((Group(embedded.x, embedded.real),))

  def after_pooling(self, pooled: Inexact[Array, 'B M']) -> Inexact[Array, 'B N']:
    """activation(dense(mean))."""
    return self.layer_set.apply(self.activation, self.dense(pooled))


encoder = FastText
