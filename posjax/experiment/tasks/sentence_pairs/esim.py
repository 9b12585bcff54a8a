"""ESIM, the enhanced sequential inference model: recurrent, with a soft alignment of two sentences.

Reference: Chen et al. 2017, https://arxiv.org/abs/1609.06038, section 3, the sequential model:

- encoding: a = BiLSTM(words of the premise), b = BiLSTM(words of the hypothesis), eqs. 1 and 2.
- alignment: e_ij = a_i . b_j; a~_i = sum_j softmax_j(e_ij) b_j, and b~_j likewise, eqs. 11 to 13.
- enhancement: m = [a : a~ : a - a~ : a * a~], eqs. 14 and 15.
- composition: another BiLSTM over relu(W m), eqs. 16 and 17.
- pooling: the mean and the maximum over the words of each sentence, eqs. 18 to 20; a hidden layer
  with tanh, and the logits.

Both sentences share all weights but those of the last two layers. Dropout is where the paper has
it: on the vectors of words, on what the composition reads, and on what the dense layers at the end
read. Positions enter with the words alone: a scheme acts on places 0 and 1, and the paper has none.
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
from posjax.keys import Count, Share
from posjax.models import axes, encoders
from posjax.models import pooling as pool
from posjax.models.embedding import Embedded, Positions, make_dims
from posjax.models.layer_sets import REAL, dropout, layer_set_of, split_key
from posjax.models.recurrent_encoder import RecurrentEncoder
from posjax.scheme import PRNGKey, Scheme


class ESIM(nnx.Module):
  """Two sentences to logits over labels, as a `pairs.PairModel`.

  Args:
    vocab: V, numbers of words; 0 is padding.
    ngrams: numbers of character n-grams; 0 if the model reads none, as in the paper.
    labels: C.
    scheme: one scheme, which acts on embeddings, or none.
    hidden_width: h, of the LSTMs in each direction and of the dense layers; 300 in the paper.
    dropout_rate: 0.5 in the paper.
    word_width: of the vectors of words; 300 in the paper.
    char_width: of the vectors of n-grams.
    train_words: whether the vectors of words are trained, as in the paper.
    train_characters: whether the vectors of n-grams are trained.
    vectors: [V, word_width], initial vectors of words; drawn if None.
    forget_bias: the initial bias of the LSTMs' forget gates; 1 remembers at first.
    rngs: a stream for `params`.

  Raises:
    ValueError: if the scheme acts in attention, or makes complex embeddings.
  """

  def __init__(
    self,
    vocab: int,
    ngrams: int,
    labels: int,
    scheme: Scheme | Sequence[Scheme],
    *,
    hidden_width: Count,
    dropout_rate: Share = 0.0,
    word_width: Count,
    char_width: Count,
    train_words: bool,
    train_characters: bool,
    vectors: np.ndarray | None = None,
    forget_bias: float = 1.0,
    rngs: nnx.Rngs,
  ):
    schemes = (scheme,) if isinstance(scheme, Scheme) else tuple(scheme)
    encoders.check_without_attention('The encoder of ESIM', schemes)
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
    dims = make_dims(self.words.features, 1, None, vocab)
    if layer_set_of(schemes, dims) is not REAL:
      raise ValueError('ESIM takes schemes of real embeddings, but got one of complex ones.')
    self.embed = Positions(schemes, dims, rngs=rngs)

    def recurrent(width):
      return RecurrentEncoder(
        functools.partial(REAL.lstm, forget_bias=forget_bias),
        width,
        hidden_width=hidden_width,
        num_layers=1,
        bidirectional=True,
        rngs=rngs,
      )

    self.encode = recurrent(self.words.features)
    self.project = nnx.Linear(8 * hidden_width, hidden_width, rngs=rngs)
    self.compose = recurrent(hidden_width)
    self.hidden = nnx.Linear(8 * hidden_width, hidden_width, rngs=rngs)
    self.readout = axes.readout(hidden_width, labels, rngs=rngs)
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
    encoded, weights = self._aligned(sentences, ids_key, keys[0])
    pooled = self.composed(sentences, encoded, weights, keys[1])
    x = dropout(jnp.concatenate(halves(pooled), axis=-1), self.dropout_rate, keys[2])
    x = dropout(jnp.tanh(self.hidden(x)), self.dropout_rate, keys[3])
    return self.readout(x)

  def alignment(
    self, premise: Sentence, hypothesis: Sentence
  ) -> Mapping[str, Float[Array, 'L B H T S']]:
    """The soft alignment, as `PairModel`: one layer, and one head."""
    _, weights = self._aligned(both(premise, hypothesis), None, None)
    one, other = halves(weights)
    return {'premise': one[None, :, None], 'hypothesis': other[None, :, None]}

  def composed(
    self,
    sentences: Sentence,
    encoded: Float[Array, 'B T N'],
    weights: Float[Array, 'B T S'],
    key: PRNGKey | None = None,
  ) -> Float[Array, 'B P']:
    """The mean and the maximum over the words of each sentence, after its composition.

    Args:
      sentences: both sides, as `pairs.both` has them.
      encoded: a and b.
      weights: with which each word reads those of the other sentence.
      key: random key of dropout.
    """
    real = sentences.segments != 0
    encoded = pool.zero_padding(encoded, real)
    aligned = jnp.einsum('bts,bsn->btn', weights, swapped(encoded))
    enhanced = [encoded, aligned, encoded - aligned, encoded * aligned]
    x = jax.nn.relu(self.project(jnp.concatenate(enhanced, axis=-1)))
    x = dropout(x, self.dropout_rate, key)
    x = self.compose(Embedded(x, segments=sentences.segments)).x
    return jnp.concatenate([pool.mean(x, real), pool.maximum(x, real)], axis=-1)

  def _aligned(self, sentences: Sentence, ids_key, key):
    """a and b, and the weights with which each word reads those of the other sentence."""
    ids = self.embed.ids(sentences.pos, ids_key)
    embedded = self.embed.add(self.words(sentences), sentences.tokens, ids, sentences.segments)
    x = dropout(embedded.x, self.dropout_rate, key)
    encoded = pool.zero_padding(self.encode(embedded._replace(x=x)).x, embedded.real)
    logits = jnp.einsum('btn,bsn->bts', encoded, swapped(encoded))
    return encoded, jax.nn.softmax(logits, where=swapped(embedded.real)[:, None])
