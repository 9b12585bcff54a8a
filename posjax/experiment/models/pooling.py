"""From a row of tokens to one vector, whatever is in the padding.

B batch, T tokens, N features. `real` is True where a token is one, and False in the padding; a row
without any token gives 0.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Inexact

from posjax.experiment.models.complex_layers import apart

Rows = Inexact[Array, 'B T N']
Mask = Bool[Array, 'B T']


def silence(x: Rows, real: Mask) -> Rows:
  """0 in the padding, even where x is not a number there."""
  return jnp.where(real[..., None], x, 0)


def mean(x: Rows, real: Mask) -> Inexact[Array, 'B N']:
  """The mean over the tokens.

  Example:
    >>> mean(jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[2.]], dtype=float32)
  """
  count = jnp.maximum(real.sum(1, keepdims=True), 1)
  return silence(x, real).sum(1) / count


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
  """The first token's."""
  return _at(x, real, real.argmax(1))


def last(x: Rows, real: Mask) -> Inexact[Array, 'B N']:
  """The last token's.

  Example:
    >>> last(jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]]))
    Array([[3.]], dtype=float32)
  """
  return _at(x, real, real.shape[1] - 1 - real[:, ::-1].argmax(1))


def _at(x: Rows, real: Mask, token: Array) -> Array:
  chosen = jnp.take_along_axis(silence(x, real), token[:, None, None], axis=1)
  return chosen[:, 0]


POOLINGS = {'mean': mean, 'max': maximum, 'last': last}


def check(name: str) -> str:
  """A name of `POOLINGS`.

  Raises:
    ValueError: if it is none.
  """
  if name not in POOLINGS:
    raise ValueError(f'pooling must be one of {", ".join(POOLINGS)}, but got {name!r}.')
  return name
