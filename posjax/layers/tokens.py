"""The tokens of one side of an attention layer, and its projected heads."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, Int, Num

from posjax.attention.inputs import token_numbers
from posjax.attention.padding import zeroed
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
  v: Inexact[Array, 'B S K E']


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
  return tokens._replace(x=zeroed(x, segments))


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


# Dtypes in which distances between tokens do not wrap: narrow ones are widened to int32.
_COUNTING = frozenset({'int32', 'int64', 'float32', 'float64', 'int16', 'int8', 'uint16', 'uint8'})

QUERIES = ('x', 'pos', 'segments', 'order')  # the names of a side's arrays, for messages
KEYS = ('x_kv', 'kv_pos', 'kv_segments', 'kv_order')
PAST = ('past.x', 'past.pos', 'past.segments', 'past.order')
MEMORIZED = ('x_kv', 'kv_pos', 'segments', 'order')


def check_tokens(
  tokens: Tokens, width: int, axes: int, names: tuple[str, str, str, str] = QUERIES
) -> None:
  """Checks the arrays of one side.

  Args:
    tokens: the side.
    width: M.
    axes: ids per token that the scheme takes; 0: any number.
    names: what the user calls the input, the ids, the segments and the order.

  Raises:
    TypeError: if one is no array, or an array of other numbers.
    ValueError: if a shape does not fit, or JAX cannot hold the numbers of NumPy's arrays.
  """
  x, pos = tokens.x, tokens.pos
  check_array(names[0], x)
  if not jnp.issubdtype(x.dtype, jnp.number):
    raise TypeError(f'{names[0]} must be numbers, but got {x.dtype}.')
  if x.ndim != 3 or x.shape[-1] != width:
    raise ValueError(f'{names[0]} must be [B, T, {width}], but got shape {x.shape}.')
  batch, length, _ = x.shape
  check_ids(names[1], pos, length)
  _check_numbers(names[1], pos)
  check_rows(names[1], pos, batch, length, axes or (pos.shape[-1] if pos.ndim == 3 else 1))
  if tokens.segments is not None:
    check_array(names[2], tokens.segments)
    if not jnp.issubdtype(tokens.segments.dtype, jnp.integer):
      raise TypeError(f'{names[2]} must be integers, but got {tokens.segments.dtype}.')
    check_rows(names[2], tokens.segments, batch, length, 1)
  if tokens.order is not None:
    check_array(names[3], tokens.order)
    _check_numbers(names[3], tokens.order)
    check_rows(names[3], tokens.order, batch, length, 1)
  token_numbers(**dict(zip(names[1:], (pos, tokens.segments, tokens.order), strict=True)))


def check_keys(queries: Tokens, keys: Tokens) -> None:
  """Checks that both sides of cross-attention have as many rows, and that both have segments.

  Raises:
    ValueError: if they do not fit.
  """
  if keys.x.shape[0] != queries.x.shape[0]:
    raise ValueError(
      f'x_kv must have the rows of x, {queries.x.shape[0]}, but got shape {keys.x.shape}.'
    )
  if (queries.segments is None) != (keys.segments is None):
    given, missing = 'segments', 'kv_segments'
    if queries.segments is None:
      given, missing = missing, given
    raise ValueError(f'{given} need {missing} as well, but got none.')


def check_array(name: str, array: Any) -> None:
  """Raises TypeError if it is no array of JAX or NumPy."""
  if not isinstance(array, (jax.Array, np.ndarray)):
    raise TypeError(f'{name} must be an array, but got {type(array).__name__}.')


def check_ids(name: str, pos: Any, length: int | None = None) -> None:
  """Raises TypeError if ids are no array, and says what they would be where there are none."""
  if pos is None:
    count = 'T' if length is None else length
    raise TypeError(
      f'{name} must be the ids of the tokens, but got None; jnp.arange({count}) numbers the '
      'tokens of each row from 0.'
    )
  check_array(name, pos)


def _check_numbers(name: str, ids: Array) -> None:
  if ids.dtype.name not in _COUNTING:
    raise TypeError(f'{name} must be signed integers or float32, but got {ids.dtype}.')


def check_rows(name: str, ids: Array, batch: int, length: int, axes: int) -> None:
  """Checks that ids are those of each row or of all rows; arguments as in `by_row`.

  Raises:
    ValueError: if the shape is another.
  """
  token = (length, axes) if axes > 1 else (length,)
  if ids.shape not in (token, (1, *token), (batch, *token)):
    raise ValueError(f'{name} must be {(batch, *token)} or {token}, but got {ids.shape}.')


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
  check_rows(name, ids, batch, length, axes)
  token = (length, axes) if axes > 1 else (length,)
  return jnp.broadcast_to(ids, (batch, *token))
