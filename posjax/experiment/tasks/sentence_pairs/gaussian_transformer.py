"""The Gaussian Transformer: two sentences, encoded, read by one another, compared, and labelled.

Reference: Guo, Zhang, Liu 2019, https://doi.org/10.1609/aaai.v33i01.33016489. There is no public
code of the authors. Its blocks:

- embedding: x = [w : c] W_e + p, with the vector w of the word, the largest c over the vectors of
  its character n-grams, and sinusoids p. In the paper w (pre-trained) and c (random) are not
  trained; here a config says whether they are. The sinusoids belong to the scheme.
- encoding: M layers of self-attention with the Gaussian prior, and a feed-forward layer.
- interaction: N layers of self-attention with the prior, cross-attention without it to the other
  sentence's encoding, and a feed-forward layer. No word is hidden from any other.
- comparison: v_i = W_2 relu(W_1 [x_i : y_i]), of a word's encoding x_i and its interaction y_i;
  v = sum_i v_i / sqrt(T) over the T words of a sentence; logits = W_4 relu(W_3 [v_p : v_h]).

'sinusoidal+gaussian' is the published model; any other real scheme can take its place, in both
blocks of layers. Where the paper leaves it open, we chose: all weights but those of the last two
layers are the same for premise and hypothesis; the second layer of the comparison has no ReLU.
"""

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from posjax.experiment.tasks.sentence_pairs.model import (
  Sentence,
  WordVectors,
  both,
  halves,
  swapped,
)
from posjax.keys import Count, Layers, Share
from posjax.layers.tokens import Tokens
from posjax.models.blocks import Layer, Memory, blocks
from posjax.models.embedding import Embedded, Positions, make_dims
from posjax.models.layer_sets import Dtype, dropout, layer_set_of, split_key
from posjax.scheme import PRNGKey, Scheme


class GaussianTransformer(nnx.Module):
  """Two sentences to logits over labels, as a `pairs.PairModel`.

  Args:
    vocab: V, numbers of words; 0 is padding.
    ngrams: numbers of character n-grams; 0 if the model reads none.
    labels: C.
    scheme: one scheme, or a pattern that repeats over the layers of both blocks.
    width: M, of the model.
    num_layers: of the encoding block; the pattern must divide it.
    interaction_layers: of the interaction block; the pattern must divide it.
    num_heads: H; must divide the width.
    ff_width: F; None means 4 M.
    pre_norm: norm before each part of a layer, and once at the end of each block, instead of after
      each part.
    activation: a name in jax.nn, of the feed-forward layers.
    dropout_rate: of embeddings, of attention weights, of what each part of a layer adds, and of
      what the dense layers at the end read.
    word_width: of the vectors of words.
    char_width: of the vectors of n-grams.
    train_words: whether the vectors of words are trained.
    train_characters: whether the vectors of n-grams are trained.
    vectors: [V, word_width], initial vectors of words; drawn if None.
    dtype: 'float32' or 'bfloat16', in which both blocks compute; parameters, and all dense layers
      outside of them, are float32.
    implementation: of attention, as in `posjax.attend`.
    rngs: a stream for `params`.

  Raises:
    ValueError: if sizes do not fit, a name is unknown, or the scheme makes complex embeddings.
  """

  def __init__(
    self,
    vocab: int,
    ngrams: int,
    labels: int,
    scheme: Scheme | Sequence[Scheme],
    *,
    width: Count,
    num_layers: Layers,
    interaction_layers: Layers,
    num_heads: Count,
    ff_width: Count | None = None,
    pre_norm: bool = False,
    activation: str = 'relu',
    dropout_rate: Share = 0.0,
    word_width: Count,
    char_width: Count,
    train_words: bool,
    train_characters: bool,
    vectors: np.ndarray | None = None,
    dtype: Dtype = 'float32',
    implementation: str | None = None,
    rngs: nnx.Rngs,
  ):
    schemes = (scheme,) if isinstance(scheme, Scheme) else tuple(scheme)
    dims = make_dims(width, num_heads, None, vocab)
    layer_set = layer_set_of(schemes, dims, dtype, implementation)
    if layer_set.is_complex:
      raise ValueError(
        'The Gaussian Transformer takes schemes of real embeddings, but got one of complex ones.'
      )
    self.words = WordVectors(
      vocab,
      ngrams,
      word_width=word_width,
      char_width=char_width,
      train_words=train_words,
      train_characters=train_characters,
      vectors=vectors,
      rngs=rngs,
    )
    self.project = nnx.Linear(self.words.features, width, use_bias=False, rngs=rngs)
    self.embed = Positions(schemes, dims, rngs=rngs)
    block = functools.partial(
      blocks,
      [Layer(scheme) for scheme in schemes],
      width=width,
      layer_set=layer_set,
      num_heads=num_heads,
      ff_width=ff_width or 4 * width,
      pre_norm=pre_norm,
      activation=activation,
      dropout_rate=dropout_rate,
      rngs=rngs,
    )
    self.encoding = block(num_layers, cross=None, unroll=num_layers)
    self.interaction = block(interaction_layers, cross=Scheme(), unroll=interaction_layers)
    dense = lambda inputs, outputs: nnx.Linear(inputs, outputs, rngs=rngs)
    self.compare = nnx.List([dense(2 * width, width), dense(width, width)])
    self.predict = nnx.List([dense(2 * width, width), dense(width, labels)])
    self.dropout_rate = dropout_rate

  def __call__(
    self,
    premise: Sentence,
    hypothesis: Sentence,
    *,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B C']:
    """Logits of the labels. Padding does not affect the result.

    Args:
      premise: the first sentence of each pair: numbers of its words, [B, T], 0 in the padding, and
        of the character n-grams of each word, [B, T, G].
      hypothesis: the second sentence of each pair, in rows of the same width T.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout; None drops nothing.

    Returns:
      [B, C], in nats: the softmax over the labels gives their probabilities.
    """
    keys = split_key(train_key, 4)
    sentences = both(premise, hypothesis)
    embedded = self._embedded(sentences, ids_key, keys[0])
    encoded, _ = self.encoding(embedded, train_key=keys[1])
    memory = self._other(sentences, encoded)
    read, _ = self.interaction(embedded._replace(x=encoded), memory=memory, train_key=keys[2])
    return self._label(self.compared(sentences, encoded, read, keys[3]), keys[3])

  def alignment(
    self, premise: Sentence, hypothesis: Sentence
  ) -> Mapping[str, Float[Array, 'L B H T S']]:
    """The weights of cross-attention in the interaction block, as `PairModel`."""
    sentences = both(premise, hypothesis)
    embedded = self._embedded(sentences, None, None)
    encoded, _ = self.encoding(embedded)
    memory = self._other(sentences, encoded)
    _, seen = self.interaction(embedded._replace(x=encoded), memory=memory, return_weights=True)
    one, other = jnp.split(seen.cross, 2, axis=1)
    return {'premise': one, 'hypothesis': other}

  def compared(
    self,
    sentences: Sentence,
    encoded: Float[Array, 'B T M'],
    read: Float[Array, 'B T M'],
    key: PRNGKey | None = None,
  ) -> Float[Array, 'B M']:
    """The comparison of each sentence: the scaled sum over its words.

    Args:
      sentences: both sides, as `pairs.both` has them.
      encoded: x, of the encoding block.
      read: y, of the interaction block.
      key: random key of dropout.
    """
    x = dropout(jnp.concatenate([encoded, read], axis=-1), self.dropout_rate, key)
    first, second = self.compare
    real = sentences.segments != 0
    words = jnp.where(real[..., None], second(jax.nn.relu(first(x))), 0)
    length = jnp.maximum(real.sum(1, keepdims=True), 1)
    return words.sum(1) / jnp.sqrt(length.astype(words.dtype))

  def _embedded(self, sentences: Sentence, ids_key, key) -> Embedded:
    x = self.project(self.words(sentences))
    ids = self.embed.ids(sentences.pos, ids_key)
    embedded = self.embed.add(x, sentences.tokens, ids, sentences.segments)
    return embedded._replace(x=dropout(embedded.x, self.dropout_rate, key))

  def _other(self, sentences: Sentence, encoded: Float[Array, 'B T M']) -> Memory:
    """For each sentence, the encoding of the other one of its pair."""
    other = [swapped(each) for each in (encoded, sentences.pos, sentences.segments)]
    return Memory(Tokens(*other), sentences.pos)

  def _label(self, compared: Float[Array, 'both M'], key) -> Float[Array, 'B C']:
    x = jnp.concatenate(halves(compared), axis=-1)
    x = dropout(x, self.dropout_rate, None if key is None else jax.random.fold_in(key, 1))
    first, second = self.predict
    return second(jax.nn.relu(first(x)))
