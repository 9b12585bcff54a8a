"""Transformer-XL's memory: what a model with segment recurrence carries from segment to segment.

Every layer remembers what it was given, gradients stopped, for the last S tokens before a segment
(Dai et al. 2019, https://arxiv.org/abs/1901.02860, section 3.2). It is an argument and a result of
the model, so that it is carried, sharded and saved like any tree of arrays.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, Int, Num

from posjax.scheme import Ids, PRNGKey, Scheme, declares


class Past(NamedTuple):
  """S remembered tokens of each row; a token that is not there yet has segment 0.

  Attributes:
    inputs: of the layers, [L / P, B, S, M] for each of the P layers in a pattern.
    pos: ids before place 0, [B, S].
    segments: document of each token, [B, S]; tokens of another document are not seen.
  """

  inputs: tuple[Inexact[Array, 'R B S M'], ...]
  pos: Int[Array, 'B S']
  segments: Int[Array, 'B S']


def remembered(past: Num[Array, 'B S *n'], new: Num[Array, 'B T *n']) -> Array:
  """The last S tokens of `past` followed by `new`, without gradients.

  Example:
    >>> remembered(jnp.array([[1, 2, 3]]), jnp.array([[4]]))
    Array([[2, 3, 4]], dtype=int32)
  """
  both = jnp.concatenate([past, new.astype(past.dtype)], axis=1)
  return jax.lax.stop_gradient(both[:, both.shape[1] - past.shape[1] :])


def empty(patterns: int, layer: tuple[int, int, int, int], dtype: jax.typing.DTypeLike) -> Past:
  """A memory without any token yet.

  Args:
    patterns: P, the layers of a pattern.
    layer: the shape of the inputs of one of them, [L / P, B, S, M].
    dtype: of the inputs.

  Raises:
    ValueError: if there is no token to remember.
  """
  if layer[2] < 1:
    raise ValueError(f'A memory must hold at least 1 token, but got {layer[2]}.')
  inputs = tuple(jnp.zeros(layer, dtype) for _ in range(patterns))
  zeros = jnp.zeros(layer[1:3], jnp.int32)
  return Past(inputs, zeros, zeros)


def place(scheme: Scheme, pos: Int[Array, 'B both'], key: PRNGKey | None) -> Ids:
  """Place 0 for remembered and new tokens together.

  Random ids are drawn again for each segment, and for the tokens that it remembers, which then
  count as the beginning of the text. So they need not reach as far as the stream does: distances
  within one pass are as drawn, while an id alone means nothing.

  Raises:
    ValueError: if ids are random where they are added to what is then remembered.
  """
  if key is None or not _draws(scheme):
    return scheme.ids(pos, key)
  if declares(scheme, 'embed'):
    raise ValueError(
      'A scheme that draws ids at random and adds them to the embeddings cannot remember: what was '
      'embedded with the ids of one segment would meet those of the next. Expected a scheme whose '
      'positions enter the attention.'
    )
  return scheme.ids(jnp.broadcast_to(jnp.arange(pos.shape[1]), pos.shape), key)


def _draws(scheme: Scheme) -> bool:
  """Whether ids depend on the random key."""
  if not declares(scheme, 'ids'):
    return False
  pos = jnp.zeros((1, 1), jnp.int32)
  traced = jax.make_jaxpr(scheme.ids)(pos, jax.random.key(0)).jaxpr
  return any(traced.invars[1] is variable for line in traced.eqns for variable in line.invars)


def joined(past: Past, schemes: Sequence[Scheme], pos: Int[Array, 'B T'], key: PRNGKey | None):
  """For each scheme, the ids of what is remembered, and those of the new tokens."""
  count = past.pos.shape[1]
  both = jnp.concatenate([past.pos, pos.astype(jnp.int32)], axis=1)
  ids = [place(scheme, both, key) for scheme in schemes]
  return [each[:, :count] for each in ids], [each[:, count:] for each in ids]


def extended(
  past: Past, inputs: tuple[Array, ...], pos: Int[Array, 'B T'], segments: Int[Array, 'B T']
) -> Past:
  """The memory after a segment, whose `inputs` have been extended by the layers already."""
  return Past(inputs, remembered(past.pos, pos), remembered(past.segments, segments))
