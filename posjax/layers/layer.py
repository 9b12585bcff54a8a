"""The attention layer without its weights: pure functions that both Flax modules call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int

from posjax.arguments import Positive, Share, Size, read
from posjax.attention import inputs
from posjax.attention.dispatch import computed
from posjax.attention.explicit import with_automatic_axes
from posjax.attention.inputs import Window, check_order, check_places, read_window
from posjax.attention.padding import zeroed
from posjax.attention.places import transforms_values, without_place_2, without_value
from posjax.known import known_numbers
from posjax.layers import arguments, projections
from posjax.layers import cache as caches
from posjax.layers.cache import Cache
from posjax.layers.projections import Parts
from posjax.layers.recurrence import joined
from posjax.layers.tokens import (
  KEYS,
  MEMORIZED,
  PAST,
  Heads,
  Tokens,
  by_row,
  check_array,
  check_keys,
  check_tokens,
  without_padding,
)
from posjax.scheme import (
  At,
  Dims,
  Ids,
  Params,
  PRNGKey,
  Scheme,
  check_is_scheme,
  declares,
  prepare,
)


class Layer(NamedTuple):
  """The plain facts of a layer; checked by `make`."""

  scheme: Scheme
  dims: Dims
  value_dim: int
  causal: bool
  window: Window | None
  logit_cap: float | None
  dropout_rate: float
  scale: float | None
  implementation: str | None


def make(
  width: int,
  num_heads: int,
  scheme: Scheme,
  head_dim: int | None,
  num_kv_heads: int | None,
  causal: bool,
  window: int | tuple[int | None, int | None] | None,
  logit_cap: float | None,
  dropout_rate: float,
  scale: float | None,
  implementation: str | None,
  model_places: bool = False,
  value_dim: int | None = None,
) -> Layer:
  """Checks the arguments, and fills in those that follow from others.

  Raises:
    TypeError: if an argument is of another type.
    ValueError: if heads do not divide the width, or key heads the heads, a number is out of range,
      the scheme acts before the first layer and `model_places` is False, or it adds
      to outputs of another width than D.
  """
  dims = _sizes(width, num_heads, head_dim, num_kv_heads)
  check_is_scheme(scheme)
  value_dim = _value_dim(scheme, dims, value_dim)
  arguments.check_switches(causal=causal, model_places=model_places)
  check_places(scheme, model_places)
  window = read_window(window, causal)
  logit_cap = read(logit_cap, Positive | None, 'The logit cap')
  dropout_rate = read(dropout_rate, Share, 'The dropout rate')
  scale = read(scale, float | None, 'The scale')
  options = (causal, window, logit_cap, dropout_rate, scale, implementation)
  return Layer(scheme, dims, value_dim, *options)


def _value_dim(scheme: Scheme, dims: Dims, value_dim: int | None) -> int:
  value_dim = read(value_dim, Size | None, 'value_dim')
  if value_dim is None:
    return dims.head_dim
  if value_dim != dims.head_dim and scheme.values.add:
    raise ValueError(
      'The scheme adds vectors of head_dim numbers to the output (place 4, values.add), so '
      f'value_dim must be head_dim, {dims.head_dim}, or None, but got {value_dim}.'
    )
  return value_dim


def _sizes(width: int, num_heads: int, head_dim: int | None, num_kv_heads: int | None) -> Dims:
  kv_heads = num_heads if num_kv_heads is None else num_kv_heads
  sizes = {'width': width, 'num_heads': num_heads, 'num_kv_heads': kv_heads}
  width, num_heads, kv_heads = (read(size, Size, name) for name, size in sizes.items())
  if head_dim is None:
    if width % num_heads:
      raise ValueError(
        'The heads must divide the width unless head_dim is given, but got '
        f'{num_heads} and {width}.'
      )
    head_dim = width // num_heads
  head_dim = read(head_dim, Size, 'head_dim')
  if num_heads % kv_heads:
    raise ValueError(
      f'The key heads must divide the query heads, but got {kv_heads} and {num_heads}.'
    )
  return Dims(width, num_heads, head_dim, kv_heads)


def call(
  layer: Layer,
  params: Params,
  project: Callable[[Array, Array], Heads],
  queries: Tokens,
  keys: Tokens | None = None,
  past: Tokens | None = None,
  *,
  mask: Bool[Array, '...'] | None = None,
  bias: Float[Array, '...'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
  dropout_key: PRNGKey | None = None,
  return_weights: bool = False,
) -> Any:
  """One call of a layer, without its output projection.

  Args:
    layer: of `make`.
    params: the scheme's parameters.
    project: (input of the queries, input of the keys) -> their projections.
    queries: the tokens that attend.
    keys: those that they attend to, in cross-attention; None: themselves.
    past: remembered tokens directly before the queries, see `recurrence.joined`; None: none.
    mask: as in `attend`.
    bias: as in `attend`.
    sinks: as in `attend`.
    dropout_key: draws the dropout; None drops nothing.
    return_weights: as in `attend`.
  """
  check_input(layer, queries, keys)
  rest = {'mask': mask, 'bias': bias, 'sinks': sinks, 'dropout_key': dropout_key}
  rest['return_weights'] = return_weights
  queries = without_padding(queries)
  keys = None if keys is None else without_padding(keys)
  if past is not None:
    check_past(layer, past)
    both = joined(without_padding(past), queries, keys)
    return _attention(layer, params, project(queries.x, both.x), queries, both, last=True, **rest)
  heads = project(queries.x, queries.x if keys is None else keys.x)
  return _attention(layer, params, heads, queries, keys, **rest)


def attention(
  layer: Layer,
  params: Params,
  heads: Heads,
  queries: Tokens,
  *,
  mask: Bool[Array, '...'] | None = None,
  dropout_key: PRNGKey | None = None,
) -> Inexact[Array, 'B T H E']:
  """Self-attention of tokens whose heads are projected already: `prepare`, then `attend`.

  Args:
    layer: of `make`.
    params: the scheme's parameters.
    heads: the projections.
    queries: the tokens that attend to one another.
    mask: as in `attend`.
    dropout_key: draws the dropout; None drops nothing.
  """
  check_input(layer, queries)
  return _attention(layer, params, heads, queries, mask=mask, dropout_key=dropout_key)


def projected(parts: Parts, queries: Tokens, attended: Any) -> Any:
  """The output of the layer from what a call returned: the output alone, or with the weights.

  Args:
    parts: the modules of the layer by their names.
    queries: the tokens that attended.
    attended: what `call`, `extend` or `read_memory` returned.
  """
  x = without_padding(queries).x  # the gate looks at it
  if isinstance(attended, tuple):
    return projections.output(parts, x, attended[0]), attended[1]
  return projections.output(parts, x, attended)


def _attention(layer, params, heads, queries, keys=None, *, last=False, **rest):
  """As `attention`, of checked tokens; `last` says that the queries end the keys."""
  if keys is None:
    params, queries = prepared(layer.scheme, params, queries, None)
    keys = queries
  elif last:
    params, keys = prepared(layer.scheme, params, keys, None)
    queries = _last(keys, heads.q.shape[1])
  else:
    _, keys = prepared(layer.scheme, params, keys, None)
    params, queries = prepared(layer.scheme, params, queries, None)
  return attend_prepared(layer, params, heads, queries, keys, **rest)


def _last(tokens: Tokens, count: int) -> Tokens:
  """The last tokens of all rows; `order` has no axis of rows."""
  start = tokens.x.shape[1] - count
  cut = lambda leaf: leaf[..., start:] if leaf.ndim == 1 else leaf[:, start:]
  return jax.tree.map(cut, tokens)


def attend_prepared(
  layer: Layer,
  params: Params,
  heads: Heads,
  queries: Tokens,
  keys: Tokens | Cache,
  mask: Bool[Array, '...'] | None = None,
  bias: Float[Array, '...'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
  dropout_key: PRNGKey | None = None,
  return_weights: bool = False,
) -> Any:
  """`attend`, with the arguments of the layer, after the scheme's `prepare`."""
  sides = (inputs.Given(side.pos, side.at, side.order, side.segments) for side in (queries, keys))
  more = {'mask': mask, 'bias': bias, 'sinks': sinks, 'dropout_key': dropout_key}

  def run(params, heads, queries, keys, more):
    call = inputs.read_call(
      layer.scheme,
      params,
      heads,
      queries,
      keys,
      **more,
      zero_padding=is_cached,
      head_dim=layer.dims.head_dim,
      scale=layer.scale,
      causal=layer.causal,
      window=layer.window,
      logit_cap=layer.logit_cap,
      dropout_rate=0.0 if dropout_key is None else layer.dropout_rate,
      broadcast_dropout=False,
    )
    return computed(call, layer.implementation, return_weights)

  is_cached = isinstance(keys, Cache)
  attended = with_automatic_axes(run, heads.q, return_weights, params, heads, *sides, more)
  _check_width(layer, attended[0] if return_weights else attended)
  return attended


def _check_width(layer: Layer, out: Array) -> None:
  """Refuses a scheme that leaves the sum of the values wider, or narrower, than they came."""
  if transforms_values(layer.scheme) and out.shape[-1] != layer.value_dim:
    raise ValueError(
      "The scheme's values.value and values.output must together leave a layer's values as wide as "
      f'they came, {layer.value_dim}, but got {out.shape[-1]}.'
    )


def init_cache(
  layer: Layer,
  batch: int,
  capacity: int | None,
  dtype: jax.typing.DTypeLike,
  pos_dtype: jax.typing.DTypeLike,
  axes: int | None,
) -> Cache:
  """An empty cache for the layer; by default as long as its window.

  Raises:
    TypeError: if an argument is of another type.
    ValueError: if the layer is not causal, the capacity is missing or below the window, or a token
      has another number of ids than the scheme takes.
  """
  _check_causal(layer)
  batch = read(batch, Size, 'batch')
  window = _ring(layer)
  capacity = window if capacity is None else capacity
  if capacity is None:
    raise ValueError('A cache without a window needs a capacity, the tokens in all, but got none.')
  capacity = read(capacity, Size, 'capacity')
  arguments.check_dtype('dtype', dtype)
  arguments.check_ids_dtype(pos_dtype)
  arguments.check_ids_per_token(layer.scheme, axes)
  caches.check_window(capacity, window)
  return caches.empty(
    layer.scheme,
    layer.dims,
    batch,
    capacity,
    value_dim=layer.value_dim,
    dtype=dtype,
    pos_dtype=pos_dtype,
    axes=axes,
  )


def extend(
  layer: Layer,
  params: Params,
  project: Callable[[Array, Array], Heads],
  new: Tokens,
  cache: Cache,
  *,
  bias: Float[Array, '...'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
) -> tuple[Inexact[Array, 'B T H E'], Cache]:
  """Appends the tokens, each of which then looks at what came before it.

  What came before is decided as in a call without an order: by the ids, which must rise within a
  document; by the number of tokens so far where ids are no order, because the scheme changes them
  or there are several for each token.

  Args:
    layer: of `make`.
    params: the scheme's parameters.
    project: (input of the queries, input of the keys) -> their projections.
    new: the tokens.
    cache: those before.
    bias: as in `attend`, [*B, H, T, N], with a column for each token of the stream; without a
      window, N is the cache's capacity.
    sinks: as in `attend`.

  Raises:
    TypeError: if the cache is none, or an array is of another type.
    ValueError: if the layer is not causal, or the tokens do not fit (see `cache.append`).
  """
  _check_causal(layer)
  caches.check_form(cache)
  check_input(layer, new)
  batch, tokens = new.x.shape[:2]
  _check_rows(cache, batch)
  heads = project(new.x, new.x)
  axes = cache.pos.shape[2] if cache.pos.ndim == 3 else 1
  ones = jnp.ones((batch, tokens), jnp.int32)
  segments = ones if new.segments is None else by_row('segments', new.segments, batch, tokens, 1)
  segments = segments.astype(jnp.int32)
  order = cache.length + jnp.arange(tokens, dtype=jnp.int32)
  new = new._replace(
    pos=by_row('pos', new.pos, batch, tokens, axes), segments=segments, order=order
  )
  new = without_padding(new)
  before = caches.last(cache), caches.last_segment(cache)
  params, new = prepared(layer.scheme, params, new, *before)
  dtype = heads.v.dtype
  layer, heads = _position(layer, params, heads, new)
  brought = heads.k, heads.v, new.at, new.pos, segments
  sorted_slots = 'S' in layer.scheme.traits.mixes
  window = _ring(layer)
  seen, stored = caches.append(cache, *brought, window=window, sorted_slots=sorted_slots)
  rest = {'bias': _bias_of_slots(bias, seen, window), 'sinks': sinks}
  if axes == 1 and not declares(layer.scheme, 'ids'):
    new, seen = new._replace(order=new.pos), seen._replace(order=seen.pos)
  out = attend_prepared(layer, params, Heads(heads.q, seen.k, seen.v), new, seen, **rest)
  if layer.window is None:  # dynamic_update_slice clamps its index, silently
    out = jnp.where(stored.length > cache.k.shape[1], jnp.nan, out)
  return out.astype(dtype), stored


def _ring(layer: Layer) -> int | None:
  """How many tokens a query of a causal layer sees, itself included; None without a window."""
  return None if layer.window is None or layer.window.before is None else layer.window.before + 1


def _bias_of_slots(bias: Any, seen: Cache, window: int | None) -> Any:
  """The columns of the tokens that a cache shows; NaN for a token that the bias does not know."""
  if bias is None:
    return None
  check_array('bias', bias)
  if window is None or jnp.ndim(bias) < 1 or bias.shape[-1] == 1:  # slot n holds token n
    return bias
  return jnp.take(bias, seen.order[0], axis=-1, mode='fill', fill_value=jnp.nan)


def _position(layer: Layer, params: Params, heads: Heads, new: Tokens) -> tuple[Layer, Heads]:
  """Applies `values.value`, and `key` where the cache holds keys after it, and drops them."""
  at = new.pos if new.at is None else new.at
  heads = heads._replace(v=layer.scheme.values.value(params, heads.v, at))
  layer = layer._replace(scheme=without_value(layer.scheme))
  done, k = caches.positioned(layer.scheme, params, heads.k, at)
  if not done:
    return layer, heads
  heads = Heads(layer.scheme.query(params, heads.q, at), k, heads.v)
  return _after_place_2(layer), heads


def _after_place_2(layer: Layer) -> Layer:
  """The layer for queries and keys on which place 2 has acted."""
  scale = layer.dims.head_dim**-0.5 if layer.scale is None else layer.scale  # of the raw width
  return layer._replace(scheme=without_place_2(layer.scheme), scale=scale)


def memorize(
  layer: Layer,
  params: Params,
  project: Callable[[Array], tuple[Array, Array]],
  keys: Tokens,
) -> Cache:
  """The keys and values of tokens that others will read, projected once.

  Args:
    layer: of `make`.
    params: the scheme's parameters.
    project: input -> the keys, and the values.
    keys: the tokens.

  Raises:
    TypeError: if an array is of another type.
    ValueError: if shapes do not fit, or a causal layer's tokens lack an order.
  """
  check_tokens(keys, layer.dims.width, layer.scheme.traits.axes, MEMORIZED)
  keys = _of_rows(layer, keys)
  params, keys = prepared(layer.scheme, params, keys, None)
  k, v = project(keys.x)
  at = keys.pos if keys.at is None else keys.at
  order = _memory_order(layer, keys, k)
  _, k = caches.positioned(layer.scheme, params, k, at)
  v = layer.scheme.values.value(params, v, at)
  segments: Any = keys.segments
  return caches.memory(k, v, keys.at, keys.pos, order, segments)


def read_memory(
  layer: Layer,
  params: Params,
  project: Callable[[Array], Array],
  queries: Tokens,
  memory: Cache,
  *,
  mask: Bool[Array, '...'] | None = None,
  bias: Float[Array, '...'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
  return_weights: bool = False,
) -> Any:
  """Attends to what `memorize` returned: the same as a call with these tokens as keys.

  Args:
    layer: of `make`.
    params: the scheme's parameters.
    project: input -> the queries.
    queries: the tokens that attend.
    memory: of `memorize`.
    mask: as in `attend`.
    bias: as in `attend`.
    sinks: as in `attend`.
    return_weights: as in `attend`.

  Raises:
    TypeError: if the memory is no cache, or an array is of another type.
    ValueError: if shapes do not fit.
  """
  caches.check_form(memory, 'memory', 'memorize')
  check_input(layer, queries)
  _check_rows(memory, queries.x.shape[0])
  queries = _of_rows(layer, queries)
  params, queries = prepared(layer.scheme, params, queries, None)
  q = project(queries.x)
  if caches.are_positioned(layer.scheme, params, memory, layer.dims.head_dim):
    at = queries.pos if queries.at is None else queries.at
    q, layer = layer.scheme.query(params, q, at), _after_place_2(layer)
  layer = layer._replace(scheme=without_value(layer.scheme))
  heads = Heads(q, memory.k, memory.v)
  rest = {'mask': mask, 'bias': bias, 'sinks': sinks, 'return_weights': return_weights}
  return attend_prepared(layer, params, heads, queries, memory, **rest)


def _of_rows(layer: Layer, tokens: Tokens) -> Tokens:
  """The tokens with ids and segments of each row, and zeros for what the padding holds."""
  batch, length, _ = tokens.x.shape
  ones = jnp.ones((batch, length), jnp.int32)
  segments = tokens.segments
  segments = ones if segments is None else by_row('segments', segments, batch, length, 1)
  pos = by_row('pos', tokens.pos, batch, length, _ids_per_token(layer.scheme, tokens.pos))
  x, pos = zeroed((tokens.x, pos), segments)
  return tokens._replace(x=x, pos=pos, segments=segments.astype(jnp.int32))


def _memory_order(layer: Layer, keys: Tokens, k: Array) -> Array:
  """The order of the keys; only a causal layer, or one with a window, looks at it."""
  batch, length, _ = keys.x.shape
  if not layer.causal and layer.window is None:
    with known_numbers():
      return jnp.arange(length, dtype=jnp.int32)[None]
  check_order(layer.scheme, k, keys.pos, keys.pos, keys.order, keys.order)
  return keys.pos if keys.order is None else by_row('order', keys.order, batch, length, 1)


def _check_rows(cache: Cache, rows: int) -> None:
  if cache.segments.shape[0] != rows:
    raise ValueError(
      f'The cache must have the rows of x, {rows}, but got segments {cache.segments.shape}.'
    )


def _ids_per_token(scheme: Scheme, pos: Ids) -> int:
  return scheme.traits.axes or (pos.shape[-1] if pos.ndim == 3 else 1)


def _check_causal(layer: Layer) -> None:
  if not layer.causal:
    raise ValueError('A cache holds the past, so the layer must be causal, but got causal=False.')


def check_input(layer: Layer, queries: Tokens, keys: Tokens | None = None) -> None:
  """Checks the arrays of one side of the layer, or of both.

  Raises:
    TypeError: if one is no array, or an array of other numbers.
    ValueError: if a shape does not fit.
  """
  width, axes = layer.dims.width, layer.scheme.traits.axes
  check_tokens(queries, width, axes)
  if keys is not None:
    check_tokens(keys, width, axes, KEYS)
    check_keys(queries, keys)


def check_past(layer: Layer, past: Tokens) -> None:
  """Checks what is remembered of the tokens before; arguments and errors as in `check_input`."""
  if not isinstance(past, Tokens):
    raise TypeError(
      f'past must be posjax.layers.tokens.Tokens, but got an object of type {type(past).__name__}.'
    )
  check_tokens(past, layer.dims.width, layer.scheme.traits.axes, PAST)


def prepared(
  scheme: Scheme,
  params: Params,
  tokens: Tokens,
  last: At,
  last_segment: Int[Array, ' B'] | None = None,
) -> tuple[Params, Tokens]:
  """The scheme's `prepare` of these tokens, after the one whose `at` and document are given."""
  if not declares(scheme, 'prepare'):
    return params, tokens
  batch, length = tokens.x.shape[:2]
  pos = by_row('pos', tokens.pos, batch, length, _ids_per_token(scheme, tokens.pos))
  segments = tokens.segments
  if segments is not None:
    segments = by_row('segments', segments, batch, length, 1)
  order = None if tokens.order is None else by_row('order', tokens.order, batch, length, 1)
  documents = {'segments': segments, 'last_segment': last_segment}
  params, at = prepare(scheme, params, tokens.x, pos, last, **documents, order=order)
  return params, tokens._replace(at=at)
