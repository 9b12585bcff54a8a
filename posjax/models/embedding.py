"""The input of every model: token embeddings, with the positions that enter at place 0 and 1.

A model may use several schemes, in a pattern that repeats over its layers. The tokens are embedded
once, so every distinct scheme of the pattern adds its positions to the same embeddings, in order.

Token embeddings have variance 1/M and are multiplied by sqrt(M) (Vaswani et al. 2017,
https://arxiv.org/abs/1706.03762, section 3.4), so that they are as large as the sinusoids which may
be added to them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Inexact, Int

from posjax.layers.parameters import named
from posjax.models import axes
from posjax.nnx import Constant, Readable
from posjax.scheme import Dims, Ids, Params, PRNGKey, Scheme

UNKNOWN_ID = 1  # of all words that a vocabulary does not hold; 0 is padding


class Embedded(NamedTuple):
  """Embedded tokens, and all else that a stack of layers needs to know about them.

  Attributes:
    x: the embeddings, after place 1.
    ids: the ids after place 0, one entry per layer of the pattern.
    model_params: the parameters that a scheme shares between its layers, one entry per layer of
      the pattern.
    segments: the document of each token, 0 in the padding; None where every row is one document.
  """

  x: Inexact[Array, 'B T M']
  ids: tuple[Ids, ...] = ()
  model_params: tuple[Params, ...] = ()
  segments: Int[Array, 'B T'] | None = None

  @property
  def real(self) -> Bool[Array, 'B T']:
    """True where there is a token, False in the padding."""
    if self.segments is None:
      return jnp.ones(self.x.shape[:2], bool)
    return self.segments != 0


class Positions(Readable):
  """Places 0 and 1 of the schemes of a model. It holds the parameters that layers share.

  Args:
    schemes: a pattern, one scheme per layer. Equal schemes share their parameters, and embed once.
    dims: sizes of the model.
    rngs: a stream for `params`.
  """

  def __init__(self, schemes: Sequence[Scheme], dims: Dims, *, rngs: nnx.Rngs):
    self.schemes = tuple(dict.fromkeys(schemes))
    self.which = tuple(self.schemes.index(scheme) for scheme in schemes)
    shared = [axes.parameters(s, 'init_model', rngs.params(), dims) for s in self.schemes]
    self.shared = nnx.List(shared)

  def ids(self, pos: Ids, key: PRNGKey | None = None) -> tuple[Ids, ...]:
    """Place 0: the ids of each distinct scheme. Without a key, ids stay as they are."""
    return tuple(scheme.ids(pos, key) for scheme in self.schemes)

  def add(
    self,
    x: Float[Array, 'B T M'],
    tokens: Int[Array, 'B T'],
    ids: Sequence[Ids],
    segments: Int[Array, 'B T'] | None = None,
  ) -> Embedded:
    """Place 1: embeddings of tokens, from wherever they come, with their positions.

    Args:
      x: the embeddings.
      tokens: numbers below V, for schemes that know words.
      ids: as from `ids`, one entry per distinct scheme.
      segments: the document of each token, passed on to the layers; 0 is padding.
    """
    shared = [parameters() for parameters in self.shared]
    for scheme, params, own_ids in zip(self.schemes, shared, ids, strict=True):
      x = scheme.embed(params, x, tokens, own_ids)
    return Embedded(x, self.by_layer(ids), tuple(shared[i] for i in self.which), segments)

  def by_layer(self, ids: Sequence[Ids]) -> tuple[Ids, ...]:
    """From one entry per distinct scheme to one entry per layer of the pattern."""
    return tuple(ids[i] for i in self.which)


class Table(nnx.Embed):
  """A table of vectors; trained, or constant. Rows are drawn from N(0, 1/M), unless given.

  Args:
    rows: V.
    width: M.
    trained: whether it is learned.
    vectors: [V, M], its initial rows.
    names: of the axes along which it is cut, see `models.axes`; by default it is whole.
    param_dtype: of the vectors.
    rngs: a stream for `params`.

  Raises:
    ValueError: if the vectors are not [V, M].
  """

  def __init__(
    self,
    rows: int,
    width: int,
    *,
    trained: bool = True,
    vectors: np.ndarray | None = None,
    names: tuple[axes.Name, axes.Name] = axes.WHOLE,
    param_dtype: Any = jnp.float32,
    rngs: nnx.Rngs,
  ):
    drawn = nnx.initializers.normal(width**-0.5)
    own = axes.named(*names)
    made: dict[str, Any] = {'embedding_init': drawn, 'param_dtype': param_dtype}
    super().__init__(rows, width, embedding_metadata=own, **made, rngs=rngs)
    if vectors is not None:
      if vectors.shape != (rows, width):
        raise ValueError(f'vectors must be [V, M] = {(rows, width)}, but got {vectors.shape}.')
      self.embedding[...] = jnp.asarray(vectors)
    if not trained:
      constant: Any = Constant(self.embedding[...], **own)  # to nnx.Embed, this is always a Param
      self.embedding = constant

  def scaled(self, rows: Int[Array, '*shape']) -> Float[Array, '*shape M']:
    """The vectors in these rows, times the square root of their width."""
    return self(rows) * self.features**0.5


class Embedding(Positions):
  """Token embeddings with positions, from a table.

  Models call it `embed`, not `embedding`: the rule for weight decay looks for 'embedding' in the
  path of a parameter, and means the table of the tokens but not the parameters of a scheme.

  Args:
    schemes: a pattern, one scheme per layer. Equal schemes share their parameters, and embed once.
    dims: sizes of the model; `vocab` is the number of rows of the table.
    vectors: [V, M], initial embeddings; drawn from N(0, 1/M) if None.
    words: the embedding of another side of the model, with equal schemes and sizes, from which this
      one takes all that belongs to a word: the table, and a scheme's parameters for each word, such
      as frequencies. Other parameters of a scheme are of positions, and each side has its own.
    rngs: a stream for `params`.

  Raises:
    ValueError: if the vectors are not [V, M].
  """

  def __init__(
    self,
    schemes: Sequence[Scheme],
    dims: Dims,
    *,
    vectors: np.ndarray | None = None,
    words: 'Embedding | None' = None,
    rngs: nnx.Rngs,
  ):
    super().__init__(schemes, dims, rngs=rngs)
    if words is not None:
      self.table = words.table
      for scheme, own, other in zip(self.schemes, self.shared, words.shared, strict=True):
        own.held = nnx.data(_with_words(own.held, other.held, _per_word(scheme, dims)))
      return
    self.table = Table(dims.vocab, dims.width, vectors=vectors, names=axes.TABLE, rngs=rngs)

  def __call__(
    self,
    tokens: Int[Array, 'B T'],
    ids: Sequence[Ids],
    segments: Int[Array, 'B T'] | None = None,
  ) -> Embedded:
    """Place 1: the tokens' embeddings with their positions.

    Args:
      tokens: numbers below V.
      ids: as from `ids`, one entry per distinct scheme.
      segments: the document of each token, passed on to the layers; 0 is padding.
    """
    return self.add(self.table.scaled(tokens), tokens, ids, segments)


def _per_word(scheme: Scheme, dims: Dims) -> dict[str, Any]:
  """Which of the parameters that layers share have one entry for each word of the vocabulary."""
  make = lambda dims: jax.eval_shape(lambda key: scheme.init_model(key, dims), jax.random.key(0))
  sizes = (named(make(dims._replace(vocab=dims.vocab + more))) for more in (0, 1))
  return jax.tree.map(lambda one, other: one.shape != other.shape, *sizes)


def _with_words(own: dict[str, Any], other: dict[str, Any], per_word: dict[str, Any]) -> Any:
  choose = lambda own, other, is_of_words: other if is_of_words else own
  is_leaf = lambda node: isinstance(node, nnx.Variable)
  return jax.tree.map(choose, own, other, per_word, is_leaf=is_leaf)


def hide_words(words: Int[Array, 'B W'], share: float, key: PRNGKey | None) -> Int[Array, 'B W']:
  """Hides words in training: they become the unknown word, so that it learns a vector, too.

  Args:
    words: numbers of words, 0 in the padding, which stays.
    share: of the words that are hidden, in [0, 1).
    key: random key; None hides none.

  Example:
    >>> hidden = hide_words(jnp.array([[5, 7, 0]]), 0.999, jax.random.key(0))
    >>> hidden.tolist() == [[UNKNOWN_ID, UNKNOWN_ID, 0]]
    True
  """
  if key is None or not share:
    return words
  hidden = jax.random.bernoulli(key, share, words.shape)
  return jnp.where(hidden & (words != 0), UNKNOWN_ID, words)


def make_dims(width: int, num_heads: int, num_kv_heads: int | None, vocab: int) -> Dims:
  """The sizes of a model whose heads divide its width.

  Raises:
    ValueError: if the heads do not divide the width.
  """
  if num_heads < 1 or width % num_heads:
    raise ValueError(f'num_heads must divide the width {width}, but got {num_heads}.')
  return Dims(width, num_heads, width // num_heads, num_kv_heads or num_heads, vocab)
