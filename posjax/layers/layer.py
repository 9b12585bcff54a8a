"""The attention layer without its weights: pure functions that both Flax modules call."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact

from posjax.attention import attend
from posjax.layers import cache as caches
from posjax.layers.cache import Cache
from posjax.layers.recurrence import joined
from posjax.layers.tokens import Heads, Tokens, by_row, without_padding
from posjax.scheme import At, Dims, Params, PRNGKey, Scheme, declares, without_place_2


class Layer(NamedTuple):
  """The plain facts of a layer; checked by `make`."""

  scheme: Scheme
  dims: Dims
  causal: bool
  window: int | None
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
  window: int | None,
  logit_cap: float | None,
  dropout_rate: float,
  scale: float | None,
  implementation: str | None,
) -> Layer:
  """Checks the sizes, and fills in those that follow from others.

  Raises:
    ValueError: if heads do not divide the width, or key heads the heads, or a number is out of
      range.
  """
  if head_dim is None:
    if num_heads < 1 or width % num_heads:
      raise ValueError(
        'The heads must divide the width unless head_dim is given, but got '
        f'{num_heads} and {width}.'
      )
    head_dim = width // num_heads
  kv_heads = num_heads if num_kv_heads is None else num_kv_heads
  if kv_heads < 1 or num_heads < 1 or num_heads % kv_heads:
    raise ValueError(
      f'The key heads must divide the query heads, but got {kv_heads} and {num_heads}.'
    )
  if window is not None and window < 1:
    raise ValueError(f'The window must be at least 1, the query itself, but got {window}.')
  if not 0 <= dropout_rate < 1:
    raise ValueError(f'The dropout rate must be in [0, 1), but got {dropout_rate}.')
  dims = Dims(width, num_heads, head_dim, kv_heads)
  return Layer(scheme, dims, causal, window, logit_cap, dropout_rate, scale, implementation)


def call(
  layer: Layer,
  params: Params,
  project: Callable[[Array, Array], Heads],
  queries: Tokens,
  keys: Tokens | None = None,
  past: Tokens | None = None,
  *,
  mask: Bool[Array, '...'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
  dropout_key: PRNGKey | None = None,
) -> Inexact[Array, 'B T H D']:
  """One call of a layer, without its output projection.

  Args:
    layer: of `make`.
    params: the scheme's parameters.
    project: (input of the queries, input of the keys) -> their projections.
    queries: the tokens that attend.
    keys: those that they attend to, in cross-attention; None: themselves.
    past: remembered tokens directly before the queries, see `recurrence.joined`; None: none.
    mask: as in `attend`.
    sinks: as in `attend`.
    dropout_key: as in `attend`.
  """
  rest = {'mask': mask, 'sinks': sinks, 'dropout_key': dropout_key}
  queries = without_padding(queries)
  keys = None if keys is None else without_padding(keys)
  if past is not None:
    both = joined(without_padding(past), queries, keys)
    return attention(layer, params, project(queries.x, both.x), queries, both, last=True, **rest)
  heads = project(queries.x, queries.x if keys is None else keys.x)
  return attention(layer, params, heads, queries, keys, **rest)


def attention(
  layer: Layer,
  params: Params,
  heads: Heads,
  queries: Tokens,
  keys: Tokens | None = None,
  *,
  last: bool = False,
  mask: Bool[Array, '...'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
  dropout_key: PRNGKey | None = None,
) -> Inexact[Array, 'B T H D']:
  """The scheme's `prepare`, then `attend`.

  Args:
    layer: of `make`.
    params: the scheme's parameters.
    heads: the projections.
    queries: the tokens that attend.
    keys: those that they attend to; None: themselves.
    last: whether the queries are the last tokens of the keys, and are prepared with them.
    mask: as in `attend`.
    sinks: as in `attend`.
    dropout_key: as in `attend`.
  """
  check_input(layer, queries)
  if keys is None:
    params, queries = prepared(layer.scheme, params, queries, None)
    keys = queries
  elif last:
    params, keys = prepared(layer.scheme, params, keys, None)
    queries = _last(keys, heads.q.shape[1])
  else:
    params, queries = prepared(layer.scheme, params, queries, None)
    _, keys = prepared(layer.scheme, params, keys, None)
  return attend_prepared(layer, params, heads, queries, keys, mask, sinks, dropout_key)


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
  sinks: Float[Array, ' H'] | None = None,
  dropout_key: PRNGKey | None = None,
) -> Inexact[Array, 'B T H D']:
  """`attend`, with the arguments of the layer, after the scheme's `prepare`."""
  return attend(
    heads.q,
    heads.k,
    heads.v,
    layer.scheme,
    params,
    q_pos=queries.pos,
    k_pos=keys.pos,
    q_at=queries.at,
    k_at=keys.at,
    q_order=queries.order,
    k_order=keys.order,
    q_segments=queries.segments,
    k_segments=keys.segments,
    mask=mask,
    causal=layer.causal,
    window=layer.window,
    logit_cap=layer.logit_cap,
    sinks=sinks,
    scale=layer.scale,
    dropout_rate=0.0 if dropout_key is None else layer.dropout_rate,
    dropout_key=dropout_key,
    zero_padding=isinstance(keys, Cache),
    implementation=layer.implementation,
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
    ValueError: if the layer is not causal, or the capacity is missing or below the window.
  """
  _check_causal(layer)
  capacity = layer.window if capacity is None else capacity
  if capacity is None:
    raise ValueError('A cache without a window needs a capacity, the tokens in all, but got none.')
  caches.check_window(capacity, layer.window)
  return caches.empty(
    layer.scheme, layer.dims, batch, capacity, dtype=dtype, pos_dtype=pos_dtype, axes=axes
  )


def extend(
  layer: Layer,
  params: Params,
  heads: Heads,
  new: Tokens,
  cache: Cache,
  *,
  sinks: Float[Array, ' H'] | None = None,
) -> tuple[Inexact[Array, 'B T H D'], Cache]:
  """Appends the tokens, each of which then looks at what came before it.

  Raises:
    ValueError: if the layer is not causal, or the tokens do not fit (see `cache.append`).
  """
  _check_causal(layer)
  check_input(layer, new)
  batch, tokens = new.x.shape[:2]
  axes = cache.pos.shape[2] if cache.pos.ndim == 3 else 1
  ones = jnp.ones((batch, tokens), jnp.int32)
  segments = ones if new.segments is None else by_row('segments', new.segments, batch, tokens, 1)
  segments = segments.astype(jnp.int32)
  order = cache.length + jnp.arange(tokens, dtype=jnp.int32)
  new = new._replace(
    pos=by_row('pos', new.pos, batch, tokens, axes), segments=segments, order=order
  )
  new = without_padding(new)
  params, new = prepared(layer.scheme, params, new, caches.last(cache))
  layer, heads = _position(layer, params, heads, new)
  brought = heads.k, heads.v, new.at, new.pos, segments
  sorted_slots = 'S' in layer.scheme.whole
  seen, stored = caches.append(cache, *brought, window=layer.window, sorted_slots=sorted_slots)
  out = attend_prepared(layer, params, Heads(heads.q, seen.k, seen.v), new, seen, sinks=sinks)
  if layer.window is None:  # dynamic_update_slice clamps its index, silently
    out = jnp.where(stored.length > cache.k.shape[1], jnp.nan, out)
  return out.astype(heads.v.dtype), stored


def _position(layer: Layer, params: Params, heads: Heads, new: Tokens) -> tuple[Layer, Heads]:
  """Calls place 2 where the cache holds keys after it; the layer is then one without place 2."""
  at = new.pos if new.at is None else new.at
  done, k = caches.positioned(layer.scheme, params, heads.k, at)
  if not done:
    return layer, heads
  rest = without_place_2(layer.scheme)
  scale = (
    heads.q.shape[-1] ** -0.5 if layer.scale is None else layer.scale
  )  # of the width before place 2
  heads = Heads(layer.scheme.query(params, heads.q, at), k, heads.v)
  return layer._replace(scheme=rest, scale=scale), heads


def _check_causal(layer: Layer) -> None:
  if not layer.causal:
    raise ValueError('A cache holds the past, so the layer must be causal, but got causal=False.')


def check_input(layer: Layer, tokens: Tokens) -> None:
  """Raises ValueError if the input is not as wide as the layer."""
  if tokens.x.ndim != 3 or tokens.x.shape[-1] != layer.dims.width:
    raise ValueError(f'x must be [B, T, {layer.dims.width}], but got shape {tokens.x.shape}.')


def prepared(scheme: Scheme, params: Params, tokens: Tokens, last: At) -> tuple[Params, Tokens]:
  """The scheme's `prepare` of these tokens, after the one whose `at` is `last`."""
  if not declares(scheme, 'prepare'):
    return params, tokens
  axes = scheme.axes or (tokens.pos.shape[-1] if tokens.pos.ndim == 3 else 1)
  batch, length = tokens.x.shape[:2]
  pos = by_row('pos', tokens.pos, batch, length, axes)
  params, at = scheme.prepare(params, tokens.x, pos, last)
  return params, tokens._replace(at=at)
