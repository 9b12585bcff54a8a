"""Words to tags: vectors of words and of their letters, an encoder, a conditional random field.

The model of TENER (Yan, Deng, Li, Qiu 2019, https://arxiv.org/abs/1911.04474) with any scheme, or
recurrent cells, in the place of its encoder; the field is `models.crf`. As in the authors' code
(fastNLP/TENER), inputs go through one dense layer, blocks have their norms after each part, dropout
comes before the last dense layer, and only decoding knows which tags may follow each other, unless
`constrained` says otherwise. Differences from it: inputs have unit variance, vectors times the root
of their width, as in all models here; characters are convolved within the word alone, not over its
padding; and the field begins with zeros. There, attention has no output projection, which is
`output_projection=False`.

B batch, W words, L letters of a word, M model width, C tags.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.experiment.tasks.tagging import crf
from posjax.keys import Count, Keys, Share, keys_of
from posjax.models import axes, encoders, pooling
from posjax.models.blocks import Weights
from posjax.models.characters import Characters, character_encoder
from posjax.models.embedding import Embedded, Embedding, Positions, hide_words, make_dims
from posjax.models.encoders.transformer import TransformerEncoder
from posjax.models.layer_sets import Dtype, dropout, layer_set_of, real_parts, split_key
from posjax.models.sentences import Sentences
from posjax.scheme import PRNGKey, Scheme

Encoders = Literal['transformer', 'rnn', 'lstm', 'gru']


class Sizes(NamedTuple):
  """The sizes of the vocabularies that a model reads.

  Attributes:
    words: how many words there are, with padding and the unknown word.
    characters: how many characters; 0 where the model reads none.
    bigrams: how many bigrams; 0 where the model reads none.
  """

  words: int
  characters: int = 0
  bigrams: int = 0


class Tagger(nnx.Module):
  """Sentences to emissions of tags, and a conditional random field over them.

  Args:
    sizes: of the vocabularies.
    tags: the names of the tags, as 'B-person'; C.
    scheme: one scheme; for a Transformer, perhaps a pattern that repeats over the layers.
    encoder: 'transformer'; or 'rnn', 'lstm' or 'gru', in both directions.
    width: M, of what the encoder reads.
    num_heads: of a Transformer.
    word_width: numbers of a word's vector.
    bigram_width: numbers of a bigram's vector; None reads no bigrams.
    characters: how the letters of a word are read: 'transformer', 'cnn' or 'lstm'; None does not.
    character_width: numbers of a letter's vector, and of what a word has from its letters.
    character_heads: of a Transformer over letters.
    character_hidden: of its feed-forward layer.
    character_scheme: its scheme, as `posjax.get` reads it; None knows no positions.
    output_projection: whether attention projects its heads, and does not only join them.
    dropout_rate: within a Transformer.
    word_dropout: the share of words, and of bigrams, that training hides as unknown.
    vector_dropout: of the vectors of words and bigrams.
    character_dropout: of the vectors of letters.
    readout_dropout: of the encoder's features.
    constrained: whether the field knows in training, too, which tags may follow each other.
    vectors: [V, word_width], initial vectors of words; drawn from N(0, 1/word_width) if None.
    bigram_vectors: the same of bigrams.
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
    sizes: Sizes,
    tags: Sequence[str],
    scheme: Scheme | Sequence[Scheme],
    *,
    encoder: Encoders,
    width: Count,
    num_heads: Count = 1,
    word_width: Count,
    bigram_width: Count | None = None,
    characters: Characters | None = None,
    character_width: Count = 30,
    character_heads: Count = 3,
    character_hidden: Count = 60,
    character_scheme: str | None = None,
    output_projection: bool = True,
    dropout_rate: Share = 0.0,
    word_dropout: Share = 0.0,
    vector_dropout: Share = 0.0,
    character_dropout: Share = 0.0,
    readout_dropout: Share = 0.0,
    constrained: bool = False,
    vectors: np.ndarray | None = None,
    bigram_vectors: np.ndarray | None = None,
    dtype: Dtype = 'float32',
    implementation: str | None = None,
    rngs: nnx.Rngs,
    **options: Any,
  ):
    pattern = (scheme,) if isinstance(scheme, Scheme) else tuple(scheme)
    dims = encoders.dims_of(
      encoder, width, num_heads, sizes.words, options.get('query_key', 'free')
    )
    layer_set = layer_set_of(pattern, dims, dtype, implementation)
    self.words = _table(sizes.words, word_width, vectors, rngs)
    self.bigrams = (
      None if bigram_width is None else _table(sizes.bigrams, bigram_width, bigram_vectors, rngs)
    )
    self.characters = character_encoder(
      characters,
      sizes.characters,
      character_scheme,
      width=character_width,
      num_heads=character_heads,
      hidden_width=character_hidden,
      output_projection=output_projection,
      dropout_rate=dropout_rate,
      vector_dropout=character_dropout,
      dtype=dtype,
      implementation=implementation,
      rngs=rngs,
    )
    read = word_width + (bigram_width or 0) + (character_width if characters else 0)
    self.dense = nnx.Linear(read, width, rngs=rngs)
    self.embed = Positions(pattern, dims, rngs=rngs)
    given = {**options, 'num_heads': num_heads, 'dropout_rate': dropout_rate}
    attends = encoders.attends(encoder)
    given |= {'output_projection': output_projection} if attends else {'bidirectional': True}
    self.encoder = encoders.make(encoder, pattern, width, given, layer_set=layer_set, rngs=rngs)
    self.readout = axes.readout(layer_set.parts * self.encoder.features, len(tags), rngs=rngs)
    self.field = Field(tags, constrained)
    self.word_dropout, self.vector_dropout = word_dropout, vector_dropout
    self.readout_dropout = readout_dropout

  def __call__(
    self,
    sentences: Sentences,
    *,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B W C']:
    """Emissions of the tags. Padding does not affect the result.

    Args:
      sentences: with letters and bigrams where the model reads them.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout.
    """
    keys = split_key(train_key, 3)
    embedded = self._embed(sentences, ids_key, keys[0])
    features = real_parts(self.encoder(embedded, train_key=keys[1]).x)
    return self.readout(dropout(features, self.readout_dropout, keys[2]))

  @property
  def attends(self) -> bool:
    """Whether the encoder has attention weights."""
    return isinstance(self.encoder, TransformerEncoder)

  def weigh(self, sentences: Sentences) -> Weights:
    """The attention weights of a Transformer, [L, B, H, W, W], for pictures; nothing is random.

    Raises:
      ValueError: if the encoder has no attention.
    """
    if not isinstance(self.encoder, TransformerEncoder):
      raise ValueError('Attention weights are those of a Transformer, but the encoder is none.')
    return self.encoder.weigh(self._embed(sentences, None, None))

  def _embed(self, sentences: Sentences, ids_key, train_key) -> Embedded:
    """The input of the encoder: all vectors of a word through one dense layer, with positions."""
    keys = split_key(train_key, 3)
    parts = [self._look_up(self.words, sentences.words, keys[0])]
    if self.bigrams is not None:
      parts.append(self._look_up(self.bigrams, sentences.bigrams, keys[1]))
    if self.characters is not None:
      letters: Any = sentences.characters
      parts.append(self.characters(letters, keys[2]))
    real, words = sentences.segments != 0, sentences.words
    x = pooling.zero_padding(self.dense(jnp.concatenate(parts, axis=-1)), real)
    pos = jnp.where(real, jnp.arange(words.shape[1], dtype=jnp.int32)[None], 0)
    return self.embed.add(x, words, self.embed.ids(pos, ids_key), sentences.segments)

  def _look_up(self, embed: Embedding, tokens: Any, train_key) -> Float[Array, 'B W N']:
    """Vectors, with dropout of whole tokens and of numbers."""
    keys = split_key(train_key)
    tokens = hide_words(tokens, self.word_dropout, keys[0])
    return dropout(embed(tokens, embed.ids(tokens)).x, self.vector_dropout, keys[1])


def _table(rows: int, width: int, vectors: np.ndarray | None, rngs: nnx.Rngs) -> Embedding:
  """Vectors without positions: these are added to what the encoder reads."""
  return Embedding((Scheme(),), make_dims(width, 1, None, rows), vectors=vectors, rngs=rngs)


class Field(nnx.Module):
  """The conditional random field of some tags: what follows what, with which score.

  Args:
    tags: the names, C.
    constrained: whether the loss, too, knows which tags may follow each other.
  """

  def __init__(self, tags: Sequence[str], constrained: bool):
    count = len(tags)
    self.between = nnx.Param(jnp.zeros((count, count)))
    self.start, self.end = nnx.Param(jnp.zeros(count)), nnx.Param(jnp.zeros(count))
    self.tags, self.constrained = tuple(tags), constrained

  def nll(
    self, emissions: Float[Array, 'B W C'], tags: Int[Array, 'B W'], lengths: Int[Array, ' B']
  ) -> Float[Array, ' B']:
    """How unlikely the tags of each sentence are, in nats."""
    transitions = self._transitions(self.constrained)
    return crf.nll(emissions, transitions, tags, lengths)

  def decode(
    self, emissions: Float[Array, 'B W C'], lengths: Int[Array, ' B']
  ) -> tuple[Int[Array, 'B W'], Float[Array, ' B']]:
    """The likeliest tags that may follow each other, -1 in the padding, and their scores."""
    return crf.viterbi(emissions, self._transitions(True), lengths)

  def _transitions(self, constrained: bool) -> crf.Transitions:
    made = crf.Transitions(self.between[...], self.start[...], self.end[...])
    return crf.constrain(made, crf.legal(self.tags)) if constrained else made


def tagger_keys() -> Keys:
  """The keys of `config.model` that a `Tagger` takes, those of every encoder among them."""
  without = ('sizes', 'tags', 'scheme', 'vectors', 'bigram_vectors', 'rngs', 'options')
  own = keys_of(Tagger, without=without)
  options = {name: key._replace(required=False) for name, key in encoders.option_keys().items()}
  del options['bidirectional']  # a tag depends on the words on both sides
  return Keys({**options, **own.known})
