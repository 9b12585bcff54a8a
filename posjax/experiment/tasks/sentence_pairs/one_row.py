"""Both sentences of a pair in one row, with a separator between: any encoder of texts reads them.

As in BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805), each word also gets a trained
vector that says to which sentence it belongs; the row is pooled to one vector.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.experiment.tasks.sentence_pairs.model import Sentence, WordVectors
from posjax.keys import Count, OneOf, Share
from posjax.models import axes, encoders
from posjax.models import pooling as pool
from posjax.models.embedding import Positions, Table
from posjax.models.layer_sets import Dtype, dropout, layer_set_of, real_parts, split_key
from posjax.scheme import PRNGKey, Scheme


class OneRow(nnx.Module):
  """Two sentences to logits over labels, as a `pairs.PairModel`.

  Args:
    vocab: V, numbers of words; 0 is padding. The separator is a word of its own, number V.
    ngrams: numbers of character n-grams; 0 if the model reads none.
    labels: C.
    scheme: one scheme; for a Transformer, perhaps a pattern that repeats over the layers.
    encoder: a file in `encoders`.
    width: M, of the model.
    num_heads: of a Transformer.
    pooling: 'mean', 'max' or 'last', as in a `Classifier`.
    dropout_rate: of embeddings and pooled features, and within a Transformer.
    word_width: of the vectors of words.
    char_width: of the vectors of n-grams.
    train_words: whether the vectors of words are trained.
    train_characters: whether the vectors of n-grams are trained.
    vectors: [V, word_width], initial vectors of words; drawn if None.
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
    ngrams: int,
    labels: int,
    scheme: Scheme | Sequence[Scheme],
    *,
    encoder: Annotated[str, OneOf(encoders.names)],
    width: Count,
    num_heads: Count = 1,
    pooling: pool.Pooling = 'mean',
    dropout_rate: Share = 0.0,
    word_width: Count,
    char_width: Count,
    train_words: bool,
    train_characters: bool,
    vectors: np.ndarray | None = None,
    dtype: Dtype = 'float32',
    implementation: str | None = None,
    rngs: nnx.Rngs,
    **options: Any,
  ):
    pattern = (scheme,) if isinstance(scheme, Scheme) else tuple(scheme)
    dims = encoders.dims_of(encoder, width, num_heads, vocab + 1, options.get('query_key', 'free'))
    layer_set = layer_set_of(pattern, dims, dtype, implementation)
    self.separator = vocab
    if vectors is not None:  # the separator, too, begins as a vector that no word has
      own = np.random.default_rng(vocab).normal(size=(1, word_width)) * word_width**-0.5
      vectors = np.concatenate([vectors, own.astype(vectors.dtype)])
    self.words = WordVectors(
      vocab + 1,
      ngrams,
      word_width=word_width,
      char_width=char_width,
      train_words=train_words,
      train_characters=train_characters,
      vectors=vectors,
      rngs=rngs,
    )
    self.project = nnx.Linear(self.words.features, width, use_bias=False, rngs=rngs)
    self.sides = Table(2, width, rngs=rngs)
    self.embed = Positions(pattern, dims, rngs=rngs)
    given = {**options, 'num_heads': num_heads, 'dropout_rate': dropout_rate}
    self.encoder = encoders.make(encoder, pattern, width, given, layer_set=layer_set, rngs=rngs)
    self.pooling = self.encoder.pooling or pool.check(pooling)
    self.readout = axes.readout(layer_set.parts * self.encoder.pooled_features, labels, rngs=rngs)
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
      hypothesis: the second sentence of each pair, in rows of any width.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout; None drops nothing.

    Returns:
      [B, C], in nats: the softmax over the labels gives their probabilities.
    """
    keys = split_key(train_key, 3)
    row, second = joined(premise, hypothesis, self.separator)
    x = self.project(self.words(row)) + self.sides.scaled(second)
    embedded = self.embed.add(x, row.tokens, self.embed.ids(row.pos, ids_key), row.segments)
    x = dropout(pool.zero_padding(embedded.x, embedded.real), self.dropout_rate, keys[0])
    encoded = self.encoder(embedded._replace(x=x), train_key=keys[1])
    features = self.encoder.after_pooling(pool.pool(self.pooling, encoded))
    return self.readout(real_parts(dropout(features, self.dropout_rate, keys[2])))

  def alignment(
    self, premise: Sentence, hypothesis: Sentence
  ) -> Mapping[str, Float[Array, 'L B H T S']]:
    """Nothing: in one row no sentence reads the other as a whole."""
    return {}


def joined(
  premise: Sentence, hypothesis: Sentence, separator: int
) -> tuple[Sentence, Int[Array, 'B R']]:
  """The premise, a separator and the hypothesis in a row, without padding between them.

  Args:
    premise: rows of T words.
    hypothesis: rows of S words.
    separator: its number, as a word; it has no n-grams.

  Returns:
    Rows of R = T + 1 + S words, padded at the right; and 1 for each word of the hypothesis, else 0.

  Example:
    >>> one, two = (
    ...   Sentence(jnp.array([ids]), jnp.zeros((1, 2, 0), int)) for ids in ([5, 0], [7, 8])
    ... )
    >>> row, second = joined(one, two, 9)
    >>> row.tokens.tolist(), second.tolist()
    ([[5, 9, 7, 8, 0]], [[0, 0, 1, 1, 0]])
  """
  width = premise.tokens.shape[1]
  end, length = (side.segments.sum(1, keepdims=True) for side in (premise, hypothesis))
  place = jnp.arange(width + 1 + hypothesis.tokens.shape[1])[None]
  second = (place > end) & (place <= end + length)
  # Both sides and the separator side by side, from which each place takes its word.
  source = jnp.where(place < end, place, jnp.where(place == end, width, place - end + width))
  there = place <= end + length
  source = jnp.where(there, source, 0)
  mark = jnp.full((len(end), 1), separator, premise.tokens.dtype)
  tokens = jnp.concatenate([premise.tokens, mark, hypothesis.tokens], axis=1)
  nothing = jnp.zeros((len(end), 1, premise.ngrams.shape[2]), premise.ngrams.dtype)
  ngrams = jnp.concatenate([premise.ngrams, nothing, hypothesis.ngrams], axis=1)
  row = Sentence(
    jnp.where(there, jnp.take_along_axis(tokens, source, axis=1), 0),
    jnp.where(there[..., None], jnp.take_along_axis(ngrams, source[..., None], axis=1), 0),
  )
  return row, second.astype(jnp.int32)
