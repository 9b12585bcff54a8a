"""The interface of models that label a pair of sentences, and the vectors of their words.

Whoever trains, scores or asks such a model needs the calls of `PairModel` alone, whether it reads
each sentence by itself (`gaussian_transformer`, `esim`) or both in one row (`one_row`).
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.models import axes
from posjax.models.embedding import Table
from posjax.scheme import Ids, PRNGKey


class Sentence(NamedTuple):
  """The sentences of one side of a batch, each at the left of its row.

  Attributes:
    tokens: numbers of the words; 0 in the padding, and nowhere else.
    ngrams: numbers of the character n-grams of each word, with 0 after the last one; G is 0 where
      the model reads no characters.
  """

  tokens: Int[Array, 'B T']
  ngrams: Int[Array, 'B T G']

  @property
  def segments(self) -> Int[Array, 'B T']:
    """1 at a word, and 0 in the padding."""
    return (self.tokens != 0).astype(jnp.int32)

  @property
  def pos(self) -> Ids:
    """Ids before place 0; 0 in the padding, so that no scheme learns how much there is."""
    return jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None] * self.segments


@runtime_checkable
class PairModel(Protocol):
  """A model of two sentences, in rows of the same width."""

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
      premise: the first sentences.
      hypothesis: the second sentences.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout; None drops nothing.
    """
    ...

  def alignment(
    self, premise: Sentence, hypothesis: Sentence
  ) -> Mapping[str, Float[Array, 'L B H T S']]:
    """The weights with which each word of one sentence reads the words of the other, for pictures.

    'premise' has the words of the premise as queries, and 'hypothesis' those of the hypothesis.
    A model that does not align two sentences returns nothing.
    """
    ...


def both(premise: Sentence, hypothesis: Sentence) -> Sentence:
  """The sentences of both sides in one batch, the premises first.

  Raises:
    ValueError: if the rows differ in width.
  """
  if premise.tokens.shape != hypothesis.tokens.shape:
    raise ValueError(
      'Both sentences of a pair should have rows of the same width, but premises are '
      f'{premise.tokens.shape} and hypotheses {hypothesis.tokens.shape}.'
    )
  return jax.tree.map(lambda one, other: jnp.concatenate([one, other]), premise, hypothesis)


def halves(x: Array) -> tuple[Array, Array]:
  """The premises' part and the hypotheses' part of a batch as `both` makes it."""
  one, other = jnp.split(x, 2)
  return one, other


def swapped(x: Array) -> Array:
  """A batch as `both` makes it, with each sentence in the place of the other one of its pair."""
  return jnp.roll(x, len(x) // 2, axis=0)


class WordVectors(nnx.Module):
  """[word : characters]: a vector for the word, and the largest over those of its n-grams.

  Args:
    vocab: V, numbers of words.
    ngrams: numbers of character n-grams; with 0, words have no vector of characters.
    word_width: of the vectors of words.
    char_width: of the vectors of n-grams.
    train_words: whether the vectors of words are trained.
    train_characters: whether those of n-grams are.
    vectors: [V, word_width], initial vectors of words; drawn if None.
    rngs: a stream for `params`.
  """

  def __init__(
    self,
    vocab: int,
    ngrams: int,
    *,
    word_width: int,
    char_width: int,
    train_words: bool,
    train_characters: bool,
    vectors: np.ndarray | None = None,
    rngs: nnx.Rngs,
  ):
    # Where vectors are given none are drawn from the stream, so that what follows stays the same.
    own = rngs if vectors is None else nnx.Rngs(0)
    self.table = Table(
      vocab, word_width, trained=train_words, vectors=vectors, names=axes.TABLE, rngs=own
    )
    self.characters = (
      Table(ngrams, char_width, trained=train_characters, rngs=rngs) if ngrams else None
    )
    self.features = word_width + (char_width if ngrams else 0)

  def __call__(self, sentence: Sentence) -> Float[Array, 'B T N']:
    """The features of each word; those of a word without n-grams are 0, as in the padding.

    Raises:
      ValueError: if the sentence has n-grams where the model reads none, or the reverse.
    """
    words = self.table.scaled(sentence.tokens)
    if (self.characters is None) != (sentence.ngrams.shape[-1] == 0):
      raise ValueError(
        f'The model reads {"no" if self.characters is None else "some"} n-grams of a word, but got '
        f'{sentence.ngrams.shape[-1]}.'
      )
    if self.characters is None:
      return words
    there = (sentence.ngrams != 0)[..., None]
    largest = jnp.where(there, self.characters.scaled(sentence.ngrams), -jnp.inf).max(-2)
    largest = jnp.where(there.any(-2), largest, 0)
    return jnp.concatenate([words, largest], axis=-1)
