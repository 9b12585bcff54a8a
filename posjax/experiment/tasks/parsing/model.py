"""Words to scores of spans: vectors of words, an encoder, and what is between fenceposts.

The model of Kitaev and Klein 2018 (https://arxiv.org/abs/1805.01052) with any scheme, or recurrent
cells, in the place of its encoder. `models.chart` finds the best tree of the scores.

A word's vector is the sum of a vector of the word, one of its tag, and one of its letters, each
with a dropout that all words of a sentence share. A first and a last token are put around the
words, positions are added, and a layer norm comes before the encoder. Between two words, and at
both ends, is a fencepost: half of what the encoder says of the token before it, and the other half
of what it says of the token behind it. The scores of a span come from the difference of its two
fenceposts.

The variants of the paper are schemes of the library. Words and positions are added by
`learned(stddev=1.0)`, side by side with `concatenated`, and attention is by position alone with
`learned(stddev=1.0)+position_only`; the factored model is `concatenated` with the encoder
'partitioned'. `position_only|position_only|learned(stddev=1.0)|none` attends by position alone in
the first two of four layers. Differences from the authors' code of 2018: inputs have unit variance,
vectors times the root of their width, as in all models here; attention divides by the root of the
heads' width, as in their code of 2020, where they have the root of the model's width; norms have
the usual deviation and an epsilon of 1e-6; and the tables of words and positions are two tables
where attention is by position alone, where they have one.

B batch, W words, T = W + 2 tokens, L letters of a word, M model width, F features of a token, C
labels.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.keys import Count, Keys, Share, keys_of
from posjax.models import axes, encoders, pooling
from posjax.models.characters import Characters, character_encoder
from posjax.models.embedding import Embedded, Embedding, Positions, hide_words, make_dims
from posjax.models.layer_sets import Dtype, dropout, layer_set_of, real_parts, split_key
from posjax.models.orthogonal import head_dim
from posjax.models.sentences import Sentences
from posjax.scheme import PRNGKey, Scheme

Encoders = Literal['partitioned', 'transformer', 'rnn', 'lstm', 'gru', 'none']


class Sizes(NamedTuple):
  """The sizes of the vocabularies that a model reads and says.

  Attributes:
    words: how many words there are, with padding and the unknown word.
    labels: C, how many labels there are, with the one of no constituent.
    characters: how many characters; 0 where the model reads none.
    tags: how many tags; 0 where the model reads none.
  """

  words: int
  labels: int
  characters: int = 0
  tags: int = 0


class Parser(nnx.Module):
  """Sentences to scores of their spans.

  Args:
    sizes: of the vocabularies.
    scheme: one scheme; for an encoder with attention, perhaps a pattern that repeats over the
      layers.
    encoder: 'partitioned' or 'transformer'; 'rnn', 'lstm' or 'gru', in both directions; or 'none',
      which scores spans by the words at their ends alone.
    width: M, even.
    num_heads: of an encoder with attention.
    characters: how the letters of a word are read: 'transformer', 'cnn' or 'lstm'; None does not.
    character_width: numbers of a letter's vector, and of what a word has from its letters.
    character_heads: of a Transformer over letters.
    character_hidden: of its feed-forward layer.
    character_scheme: its scheme, as `posjax.get` reads it; None knows no positions.
    label_width: of the hidden layer that scores spans.
    dropout_rate: within an encoder with attention: of its weights, and of features, which are the
      same in all words of a sentence.
    word_dropout: the share of words that training hides as unknown.
    vector_dropout: of the features of words' and of tags' vectors, the same in all words of a
      sentence.
    letter_dropout: the same of the vectors that words have from their letters.
    character_dropout: of the vectors of letters.
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
    scheme: Scheme | Sequence[Scheme],
    *,
    encoder: Encoders,
    width: Count,
    num_heads: Count = 1,
    characters: Characters | None = None,
    character_width: Count = 64,
    character_heads: Count = 4,
    character_hidden: Count = 64,
    character_scheme: str | None = None,
    label_width: Count = 250,
    dropout_rate: Share = 0.0,
    word_dropout: Share = 0.0,
    vector_dropout: Share = 0.0,
    letter_dropout: Share = 0.0,
    character_dropout: Share = 0.0,
    dtype: Dtype = 'float32',
    implementation: str | None = None,
    rngs: nnx.Rngs,
    **options: Any,
  ):
    pattern = (scheme,) if isinstance(scheme, Scheme) else tuple(scheme)
    heads = num_heads if encoder != 'none' and encoders.attends(encoder) else 1
    dims = make_dims(width, heads, None, sizes.words + 2)
    dims = dims._replace(head_dim=head_dim(options.get('query_key', 'free'), width, heads))
    layer_set = layer_set_of(pattern, dims, dtype, implementation)
    table = lambda rows: Embedding((Scheme(),), make_dims(width, 1, None, rows), rngs=rngs)
    # The first and the last token are words, and tags, with numbers behind the vocabulary.
    self.sizes = sizes
    self.words = table(sizes.words + 2)
    self.tags = table(sizes.tags + 2) if sizes.tags else None
    self.characters = character_encoder(
      characters,
      sizes.characters,
      character_scheme,
      width=character_width,
      num_heads=character_heads,
      hidden_width=character_hidden,
      output_projection=True,
      dropout_rate=dropout_rate,
      vector_dropout=character_dropout,
      dtype=dtype,
      implementation=implementation,
      rngs=rngs,
    )
    self.spelled = None if characters is None else nnx.Linear(character_width, width, rngs=rngs)
    self.embed = Positions(pattern, dims, rngs=rngs)
    self.norm = layer_set_of(pattern, dims).norm('LayerNorm')(width, rngs=rngs)  # float32
    given = {**options, 'num_heads': num_heads, 'dropout_rate': dropout_rate}
    self.encoder = _encoder(encoder, pattern, width, given, layer_set=layer_set, rngs=rngs)
    features = width if self.encoder is None else self.encoder.features
    self.spans = Spans(layer_set.parts * features, label_width, sizes.labels, rngs=rngs)
    self.word_dropout, self.vector_dropout = word_dropout, vector_dropout
    self.letter_dropout = letter_dropout

  def __call__(
    self,
    sentences: Sentences,
    *,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B W W C']:
    """Scores of labels for each span, by its first and its last word; label 0 has the score 0.

    Padding does not affect the spans of words.

    Args:
      sentences: with letters and tags where the model reads them.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout.
    """
    return self.spans(self.annotate(sentences, ids_key=ids_key, train_key=train_key))

  def annotate(
    self,
    sentences: Sentences,
    *,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B T F']:
    """Features of each token, the first and the last one around the words among them."""
    keys = split_key(train_key, 2)
    embedded = self._embed(sentences, ids_key, keys[0])
    if self.encoder is None:
      return real_parts(embedded.x)
    return real_parts(self.encoder(embedded, train_key=keys[1]).x)

  def _embed(self, sentences: Sentences, ids_key, train_key) -> Embedded:
    """The input of the encoder: sums of vectors, with positions, normed."""
    keys = split_key(train_key, 4)
    lengths, words = sentences.lengths, sentences.words
    words = hide_words(words, self.word_dropout, keys[0])
    words = between_ends(words, lengths, self.sizes.words)
    x = self._look_up(self.words, words, keys[1])
    if self.tags is not None:
      tags: Any = sentences.tags
      x += self._look_up(self.tags, between_ends(tags, lengths, self.sizes.tags), keys[2])
    if self.characters is not None:
      x += self._spell(sentences, keys[3])
    segments = between_ends(sentences.segments, lengths, 1, 1)
    real = segments != 0
    pos = jnp.where(real, jnp.arange(words.shape[1], dtype=jnp.int32)[None], 0)
    x = pooling.zero_padding(x, real)
    embedded = self.embed.add(x, words, self.embed.ids(pos, ids_key), segments)
    return embedded._replace(x=self.norm(embedded.x))

  def _look_up(self, embed: Embedding, tokens: Any, train_key) -> Float[Array, 'B T M']:
    return dropout(embed(tokens, embed.ids(tokens)).x, self.vector_dropout, train_key, shared=True)

  def _spell(self, sentences: Sentences, train_key) -> Float[Array, 'B T M']:
    """Vectors of words by their letters; the first and the last token have none."""
    keys = split_key(train_key, 2)
    encode: Any = self.characters
    project: Any = self.spelled
    x = project(encode(sentences.characters, keys[0]))
    real = (sentences.segments != 0)[..., None]
    x = dropout(jnp.where(real, x, 0), self.letter_dropout, keys[1], shared=True)
    return jnp.pad(x, ((0, 0), (1, 1), (0, 0)))


def _encoder(
  kind: Encoders, pattern: tuple[Scheme, ...], width: int, options: dict[str, Any], **made: Any
) -> Any:
  """The layers between the vectors of tokens and the fenceposts; None for the encoder 'none'."""
  if kind == 'none':
    encoders.check_without_attention("The encoder 'none'", pattern, made['layer_set'])
    return None
  options = {**options, 'shared_dropout': True}
  if not encoders.attends(kind):
    options['bidirectional'] = True
  return encoders.make(kind, pattern, width, options, **made)


class Spans(nnx.Module):
  """Features of tokens to scores of the spans between fenceposts.

  Args:
    features: F, of a token, even.
    width: of the hidden layer.
    labels: C, with the one of no constituent, whose score is 0.
    rngs: a stream for `params`.

  Raises:
    ValueError: if the features have no halves, or there is no label but that of no constituent.
  """

  def __init__(self, features: int, width: int, labels: int, *, rngs: nnx.Rngs):
    if features % 2:
      raise ValueError(
        f'A fencepost takes half of the features, but got an odd {features} of them.'
      )
    if labels < 2:
      raise ValueError(f'A parser needs a label besides that of no constituent, but got {labels}.')
    self.hidden = nnx.Linear(features, width, rngs=rngs)
    self.norm = nnx.LayerNorm(width, rngs=rngs)
    self.readout = axes.readout(width, labels - 1, rngs=rngs)

  def __call__(self, tokens: Float[Array, 'B T F']) -> Float[Array, 'B T-2 T-2 C']:
    """Scores by the first and the last word of a span; where the last comes first, 0."""
    # A product with a difference is the difference of products: [W + 1] of them, and not [W, W].
    posts = fenceposts(tokens) @ self.hidden.kernel[...]
    words = posts.shape[1] - 1
    first, last = jnp.triu_indices(words)
    bias: Any = self.hidden.bias
    hidden = posts[:, last + 1] - posts[:, first] + bias[...][None, None]
    scores = self.readout(jax.nn.relu(self.norm(hidden)))
    whole = jnp.zeros((len(tokens), words, words, 1 + scores.shape[-1]), scores.dtype)
    return whole.at[:, first, last, 1:].set(scores)


def fenceposts(tokens: Float[Array, 'B T F']) -> Float[Array, 'B T-1 F']:
  """Features between the tokens: the even ones of one token, and the odd ones of the next.

  Example:
    >>> fenceposts(jnp.arange(6.0).reshape(1, 3, 2))
    Array([[[0., 3.],
            [2., 5.]]], dtype=float32)
  """
  return jnp.concatenate([tokens[:, :-1, 0::2], tokens[:, 1:, 1::2]], axis=-1)


def between_ends(
  tokens: Int[Array, 'B W'], lengths: Int[Array, ' B'], first: int, last: int | None = None
) -> Int[Array, 'B W+2']:
  """Tokens with one before the first and one behind the last of them; padding behind it is 0.

  Args:
    tokens: each sentence at the left of its row.
    lengths: of the sentences.
    first: the token that comes first.
    last: the token that comes last; the next number if None.

  Example:
    >>> between_ends(jnp.array([[5, 6, 0], [7, 0, 0]]), jnp.array([2, 1]), 8).tolist()
    [[8, 5, 6, 9, 0], [8, 7, 9, 0, 0]]
  """
  last = first + 1 if last is None else last
  place, ends = jnp.arange(tokens.shape[1] + 2)[None], lengths[:, None] + 1
  inner = jnp.where(place < ends, jnp.pad(tokens, ((0, 0), (1, 1))), 0)
  return jnp.where(place == 0, first, jnp.where(place == ends, last, inner))


def parser_keys() -> Keys:
  """The keys of `config.model` that a `Parser` takes, those of every encoder among them."""
  own = keys_of(Parser, without=('sizes', 'scheme', 'rngs', 'options'))
  options = {name: key._replace(required=False) for name, key in encoders.option_keys().items()}
  for fixed in ('bidirectional', 'shared_dropout'):  # a span depends on the words on both sides
    del options[fixed]
  return Keys({**options, **own.known})
