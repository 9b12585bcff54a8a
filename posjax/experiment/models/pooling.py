"""Pooling: from the features of a text's words to one vector for the text.

B batch, T tokens, N features. A mask is True where a feature of a token counts, and False in the
padding, whose values make no difference; a row in which nothing counts gives 0.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Inexact

from posjax.experiment.models.complex_layers import apart

Features = Inexact[Array, 'B T N']
Mask = Bool[Array, 'B T'] | Bool[Array, 'B T N']


class Encoded(NamedTuple):
  """The features of each token, and what pooling must know about them.

  Attributes:
    x: features of each token.
    counts: which of them count: one entry per token, or per token and feature.
    backward: how many of the features, the last ones, come from a direction that reads from the
      end; it ends at the first token.
  """

  x: Features
  counts: Mask
  backward: int = 0


def pool(name: str, encoded: Encoded) -> Inexact[Array, 'B N']:
  """One vector a text. 'last' takes the features with which each direction ends.

  Args:
    name: 'mean', 'max' or 'last'.
    encoded: the features.

  Raises:
    ValueError: if there is no such pooling.

  Example:
    >>> x = jnp.array([[[1.0, 5.0], [2.0, 6.0]]])
    >>> pool('last', Encoded(x, jnp.ones((1, 2), bool), backward=1))
    Array([[2., 5.]], dtype=float32)
  """
  function, forward = POOLINGS[check(name)], encoded.x.shape[-1] - encoded.backward
  if function is not last or not encoded.backward:
    return function(encoded.x, encoded.counts)
  counts = jnp.broadcast_to(_by_feature(encoded.counts), encoded.x.shape)
  ends = (
    last(encoded.x[..., :forward], counts[..., :forward]),
    first(encoded.x[..., forward:], counts[..., forward:]),
  )
  return jnp.concatenate(ends, axis=-1)


def silence(x: Features, mask: Mask) -> Features:
  """0 where nothing counts, even if x is not a number there."""
  return jnp.where(_by_feature(mask), x, 0)


def mean(x: Features, mask: Mask) -> Inexact[Array, 'B N']:
  """The mean over the tokens.

  Example:
    >>> mean(jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[2.]], dtype=float32)
  """
  count = jnp.maximum(_by_feature(mask).sum(1), 1)
  return silence(x, mask).sum(1) / count


def maximum(x: Features, mask: Mask) -> Inexact[Array, 'B N']:
  """The largest over the tokens, of each feature; of complex ones, of each part.

  Example:
    >>> maximum(jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[3.]], dtype=float32)
  """
  counts = _by_feature(mask)

  def largest(x):
    return jnp.where(counts.any(1), jnp.where(counts, x, -jnp.inf).max(1), 0)

  return apart(largest, x) if jnp.iscomplexobj(x) else largest(x)


def first(x: Features, mask: Mask) -> Inexact[Array, 'B N']:
  """The features of the first token."""
  return _at(x, mask, _by_feature(mask).argmax(1))


def last(x: Features, mask: Mask) -> Inexact[Array, 'B N']:
  """The features of the last token.

  Example:
    >>> last(jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[3.]], dtype=float32)
  """
  return _at(x, mask, x.shape[1] - 1 - _by_feature(mask)[:, ::-1].argmax(1))


def _at(x: Features, mask: Mask, token: Array) -> Array:
  return jnp.take_along_axis(silence(x, mask), token[:, None], axis=1)[:, 0]


def _by_feature(mask: Mask) -> Array:
  """[B, T, 1] or [B, T, N]."""
  return mask if mask.ndim == 3 else mask[..., None]


POOLINGS = {'mean': mean, 'max': maximum, 'last': last}


def check(name: str) -> str:
  """A name of `POOLINGS`.

  Raises:
    ValueError: if it is none.
  """
  if name not in POOLINGS:
    raise ValueError(f'pooling must be one of {", ".join(POOLINGS)}, but got {name!r}.')
  return name
