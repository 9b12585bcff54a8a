"""Texts to labels: embedded words, an encoder, pooling, and a real softmax layer.

Where the scheme makes complex embeddings, every layer is complex, as in Wang et al. 2020,
https://arxiv.org/abs/1912.12333; the last layer reads real and imaginary parts of the features,
side by side.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.keys import Count, Keys, OneOf, Share, keys_of
from posjax.models import axes, encoders
from posjax.models import pooling as pool
from posjax.models.embedding import Embedding
from posjax.models.layer_sets import Dtype, dropout, layer_set_of, real_parts, split_key
from posjax.scheme import Ids, PRNGKey, Scheme


class Classifier(nnx.Module):
  """Words to logits over labels.

  Args:
    vocab: V, the number of words.
    labels: C.
    scheme: one scheme; for a Transformer, perhaps a pattern that repeats over the layers. The
      other encoders know positions by place 0 and 1 alone.
    encoder: a file in `encoders`.
    width: M, of the embeddings.
    num_heads: of a Transformer.
    pooling: 'mean', 'max' or 'last' of the words' features; not used where a pooling belongs to
      the encoder.
    dropout_rate: of embeddings and pooled features, and within a Transformer.
    vectors: [V, M], initial embeddings; drawn from N(0, 1/M) if None. As in a Transformer, they are
      then multiplied by sqrt(M).
    dtype: 'float32' or 'bfloat16', in which a Transformer computes; parameters and logits are
      float32.
    implementation: of attention, as in `posjax.attend`.
    rngs: a stream for `params`.
    options: further options of the encoder; those that only other encoders take are not used.

  Raises:
    ValueError: if a name is unknown, sizes do not fit, or the scheme would lose what it has for
      attention.
  """

  def __init__(
    self,
    vocab: int,
    labels: int,
    scheme: Scheme | Sequence[Scheme],
    *,
    encoder: Annotated[str, OneOf(encoders.names)],
    width: Count,
    num_heads: Count = 1,
    pooling: pool.Pooling = 'mean',
    dropout_rate: Share = 0.0,
    vectors: np.ndarray | None = None,
    dtype: Dtype = 'float32',
    implementation: str | None = None,
    rngs: nnx.Rngs,
    **options: Any,
  ):
    pattern = (scheme,) if isinstance(scheme, Scheme) else tuple(scheme)
    dims = encoders.dims_of(encoder, width, num_heads, vocab, options.get('query_key', 'free'))
    layer_set = layer_set_of(pattern, dims, dtype, implementation)
    self.embed = Embedding(pattern, dims, vectors=vectors, rngs=rngs)
    given = {**options, 'num_heads': num_heads, 'dropout_rate': dropout_rate}
    self.encoder = encoders.make(encoder, pattern, width, given, layer_set=layer_set, rngs=rngs)
    self.pooling = self.encoder.pooling or pool.check(pooling)
    self.dropout_rate = dropout_rate
    self.readout = axes.readout(layer_set.parts * self.encoder.pooled_features, labels, rngs=rngs)

  def __call__(
    self,
    tokens: Int[Array, 'B T'],
    pos: Ids,
    *,
    segments: Int[Array, 'B T'],
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B C']:
    """Logits of the labels. Padding does not affect the result.

    Args:
      tokens: numbers of words, below V, each text at the left of its row.
      pos: ids before place 0, [B, T].
      segments: 1 where a word is, 0 in the padding.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout.
    """
    keys = split_key(train_key, 3)
    embedded = self.embed(tokens, self.embed.ids(pos, ids_key), segments)
    x = dropout(pool.zero_padding(embedded.x, embedded.real), self.dropout_rate, keys[0])
    encoded = self.encoder(embedded._replace(x=x), train_key=keys[1])
    features = self.encoder.after_pooling(pool.pool(self.pooling, encoded))
    return self.readout(real_parts(dropout(features, self.dropout_rate, keys[2])))


def classifier_keys() -> Keys:
  """The keys of `config.model` that a `Classifier` takes, those of every encoder among them.

  One that the chosen encoder needs, and that the config has not, is reported by the encoder.
  """
  own = keys_of(Classifier, without=('vocab', 'labels', 'scheme', 'vectors', 'rngs', 'options'))
  options = {name: key._replace(required=False) for name, key in encoders.option_keys().items()}
  return Keys({**options, **own.known})
