"""The tokens of one side of an attention layer, and its projected heads."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Inexact, Int, Num

from posjax.attention.padding import blanked
from posjax.scheme import At, Ids


class Tokens(NamedTuple):
  """One side of the attention: its input, and the numbers of its tokens.

  Attributes:
    x: the input.
    pos: ids, [B, T] or [T] (n axes: [B, T, n] or [T, n]).
    segments: document of each token; None: all are in one.
    order: index of each token in its stream; None: the ids.
    at: the tree that the scheme's `prepare` returned; None: the ids.
  """

  x: Num[Array, 'B T M']
  pos: Ids
  segments: Int[Array, '...'] | None = None
  order: Num[Array, '...'] | None = None
  at: At = None


class Heads(NamedTuple):
  """The three projections."""

  q: Inexact[Array, 'B T H D']
  k: Inexact[Array, 'B S K D']
  v: Inexact[Array, 'B S K D']


def without_padding(tokens: Tokens) -> Tokens:
  """The tokens with zeros for the input of padding, of which nothing may depend.

  `attend` looks at none of it, but the projections and the scheme's `prepare` do: without this, a
  NaN there would reach the gradients of the weights, and what `prepare` sums over the tokens.
  """
  x, segments = tokens.x, tokens.segments
  if segments is None:
    return tokens
  batch, length, _ = x.shape
  segments = by_row('segments', segments, batch, length, 1)
  return tokens._replace(x=blanked(x, segments))


def keys_of(
  x_kv: Num[Array, 'B S M'] | None,
  kv_pos: Ids | None,
  kv_segments: Int[Array, '...'] | None,
  kv_order: Num[Array, '...'] | None,
) -> Tokens | None:
  """The keys' side of cross-attention; None where there is none.

  Raises:
    ValueError: if one of x_kv and kv_pos is missing, or segments or order have no x_kv.
  """
  if x_kv is None:
    given = {'kv_pos': kv_pos, 'kv_segments': kv_segments, 'kv_order': kv_order}
    names = [name for name, value in given.items() if value is not None]
    if names:
      raise ValueError(f'{", ".join(names)} belong to x_kv, but got no x_kv.')
    return None
  if kv_pos is None:
    raise ValueError('x_kv needs kv_pos, the ids of its tokens, but got none.')
  return Tokens(x_kv, kv_pos, kv_segments, kv_order)


def by_row(name: str, ids: Array, batch: int, length: int, axes: int) -> Array:
  """The ids of each row, [B, T] or [B, T, n], from those of each row or of all rows.

  Args:
    name: of the argument, for messages.
    ids: [T], [1, T] or [B, T]; with several ids per token, with n as the last axis.
    batch: B.
    length: T.
    axes: n.

  Raises:
    ValueError: if the shape is another.
  """
  token = (length, axes) if axes > 1 else (length,)
  if ids.shape not in (token, (1, *token), (batch, *token)):
    raise ValueError(f'{name} must be {(batch, *token)} or {token}, but got {ids.shape}.')
  return jnp.broadcast_to(ids, (batch, *token))
