"""Layers of self-attention and feed-forward: the encoder of Vaswani et al. 2017.

Reference: https://arxiv.org/abs/1706.03762; complex layers after Wang et al. 2020,
https://arxiv.org/abs/1912.12333, section 3.3. All complex dense layers have the biases of eq. 10,
those of attention too; real attention has none.
"""

from flax import nnx

from posjax.keys import Count, Layers, Share
from posjax.models.blocks import Layer, Weights, blocks
from posjax.models.embedding import Embedded
from posjax.models.encoders import Encoder
from posjax.models.layer_sets import LayerSet
from posjax.models.orthogonal import QueryKey
from posjax.models.pooling import Encoded, Group, zero_padding
from posjax.scheme import PRNGKey, Scheme


class TransformerEncoder(Encoder):
  """A stack of blocks that see the whole text.

  Args:
    layer_set: real or complex layers.
    width: M, and N of the features.
    schemes: a pattern that repeats over the layers.
    num_layers: L; the pattern must divide it.
    num_heads: H; must divide the width.
    hidden_width: F, of the feed-forward layers.
    pre_norm: norm before each part, and once at the end, instead of after each.
    activation: a name in jax.nn, of the feed-forward layers.
    dropout_rate: of attention weights and of what each part adds.
    shared_dropout: whether all tokens of a text lose the same features of what a part adds, as in
      the parser of Kitaev and Klein 2018.
    query_key: 'free', or one orthogonal matrix for queries and keys, see `models.orthogonal`.
    output_projection: whether the heads are projected, and not only joined, as in TENER.
    rngs: a stream for `params`.

  Raises:
    ValueError: if sizes do not divide, or a name is unknown.
  """

  def __init__(
    self,
    layer_set: LayerSet,
    width: int,
    *,
    schemes: tuple[Scheme, ...],
    num_layers: Layers,
    num_heads: Count,
    hidden_width: Count,
    pre_norm: bool,
    activation: str,
    dropout_rate: Share,
    query_key: QueryKey = 'free',
    output_projection: bool = True,
    shared_dropout: bool = False,
    rngs: nnx.Rngs,
  ):
    self.features = width
    self.stack = blocks(
      [Layer(scheme) for scheme in schemes],
      num_layers,
      width=width,
      layer_set=layer_set,
      num_heads=num_heads,
      ff_width=hidden_width,
      attention_bias=layer_set.is_complex,
      pre_norm=pre_norm,
      activation=activation,
      dropout_rate=dropout_rate,
      query_key=query_key,
      output_projection=output_projection,
      shared_dropout=shared_dropout,
      unroll=num_layers,
      rngs=rngs,
    )

  def __call__(self, embedded: Embedded, *, train_key: PRNGKey | None = None) -> Encoded:
    """The last layer's output, normed if norms come first."""
    x, _ = self.stack(_without_padding(embedded), train_key=train_key)
    return Encoded((Group(x.astype(embedded.x.dtype), embedded.real),))

  def weigh(self, embedded: Embedded) -> Weights:
    """The attention weights of all layers, for pictures; nothing is random."""
    return self.stack(_without_padding(embedded), return_weights=True)[1]


def _without_padding(embedded: Embedded) -> Embedded:
  return embedded._replace(x=zero_padding(embedded.x, embedded.real))


encoder = TransformerEncoder
