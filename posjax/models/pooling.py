"""Pooling: from the features of a text's words to one vector for the text.

B batch, T tokens, N features. A mask is True where a token counts, and False in the padding, whose
values make no difference; a row in which nothing counts gives 0.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Inexact

from posjax.keys import check_value
from posjax.models.complex_layers import apart

Rows = Inexact[Array, 'B T N']
Mask = Bool[Array, 'B T']
Pooling = Literal['mean', 'max', 'last']


class Group(NamedTuple):
  """Features of each token that are pooled alike.

  Attributes:
    x: the features.
    counts: which tokens count. It is not the same for all features of a convolution.
    backward: whether they come from a direction that reads from the end: it ends at the first
      token, and 'last' is the features there.
  """

  x: Rows
  counts: Mask
  backward: bool = False


class Encoded(NamedTuple):
  """The output of an encoder: groups of features of each token, side by side."""

  groups: tuple[Group, ...]

  @property
  def x(self) -> Rows:
    """All features of each token."""
    return jnp.concatenate([group.x for group in self.groups], axis=-1)


def pool(name: str, encoded: Encoded) -> Inexact[Array, 'B N']:
  """One vector a text; 'last' takes the features with which each direction ends.

  Args:
    name: 'mean', 'max' or 'last'.
    encoded: the features.

  Raises:
    ValueError: if there is no such pooling.

  Example:
    >>> x, counts = jnp.array([[[1.0], [2.0]]]), jnp.ones((1, 2), bool)
    >>> pool('last', Encoded((Group(x, counts), Group(5 * x, counts, backward=True))))
    Array([[2., 5.]], dtype=float32)
  """
  function = POOLINGS[check(name)]
  ends = lambda group: first if function is last and group.backward else function
  return jnp.concatenate([ends(each)(each.x, each.counts) for each in encoded.groups], axis=-1)


def zero_padding(x: Rows, real: Mask) -> Rows:
  """Sets the padding to 0, even where x is NaN there."""
  return jnp.where(real[..., None], x, 0)


def mean(x: Rows, real: Mask) -> Inexact[Array, 'B N']:
  """The mean over the tokens.

  Example:
    >>> mean(jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[2.]], dtype=float32)
  """
  count = jnp.maximum(real.sum(1, keepdims=True), 1)
  return zero_padding(x, real).sum(1) / count


def maximum(x: Rows, real: Mask) -> Inexact[Array, 'B N']:
  """The largest over the tokens, of each feature; of complex ones, of each part.

  Example:
    >>> maximum(jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[3.]], dtype=float32)
  """

  def largest(x):
    found = jnp.where(real[..., None], x, -jnp.inf).max(1)
    return jnp.where(real.any(1, keepdims=True), found, 0)

  return apart(largest, x) if jnp.iscomplexobj(x) else largest(x)


def first(x: Rows, real: Mask) -> Inexact[Array, 'B N']:
  """The features of the first token."""
  return _at(x, real, real.argmax(1))


def last(x: Rows, real: Mask) -> Inexact[Array, 'B N']:
  """The features of the last token.

  Example:
    >>> last(jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[3.]], dtype=float32)
  """
  return _at(x, real, real.shape[1] - 1 - real[:, ::-1].argmax(1))


def _at(x: Rows, real: Mask, token: Array) -> Array:
  chosen = jnp.take_along_axis(zero_padding(x, real), token[:, None, None], axis=1)
  return chosen[:, 0]


POOLINGS = {'mean': mean, 'max': maximum, 'last': last}


def check(name: str) -> str:
  """A name of `POOLINGS`.

  Raises:
    ValueError: if it is none.
  """
  check_value('model.pooling', Pooling, name)
  return name
