"""Texts to labels: words, their positions, an encoder, and a real softmax layer.

Where the scheme makes complex embeddings, every layer is complex, as in Wang et al. 2020,
https://arxiv.org/abs/1912.12333; real and imaginary parts of the features, side by side, meet in
the last layer.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.experiment.models.cnn import CNN
from posjax.experiment.models.fasttext import FastText
from posjax.experiment.models.fields import COMPLEX, REAL, dropped, is_complex, real_parts
from posjax.experiment.models.pooling import silence
from posjax.experiment.models.rnn import Recurrent
from posjax.experiment.models.transformer_encoder import TransformerEncoder
from posjax.nnx import Parameters
from posjax.scheme import Dims, Ids, PRNGKey, Scheme, places

ENCODERS = ('fasttext', 'rnn', 'lstm', 'gru', 'cnn', 'transformer')


class Classifier(nnx.Module):
  """Words to logits over labels.

  Args:
    vocab: V, the number of words.
    labels: C.
    scheme: one scheme; for a Transformer, perhaps a pattern that repeats over the layers. The
      other encoders know positions by place 0 and 1 alone.
    encoder: one of `ENCODERS`.
    width: M, of the embeddings.
    hidden_width: of FastText's dense layer, a recurrent state, the filters of each kernel size, or
      a Transformer's feed-forward part.
    num_layers: of a Transformer, or of recurrent cells.
    num_heads: of a Transformer.
    kernel_sizes: of a CNN, in words.
    bidirectional: whether recurrent cells read from the end, too.
    pooling: what is read of a Transformer's or of recurrent outputs: 'mean', 'max' or 'last'.
    pre_norm: of a Transformer: norm before each part, and at the end, instead of after each.
    activation: a name in jax.nn: of FastText, a CNN, or a Transformer's feed-forward part.
    dropout_rate: of embeddings and features, and within a Transformer.
    vectors: [V, M], initial embeddings; drawn from N(0, 1/M) if None. As in a Transformer, they are
      then multiplied by sqrt(M).
    rngs: a stream for `params`.

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
    encoder: str,
    width: int,
    hidden_width: int,
    num_layers: int,
    num_heads: int,
    kernel_sizes: Sequence[int],
    bidirectional: bool,
    pooling: str,
    pre_norm: bool,
    activation: str,
    dropout_rate: float,
    vectors: np.ndarray | None = None,
    rngs: nnx.Rngs,
  ):
    pattern = (scheme,) if isinstance(scheme, Scheme) else tuple(scheme)
    _check(encoder, pattern, bidirectional)
    attends = encoder == 'transformer'
    if attends and width % num_heads:
      raise ValueError(f'num_heads must divide the width {width}, but got {num_heads}.')
    heads = num_heads if attends else 1
    dims = Dims(width, heads, width // heads, heads, vocab)
    field = COMPLEX if any(map(is_complex, pattern)) else REAL
    # Equal schemes share their model parameters, and embed once.
    self.schemes = tuple(dict.fromkeys(pattern))
    self.which = tuple(self.schemes.index(each) for each in pattern)
    self.shared = nnx.List([Parameters(s, s.init_model(rngs.params(), dims)) for s in self.schemes])
    init = nnx.initializers.normal(width**-0.5)
    self.embedding = nnx.Embed(vocab, width, embedding_init=init, rngs=rngs)
    if vectors is not None:
      self.embedding.embedding[...] = jnp.asarray(vectors)
    self.dropout_rate = dropout_rate
    if encoder == 'fasttext':
      self.encoder = FastText(field, width, hidden_width, activation=activation, rngs=rngs)
    elif encoder == 'cnn':
      self.encoder = CNN(field, width, hidden_width, kernel_sizes, activation=activation, rngs=rngs)
    elif attends:
      self.encoder = TransformerEncoder(
        field,
        pattern,
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        ff_width=hidden_width,
        pre_norm=pre_norm,
        activation=activation,
        dropout_rate=dropout_rate,
        pooling=pooling,
        rngs=rngs,
      )
    else:
      self.encoder = Recurrent(
        field,
        encoder,
        width,
        hidden_width,
        num_layers=num_layers,
        bidirectional=bidirectional,
        pooling=pooling,
        rngs=rngs,
      )
    self.readout = nnx.Linear(field.parts * self.encoder.features, labels, rngs=rngs)

  def __call__(
    self,
    tokens: Int[Array, 'B T'],
    pos: Ids,
    *,
    segments: Int[Array, 'B T'],
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B C']:
    """Logits of the labels. What stands in the padding makes no difference.

    Args:
      tokens: numbers of words, below V, each text at the left of its row.
      pos: ids before place 0, [B, T].
      segments: 1 where a word is, 0 in the padding.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout.
    """
    keys = (None,) * 3 if train_key is None else jax.random.split(train_key, 3)
    real = segments != 0
    ids = [scheme.ids(pos, ids_key) for scheme in self.schemes]
    shared = [parameters() for parameters in self.shared]
    x = self.embedding(tokens) * self.embedding.features**0.5
    for scheme, params, one in zip(self.schemes, shared, ids, strict=True):
      x = scheme.embed(params, x, tokens, one)  # place 1
    x = dropped(silence(x, real), self.dropout_rate, keys[0])
    if isinstance(self.encoder, TransformerEncoder):
      features = self.encoder(
        x,
        real,
        ids=[ids[i] for i in self.which],
        segments=segments,
        model_params=[shared[i] for i in self.which],
        train_key=keys[1],
      )
    else:
      features = self.encoder(x, real)
    return self.readout(real_parts(dropped(features, self.dropout_rate, keys[2])))


def _check(encoder: str, pattern: Sequence[Scheme], bidirectional: bool) -> None:
  if encoder not in ENCODERS:
    raise ValueError(f'encoder must be one of {", ".join(ENCODERS)}, but got {encoder!r}.')
  if bidirectional and encoder not in ('rnn', 'lstm', 'gru'):
    raise ValueError(f'bidirectional is for recurrent encoders, but the encoder is {encoder!r}.')
  if encoder == 'transformer':
    return
  if len(pattern) > 1:
    raise ValueError(
      f'The encoder {encoder!r} takes one scheme, but got {len(pattern)} of them: patterns are for '
      'the layers of a Transformer.'
    )
  for part in pattern[0].parts or pattern:
    used = places(part)
    if used and not {'ids', 'embed'} & set(used):
      raise ValueError(
        f'The encoder {encoder!r} has no attention, and would lose what the scheme does in '
        f'{", ".join(used)}; it needs one that acts on embeddings, or none.'
      )
