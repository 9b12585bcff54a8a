"""From the letters of a word to its vector.

B batch, W words, L letters of a word, M width of a vector.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.expression import get
from posjax.models import encoders, pooling
from posjax.models.embedding import Embedding, make_dims
from posjax.models.layer_sets import Dtype, dropout, layer_set_of, real_parts
from posjax.scheme import PRNGKey, Scheme

Characters = Literal['transformer', 'cnn', 'lstm']


class CharacterEncoder(nnx.Module):
  """A vector for each word, of its letters: an encoder, the largest of each feature, a dense layer.

  Args:
    kind: 'transformer', one block with the norms after each part; 'cnn', as many filters of 3
      letters as a letter has numbers; or 'lstm', with as many states in each direction.
    vocab: how many letters there are.
    scheme: of the Transformer.
    width: numbers of a letter, and of the vector.
    num_heads: of the Transformer.
    hidden_width: of its feed-forward layer.
    output_projection: of its attention.
    dropout_rate: within the Transformer.
    vector_dropout: of the vectors of letters.
    dtype: 'float32' or 'bfloat16', in which a Transformer computes.
    implementation: of its attention, as in `posjax.attend`.
    rngs: a stream for `params`.
  """

  def __init__(
    self,
    kind: Characters,
    vocab: int,
    scheme: Scheme,
    *,
    width: int,
    num_heads: int,
    hidden_width: int,
    output_projection: bool,
    dropout_rate: float,
    vector_dropout: float,
    dtype: Dtype = 'float32',
    implementation: str | None = None,
    rngs: nnx.Rngs,
  ):
    attends = encoders.attends(kind)
    pattern = (scheme if attends else Scheme(),)
    dims = make_dims(width, num_heads if attends else 1, None, vocab)
    computing: dict[str, Any] = {'dtype': dtype, 'implementation': implementation}
    layer_set = layer_set_of(pattern, dims, **(computing if attends else {}))
    self.embed = Embedding(pattern, dims, rngs=rngs)
    options: dict[str, Any] = {
      'transformer': {
        'num_layers': 1,
        'num_heads': num_heads,
        'hidden_width': hidden_width,
        'pre_norm': False,
        'activation': 'relu',
        'dropout_rate': dropout_rate,
        'output_projection': output_projection,
      },
      'cnn': {'hidden_width': width, 'kernel_sizes': (3,), 'activation': 'relu'},
      'lstm': {'hidden_width': width, 'num_layers': 1, 'bidirectional': True},
    }[kind]
    self.encoder = encoders.make(kind, pattern, width, options, layer_set=layer_set, rngs=rngs)
    self.dense = nnx.Linear(layer_set.parts * self.encoder.features, width, rngs=rngs)
    self.vector_dropout = vector_dropout

  def __call__(
    self, characters: Int[Array, 'B W L'], train_key: PRNGKey | None = None
  ) -> Float[Array, 'B W M']:
    """The vectors; of a word without letters, as the padding is, one that depends on nothing."""
    rows = characters.reshape(-1, characters.shape[-1])
    segments = (rows != 0).astype(jnp.int32)
    pos = jnp.where(segments != 0, jnp.arange(rows.shape[1], dtype=jnp.int32)[None], 0)
    keys = (None, None) if train_key is None else jax.random.split(train_key)
    embedded = self.embed(rows, self.embed.ids(pos), segments)
    embedded = embedded._replace(x=dropout(embedded.x, self.vector_dropout, keys[0]))
    pooled = pooling.pool('max', self.encoder(embedded, train_key=keys[1]))
    return self.dense(real_parts(pooled)).reshape(*characters.shape[:2], -1)


def character_encoder(
  kind: Characters | None, vocab: int, scheme: str | None, **options: Any
) -> CharacterEncoder | None:
  """The encoder of letters that a model's keys describe.

  Args:
    kind: of the encoder; None where the model reads no letters.
    vocab: how many letters there are.
    scheme: of the Transformer, as `posjax.get` reads it; None knows no positions.
    options: the other arguments of `CharacterEncoder`.
  """
  if kind is None:
    return None
  made = Scheme() if scheme is None else get(scheme)
  return CharacterEncoder(kind, vocab, made, **options)
