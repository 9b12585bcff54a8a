"""The arguments of `attend`, checked once, and in the form that all implementations take.

All leading axes are flattened to one, and defaults are filled in. Nothing is clamped, rounded or
ignored: every message says what was wrong, what was expected and what was given.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Inexact, Int, Num

from posjax.arguments import Positive, Share, Size, Whole, describe, read, shown
from posjax.attention import padding, parameters
from posjax.expression import get
from posjax.known import known_numbers
from posjax.scheme import At, Ids, Params, PRNGKey, Scheme, check_key, declares
from posjax.token_order import refuse_other_orders

_LOGIT_CAP, _WINDOW_END = Positive | None, Whole | None
_MOVED = 1e-3  # of the distance between two tokens: what rounding an id to float32 may change
_CALLS = {
  'ids': 'place 0, ids = scheme.ids(pos, key)',
  'embed': 'place 1, x = scheme.embed(params, x, tokens, ids)',
}


class Side(NamedTuple):
  """The queries, or the keys, with all that belongs to each of their tokens.

  b is B, or 1 where all rows of the batch are alike.

  Attributes:
    raw: queries or keys as they came, before place 2.
    pos: ids, [b, T] or [b, T, n].
    at: the tree that the scheme's `prepare` returned, leaves [B, T, ...]; by default the ids.
    order: index of each token in its stream, for causality and windows.
    segments: document of each token; 0 is padding.
    index: index of each token in its array, for dropout.
    positioned: the heads after place 2, possibly wider, where an implementation has called it.
  """

  raw: Inexact[Array, 'B T H D']
  pos: Ids
  at: At
  order: Num[Array, 'b T']
  segments: Int[Array, 'b T']
  index: Int[Array, ' T']
  positioned: Inexact[Array, 'B T H Wider'] | None = None


class Tokens(NamedTuple):
  """The numbers of each token from which visibility follows: b is B, or 1."""

  order: Num[Array, 'b n']
  segments: Int[Array, 'b n']


class Operands(NamedTuple):
  """The arrays of one attention.

  Attributes:
    params: the scheme's parameters.
    q: the queries, before place 2.
    k: the keys, before place 2.
    v: the values, before place 4.
    mask: True where a pair may attend; None where nothing but the rules says so.
    sinks: a logit for each head that takes its share of the softmax.
    dropout_key: random key, needed where the rules have a dropout rate.
    bias: the caller's addition to the logits. Each axis is 1 where it is the same along it.
    rows: index of each row in the batch, for dropout; None where there is none.
  """

  params: Params
  q: Side
  k: Side
  v: Inexact[Array, 'B S K E']
  mask: Bool[Array, 'b h T S'] | None = None
  sinks: Float[Array, ' H'] | None = None
  dropout_key: PRNGKey | None = None
  bias: Float[Array, 'b h t s'] | None = None
  rows: Int[Array, ' B'] | None = None


class Window(NamedTuple):
  """How far each query sees. One of the two ends, at least, is a number.

  Attributes:
    before: how many tokens before itself a query sees; None: all of them.
    after: how many tokens after itself it sees; None: all of them that causality lets it see.
  """

  before: int | None
  after: int | None


class Rules(NamedTuple):
  """The plain arguments of `attend`, known when the attention is traced; the scale may not be.

  `counting` is none of them: whether the ids of all rows are known to count up by one, with the
  same distances in each, where the arrays of ids do not tell, as inside `jax.shard_map`.
  """

  scale: float
  causal: bool
  window: Window | None
  logit_cap: float | None
  dropout_rate: float
  broadcast_dropout: bool = False
  counting: bool = False


class Call(NamedTuple):
  """One call of `attend`, read and checked.

  Attributes:
    scheme: the scheme.
    rules: the plain arguments.
    operands: the arrays.
    shape: of the queries as they came, [*B, T, H, D].
    keys: S.
    dtype: of the values, and of the result.
    padded: whether some queries may be padding, whose output is zeros.
  """

  scheme: Scheme
  rules: Rules
  operands: Operands
  shape: tuple[int, ...]
  keys: int
  dtype: Any
  padded: bool

  @property
  def pairs(self) -> tuple[int, ...]:
    """The shape of the weights, [*B, H, T, S]."""
    return (*self.shape[:-3], self.shape[-2], self.shape[-3], self.keys)


class Given(NamedTuple):
  """The positions of the queries, or of the keys, as the caller of `attend` gives them."""

  pos: Any
  at: At = None
  order: Any = None
  segments: Any = None


def read_call(
  scheme: Scheme | str,
  params: Params,
  heads: tuple[Any, Any, Any],
  queries: Given,
  keys: Given,
  *,
  mask: Any = None,
  bias: Any = None,
  sinks: Any = None,
  dropout_key: Any = None,
  zero_padding: bool = False,
  head_dim: int | None = None,
  **plain: Any,
) -> Call:
  """Reads the arguments of `attend`, and checks them: inside, nothing checks them again.

  Args:
    scheme: any scheme, or a line for `posjax.get`.
    params: its parameters.
    heads: q, k and v.
    queries: the positions of the queries.
    keys: those of the keys.
    mask: as for `attend`, and so are the next three.
    bias: what is added to the logits.
    sinks: a logit for each head.
    dropout_key: random key.
    zero_padding: whether keys and values of segment 0 are zeros already, as in a cache.
    head_dim: D for which the parameters were made; None: the width of q, as before place 2.
    **plain: the arguments of `make_rules`.
  """
  scheme = read_scheme(scheme)
  q, k, v, mask, bias, sinks = arrays(
    q=heads[0], k=heads[1], v=heads[2], mask=mask, bias=bias, sinks=sinks
  )
  q_pos, q_order, q_segments, k_pos, k_order, k_segments = token_numbers(
    q_pos=queries.pos, q_order=queries.order, q_segments=queries.segments,
    k_pos=keys.pos, k_order=keys.order, k_segments=keys.segments,
  )  # fmt: skip
  check_present(q=q, k=k, v=v, q_pos=q_pos, k_pos=k_pos)
  check_layout(q, k, q_pos, k_pos, scheme.traits.axes)
  check_heads(q, k, v)
  check_ids(q_pos=(q_pos, q), k_pos=(k_pos, k))
  params = parameters.check(scheme, params, q, k, q_pos, queries.at, keys.at, head_dim)
  rules = make_rules(q, dropout_key=dropout_key, **plain)
  if rules.causal or rules.window is not None:
    check_order(scheme, q, q_pos, k_pos, q_order, k_order)
    check_known_order(q_pos=q_pos, k_pos=k_pos, q_order=q_order, k_order=k_order)
  check_segments(q_segments, k_segments)
  sinks = make_sinks(sinks, q.shape[-2])
  if dropout_key is not None:
    check_key('dropout_key', dropout_key)
  mask = None if mask is None else make_mask(mask, q, k)
  bias = None if bias is None else make_bias(bias, q, k)
  q_seen, k_seen = padding.visible_tokens(mask)
  q_side = make_side('q', q, scheme, q_pos, queries.at, q_order, q_segments, q_seen)
  k_side = make_side('k', k, scheme, k_pos, keys.at, k_order, k_segments, k_seen, zero_padding)
  flat_v = v.reshape(k_side.raw.shape[:-1] + v.shape[-1:])
  padded = q_segments is not None or mask is not None
  if padded and (mask is not None or not zero_padding):
    flat_v = padding.zeroed(flat_v, k_side.segments)
  if 'S' in scheme.traits.mixes and (rules.causal or rules.window or k_order is not None):
    flat_v = refuse_other_orders(flat_v, k_side.order, k_side.segments, together=False)
  rows = jnp.arange(len(flat_v)) if rules.dropout_rate else None
  operands = Operands(params, q_side, k_side, flat_v, mask, sinks, dropout_key, bias, rows)
  return Call(scheme, rules, operands, q.shape, k.shape[-3], v.dtype, padded)


def read_scheme(scheme: Scheme | str) -> Scheme:
  """The scheme itself; a line of text is read by `posjax.get`.

  Raises:
    TypeError: if it is neither.
  """
  if isinstance(scheme, Scheme):
    return scheme
  if isinstance(scheme, str):
    return get(scheme)
  raise TypeError(
    f'The scheme must be a Scheme, or a line for posjax.get, but got {shown(scheme)}.'
  )


def arrays(**given: Any) -> list[Any]:
  """The arguments as arrays of JAX: those of NumPy are converted, and None stays None.

  Raises:
    TypeError: if one is no array of JAX or NumPy, or not of numbers.
    ValueError: if an integer of NumPy is too large for JAX.
  """
  return [
    x if x is None or isinstance(x, jax.Array) else _array(name, x) for name, x in given.items()
  ]


def _array(name: str, x: Any) -> Array:
  if hasattr(x, '__jax_array__'):  # a variable of Flax
    return jnp.asarray(x)
  if not isinstance(x, np.ndarray | np.generic):
    raise TypeError(f'{name} must be an array of JAX or NumPy, but got {shown(x)}.')
  try:
    with known_numbers():  # in a function that is traced, it stays known
      converted = jnp.asarray(x)
  except (TypeError, ValueError):
    raise TypeError(f'{name} must be an array of numbers, but got {x.dtype}.') from None
  if x.dtype.kind in 'iu' and x.itemsize > converted.itemsize and x.size:
    # The array of NumPy is looked at: within a compiled program, JAX's has no known values.
    least, most, limits = x.min(), x.max(), jnp.iinfo(converted.dtype)
    if least < limits.min or most > limits.max:
      raise ValueError(
        f'{name} must fit {converted.dtype} unless jax_enable_x64 is set, but got numbers from '
        f'{least} to {most}.'
      )
  return converted


def token_numbers(**given: Any) -> list[Any]:
  """Ids, orders and segments as arrays of JAX, as `arrays`; refused where float32 moves a token.

  Raises:
    TypeError: if one is no array of JAX or NumPy, or not of numbers.
    ValueError: if an integer of NumPy is too large for JAX, or a number of float64 is farther than
      1/1000 from what float32 makes of it.
  """
  converted = arrays(**given)
  for (name, x), narrow in zip(given.items(), converted, strict=True):
    is_wider = isinstance(x, np.ndarray | np.generic) and x.dtype == np.float64 != narrow.dtype
    if is_wider and (np.abs(x - x.astype(np.float32)) > _MOVED).any():
      raise ValueError(
        f'{name} must be integers, or float64 numbers that float32 holds to 1/1000 unless '
        f'jax_enable_x64 is set, but got numbers up to {np.abs(x).max():,}.'
      )
  return converted


def check_places(scheme: Scheme, model_places: bool) -> None:
  """Refuses a scheme that acts where only the model can, unless `model_places` says that it does.

  Args:
    scheme: any scheme.
    model_places: whether the model calls the scheme's `ids` and `embed`.

  Raises:
    ValueError: if the scheme has one of them, and `model_places` is False.
  """
  calls = [words for field, words in _CALLS.items() if declares(scheme, field)]
  if calls and not model_places:
    raise ValueError(
      f'The scheme acts before the first layer ({"; ".join(calls)}), where attention cannot: the '
      'model must call this, and say so by model_places=True, but got model_places=False.'
    )


def check_present(**given: Array | None) -> None:
  """Raises TypeError if an argument that is always needed is None."""
  for name, x in given.items():
    if x is None:
      raise TypeError(f'{name} must be an array of JAX or NumPy, but got None.')


def check_heads(q: Array, k: Array, v: Array) -> None:
  """Checks q [*B, T, H, D], k [*B, S, K, D] and v [*B, S, K, E], where K divides H.

  Raises:
    ValueError: if they do not fit.
    TypeError: if they are not real or complex numbers of 16 bits or more.
  """
  for name, x in (('q', q), ('k', k), ('v', v)):
    if x.ndim < 3:
      raise ValueError(f'{name} must be [*B, tokens, heads, width], but got shape {x.shape}.')
    if not jnp.issubdtype(x.dtype, jnp.inexact) or x.dtype.itemsize < 2:
      raise TypeError(f'{name} must be float16, bfloat16 or wider, but got {x.dtype}.')
  if q.shape[:-3] != k.shape[:-3] or q.shape[-1] != k.shape[-1]:
    raise ValueError(
      f'q and k must agree on the batch and the head width, but got {q.shape} and {k.shape}.'
    )
  if k.shape[:-1] != v.shape[:-1]:
    raise ValueError(
      f'k and v must agree on batch, tokens and heads, but got {k.shape} and {v.shape}.'
    )
  if q.shape[-2] == 0 or q.shape[-1] == 0:
    raise ValueError(f'q must have heads of a width of at least 1, but got shape {q.shape}.')
  if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
    raise ValueError(
      f'The key heads must divide the query heads, but got {k.shape[-2]} and {q.shape[-2]}.'
    )


def check_layout(q: Array, k: Array, q_pos: Ids, k_pos: Ids, axes: int) -> None:
  """Recognizes heads before tokens, [*B, H, T, D], by the ids, which then fit the wrong axis.

  Raises:
    ValueError: if the ids of both sides fit the axes of the heads, and not those of the tokens.
  """
  if min(q.ndim, k.ndim) < 3 or min(q_pos.ndim, k_pos.ndim) < 1:
    return
  token_axis = -2 if axes > 1 and min(q_pos.ndim, k_pos.ndim) > 1 else -1
  counts = q_pos.shape[token_axis], k_pos.shape[token_axis]
  if counts == (q.shape[-2], k.shape[-2]) != (q.shape[-3], k.shape[-3]):
    raise ValueError(
      f'q and k must be [*B, tokens, heads, width] with {counts[0]} and {counts[1]} tokens, as '
      f'there are ids, but got {q.shape} and {k.shape}, where heads seem to come before tokens.'
    )


def check_ids(**sides: tuple[Ids, Array]) -> None:
  """Checks that there are ids for each token, before they are prepared and masks are compared.

  Args:
    **sides: by the name of the ids: ids that have the axes of the batch, or none of them, and the
      queries or keys.

  Raises:
    ValueError: if one side has ids for another number of tokens.
    TypeError: if ids are neither integers nor float32.
  """
  for name, (pos, x) in sides.items():
    _check_ids_dtype(name, pos)
    if pos.ndim == 1 and pos.shape[0] != x.shape[-3]:
      whole = x.shape[:-2]
      raise ValueError(f'{name} must be {whole}, with or without the batch, but got {pos.shape}.')


def check_order(scheme: Scheme, q: Array, q_pos: Ids, k_pos: Ids, q_order, k_order) -> None:
  """Checks that causality and windows have an order of the tokens, where ids cannot be one.

  Raises:
    ValueError: if the order is missing.
  """
  if q_order is not None and k_order is not None:
    return
  if declares(scheme, 'ids'):
    raise ValueError(
      'The scheme changes the ids, so causal and window need q_order and k_order (order, in a '
      'layer): the index of each token in its stream.'
    )
  several = [pos.shape[-1] for pos in (q_pos, k_pos) if pos.ndim == q.ndim - 1]
  axes = scheme.traits.axes or max(several, default=1)
  if axes > 1:
    raise ValueError(
      f'There are {axes} ids per token, so causal and window need q_order '
      'and k_order: the index of each token in its stream.'
    )


def check_known_order(**orders: Array | None) -> None:
  """Checks that no order is NaN, as far as the values are known: no number comes before it.

  Raises:
    ValueError: if one is.
  """
  for name, order in orders.items():
    if order is None or not jnp.issubdtype(order.dtype, jnp.floating):
      continue
    # NumPy looks at known values within a compiled program, too, where jnp would trace.
    if not isinstance(order, jax.core.Tracer) and np.isnan(np.asarray(order)).any():
      raise ValueError(f'{name} must be numbers that have an order, but got NaN.')


def make_rules(
  q, scale, causal, window, logit_cap, dropout_rate, dropout_key, broadcast_dropout
) -> Rules:
  """Checks the plain arguments, and fills in the default scale.

  Raises:
    ValueError: if one is out of its range.
    TypeError: if one is of another type.
  """
  causal = read(causal, bool, 'causal')
  window = read_window(window, causal)
  if logit_cap is not None:
    logit_cap = read(logit_cap, _LOGIT_CAP, 'The logit cap')
  dropout_rate = read(dropout_rate, Share, 'The dropout rate')
  if dropout_rate and dropout_key is None:
    raise ValueError(f'A dropout rate of {dropout_rate} needs a dropout_key, but got none.')
  scale = q.shape[-1] ** -0.5 if scale is None else _scale(scale)
  rate = dropout_rate if dropout_key is not None else 0.0
  broadcast_dropout = read(broadcast_dropout, bool, 'broadcast_dropout')
  return Rules(scale, causal, window, logit_cap, rate, broadcast_dropout)


def read_window(window: Any, causal: bool) -> Window | None:
  """The window as its two ends; None where it leaves out no pair that causality does not leave out.

  Args:
    window: w, which is (w - 1, w - 1); or a pair of the numbers of tokens before and after a query
      that it sees, each None for all; or None. See `attend`.
    causal: whether a query sees no token after itself anyway.

  Raises:
    ValueError: if a number is out of its range, there are not two of them, or a causal window
      reaches to the right.
    TypeError: if it is of another type.

  Example:
    >>> read_window(4, causal=False), read_window((3, None), causal=True)
    (Window(before=3, after=3), Window(before=3, after=None))
  """
  if window is None:
    return None
  if not isinstance(window, (tuple, list)):
    back = _window_size(window) - 1
    return Window(back, None if causal else back)
  if len(window) != 2:
    raise ValueError(f'A window of two ends must be (left, right), but got {shown(window)}.')
  left, right = window
  left = None if left is None else read(left, _WINDOW_END, 'left of the window')
  right = None if right is None else read(right, _WINDOW_END, 'right of the window')
  if causal and right:
    raise ValueError(
      'A causal query sees no token after itself, so right of the window must be 0 or None, but '
      f'got {right}.'
    )
  right = None if causal else right
  return None if left is None and right is None else Window(left, right)


def _window_size(window: Any) -> int:
  try:
    return read(window, Size, 'The window')
  except (TypeError, ValueError) as error:
    if isinstance(window, jax.core.Tracer):
      raise
    raise type(error)(
      f'The window must be {describe(Size)}, a pair (left, right), or None, but got '
      f'{shown(window)}.'
    ) from None


def _scale(scale: Any) -> Any:
  """The scale: a number, or one that is traced."""
  if isinstance(scale, jax.core.Tracer):
    if scale.shape or not jnp.issubdtype(scale.dtype, jnp.floating):
      raise TypeError(f'A traced scale must be one real number, but got {shown(scale)}.')
    return scale
  return read(scale, float, 'The scale')


def check_segments(q_segments: Array | None, k_segments: Array | None) -> None:
  """Raises ValueError if one side alone has segments."""
  if (q_segments is None) != (k_segments is None):
    given, missing = ('k', 'q') if q_segments is None else ('q', 'k')
    raise ValueError(f'{given}_segments need {missing}_segments as well, but got none.')


def make_sinks(sinks: Array | None, num_heads: int) -> Array | None:
  """One finite logit for each query head, in float32 or wider.

  The largest number replaces inf: it takes all of the softmax, too, and leaves no NaN.

  Raises:
    ValueError: if the shape is another.
    TypeError: if they are no real numbers.
  """
  if sinks is None:
    return None
  if sinks.shape != (num_heads,):
    raise ValueError(f'sinks must be one per head, shape ({num_heads},), but got {sinks.shape}.')
  if not jnp.issubdtype(sinks.dtype, jnp.floating) or sinks.dtype.itemsize < 2:
    raise TypeError(f'sinks must be float16, bfloat16 or wider, but got {sinks.dtype}.')
  sinks = sinks.astype(jnp.result_type(sinks, jnp.float32))
  return jnp.minimum(sinks, jnp.finfo(sinks.dtype).max)


def make_side(
  name: str,
  x: Inexact[Array, '*B T H D'],
  scheme: Scheme,
  pos: Ids,
  at: At = None,
  order: Array | None = None,
  segments: Array | None = None,
  visible: Bool[Array, 'b T'] | None = None,
  zero_padding: bool = False,
) -> Side:
  """Flattens one side, and fills in its defaults.

  Args:
    name: 'q' or 'k', for messages.
    x: queries or keys.
    scheme: any scheme.
    pos: ids.
    at: from the scheme's `prepare`; None where it has none.
    order: index of each token in its stream; None: the ids.
    segments: document of each token; None: all are in one.
    visible: tokens with at least one allowed pair; the others are treated as padding.
    zero_padding: whether tokens of segment 0 are zeros already.

  Raises:
    ValueError: if shapes do not fit.
    TypeError: if ids are neither integers nor float32, or segments no integers.
  """
  leading, length = x.shape[:-3], x.shape[-3]
  raw = x.reshape(math.prod(leading), *x.shape[-3:])
  pos = _tokens(f'{name}_pos', pos, leading, length, scheme.traits.axes)
  padded = visible is not None or (segments is not None and not zero_padding)
  if segments is None:
    with known_numbers():
      segments = jnp.ones((1, length), jnp.int32)
  else:
    segments = _integers(f'{name}_segments', segments)
    segments = _tokens(f'{name}_segments', segments, leading, length, 1)
  if visible is not None:
    segments = jnp.where(visible, segments, 0)
  if padded:
    raw, pos = padding.zeroed((raw, pos), segments)
  if at is None:
    at = jnp.broadcast_to(pos, (raw.shape[0], *pos.shape[1:]))
  else:
    at = jax.tree.map(lambda leaf: _prepared(f'{name}_at', leaf, leading, length), at)
    at = padding.zeroed(at, segments) if padded else at
  if order is not None:
    order = _tokens(f'{name}_order', order, leading, length, 1)
  elif pos.ndim == 2:
    order = pos
  else:
    order = jnp.zeros((1, length), jnp.int32)  # no rule asks for it: `check_order`
  index = jnp.arange(length, dtype=jnp.int32)
  return Side(raw, pos, at, order, segments, index)


def make_mask(given: Bool[Array, '...'], q: Array, k: Array) -> Bool[Array, 'b h T S']:
  """The mask [*B, H, T, S] or [T, S], each axis of which may be 1, as [b, h, T, S].

  Raises:
    ValueError: if it does not broadcast to the logits.
    TypeError: if it is not boolean.
  """
  if given.dtype != jnp.bool_:
    raise TypeError(f'The mask must be boolean, True may attend, but got {given.dtype}.')
  leading, queries, heads, keys = q.shape[:-3], q.shape[-3], q.shape[-2], k.shape[-3]
  whole = (*leading, heads, queries, keys)
  shape = (1,) * (len(whole) - 2) + given.shape if given.ndim == 2 else given.shape
  if len(shape) != len(whole) or any(n not in (1, m) for n, m in zip(shape, whole, strict=True)):
    raise ValueError(
      f'The mask must broadcast to {whole} with as many axes, or to {(queries, keys)}, but got '
      f'{given.shape}.'
    )
  own = shape[:-3] if math.prod(shape[:-3]) == 1 else leading
  given = jnp.broadcast_to(given.reshape(shape), (*own, shape[-3], queries, keys))
  return given.reshape(math.prod(own), shape[-3], queries, keys)


def make_bias(given: Float[Array, '...'], q: Array, k: Array) -> Float[Array, 'b h t s']:
  """A bias that broadcasts to [*B, H, T, S], as [b, h, t, s], in which axes may be 1.

  Raises:
    ValueError: if it does not broadcast, or has not the axes of queries and keys.
    TypeError: if it does not hold real numbers of 16 bits or more.
  """
  if not jnp.issubdtype(given.dtype, jnp.floating) or given.dtype.itemsize < 2:
    hint = '; pairs are hidden by mask' if given.dtype == jnp.bool_ else ''
    raise TypeError(f'bias must be float16, bfloat16 or wider, but got {given.dtype}{hint}.')
  leading, whole = q.shape[:-3], (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
  shape = (1,) * (len(whole) - given.ndim) + given.shape
  fits = given.ndim > 1 and len(shape) == len(whole)
  if not fits or any(n not in (1, m) for n, m in zip(shape, whole, strict=True)):
    raise ValueError(
      f'bias must have the axes of queries and keys, {whole[-2:]}, and broadcast to {whole}, but '
      f'got {given.shape}.'
    )
  own = shape[:-3] if math.prod(shape[:-3]) == 1 else leading
  given = jnp.broadcast_to(given.reshape(shape), (*own, *shape[-3:]))
  return given.reshape(math.prod(own), *shape[-3:])


def _tokens(name: str, ids: Array, leading: tuple[int, ...], length: int, axes: int) -> Array:
  """Ids, order or segments as [b, T] or [b, T, n]; those that are known while tracing stay so."""
  if isinstance(ids, jax.core.Tracer):
    return _by_row(name, ids, leading, length, axes)
  with known_numbers():
    return _by_row(name, ids, leading, length, axes)


def _by_row(name: str, ids: Array, leading: tuple[int, ...], length: int, axes: int) -> Array:
  """Ids, order or segments as [b, T] or [b, T, n]; narrow integers as int32."""
  _check_ids_dtype(name, ids)
  if _is_narrow(ids.dtype):
    ids = ids.astype(jnp.int32)  # a distance of int8 or uint8 would wrap
  many = axes > 1 or (axes == 0 and ids.ndim == len(leading) + 2)
  tail = ids.shape[-1:] if many else ()
  lead = ids.shape[: ids.ndim - 1 - len(tail)]
  several = (axes,) if axes > 1 else ()
  shown = f'{(*leading, length, *several)}'
  if ids.ndim < 1 + len(tail) or ids.shape[len(lead)] != length or (several and tail != several):
    raise ValueError(f'{name} must be {shown}, with or without the batch, but got {ids.shape}.')
  if not lead:
    return ids[None]
  if len(lead) != len(leading) or any(n not in (1, m) for n, m in zip(lead, leading, strict=True)):
    raise ValueError(f'{name} must be {shown}, with or without the batch, but got {ids.shape}.')
  if math.prod(lead) == 1:
    return ids.reshape(1, length, *tail)
  return jnp.broadcast_to(ids, (*leading, length, *tail)).reshape(math.prod(leading), length, *tail)


def _check_ids_dtype(name: str, ids: Array) -> None:
  if not _is_narrow(ids.dtype) and ids.dtype not in (jnp.int64, jnp.float32, jnp.float64):
    raise TypeError(f'{name} must be signed integers or float32, but got {ids.dtype}.')


def _is_narrow(dtype: Any) -> bool:
  """Whether int32 holds all integers of a dtype."""
  return jnp.issubdtype(dtype, jnp.integer) and jnp.can_cast(dtype, jnp.int32)


def _prepared(name: str, leaf: Array, leading: tuple[int, ...], length: int) -> Array:
  """One leaf of `at` as [B, T, ...]."""
  rank = len(leading)
  fits = leaf.ndim > rank and leaf.shape[rank] == length
  if not fits or any(n not in (1, m) for n, m in zip(leaf.shape[:rank], leading, strict=True)):
    raise ValueError(f'{name} must begin with {(*leading, length)}, but got {leaf.shape}.')
  leaf = jnp.broadcast_to(leaf, (*leading, *leaf.shape[rank:]))
  return leaf.reshape(math.prod(leading), *leaf.shape[rank:])


def _integers(name: str, x: Array) -> Array:
  if not jnp.issubdtype(x.dtype, jnp.integer):
    raise TypeError(f'{name} must be integers, but got {x.dtype}.')
  return x
