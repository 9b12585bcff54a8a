"""What an attention layer is beside its weights: shared, pure, by the nnx and the linen module."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int, Num

from posjax import cache as caches
from posjax.attention import attend
from posjax.cache import Cache
from posjax.scheme import (
  At,
  Dims,
  Ids,
  Params,
  PRNGKey,
  Scheme,
  declares,
  merge,
  split,
  without_place_2,
)


class Layer(NamedTuple):
  """What is known when the layer is built; checked by `make`."""

  scheme: Scheme
  dims: Dims
  causal: bool
  window: int | None
  logit_cap: float | None
  dropout_rate: float
  scale: float | None
  implementation: str | None


class Tokens(NamedTuple):
  """One side of the attention: its input, and where its tokens stand."""

  x: Num[Array, 'B T M']
  pos: Ids
  segments: Int[Array, '...'] | None = None
  order: Num[Array, '...'] | None = None
  at: At = None  # by default the ids


class Heads(NamedTuple):
  """The three projections."""

  q: Inexact[Array, 'B T H D']
  k: Inexact[Array, 'B S K D']
  v: Inexact[Array, 'B S K D']


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


def named(params: Params) -> dict[str, Any]:
  """A scheme's parameters as plain dicts, so that every tool can name them: members '0', '1', ...

  Members of a chain without parameters are left out; `unnamed` puts them back.
  """
  if not isinstance(params, tuple):
    return params
  return {str(i): part for i, part in enumerate(params) if jax.tree.leaves(part)}


def unnamed(scheme: Scheme, tree: dict[str, Any]) -> Params:
  """The inverse of `named`."""
  if not scheme.parts:
    return dict(tree)
  return tuple(dict(tree.get(str(i), {})) for i in range(len(scheme.parts)))


def split_named(scheme: Scheme, params: Params) -> tuple[dict[str, Any], dict[str, Any]]:
  """`posjax.split`, as plain dicts: what is trained, and the constants."""
  trained, fixed = split(scheme, params)
  return named(trained), named(fixed)


def union(trained: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
  """The inverse of `split_named`."""
  both = {name: trained.get(name, fixed.get(name)) for name in (*trained, *fixed)}
  shared = set(trained) & set(fixed)  # members of a chain, never parameters
  return both | {name: trained[name] | fixed[name] for name in shared}


def shares(scheme: Scheme) -> bool:
  """Whether the scheme has parameters that all layers share."""
  return any(declares(part, 'init_model') for part in scheme.parts or (scheme,))


def merged(scheme: Scheme, own: Params, held: Params | None, given: Params | None) -> Params:
  """The layer's parameters and the shared ones, `given` before `held`.

  Raises:
    ValueError: if the scheme has shared parameters, but there are none.
  """
  shared = held if given is None else given
  if shared is None and shares(scheme):
    raise ValueError(
      'The scheme shares parameters between layers and this layer holds none, so model_params '
      'must be given: scheme.init_model(key, dims).'
    )
  return merge(unnamed(scheme, {}) if shared is None else shared, own)


def attention(
  layer: Layer,
  params: Params,
  heads: Heads,
  queries: Tokens,
  keys: Tokens | None = None,
  *,
  mask: Bool[Array, '...'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
  dropout_key: PRNGKey | None = None,
) -> Inexact[Array, 'B T H D']:
  """`prepare`, then `attend`. Without `keys`, the queries look at themselves."""
  check_input(layer, queries)
  params, queries = prepared(layer.scheme, params, queries, None)
  keys = queries if keys is None else prepared(layer.scheme, params, keys, None)[1]
  return meet(layer, params, heads, queries, keys, mask, sinks, dropout_key)


def meet(layer, params, heads, queries, keys, mask=None, sinks=None, dropout_key=None) -> Array:
  """`attend`, from prepared queries to prepared keys."""
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
    implementation=layer.implementation,
  )


def side(
  x_kv: Num[Array, 'B S M'] | None,
  kv_pos: Ids | None,
  kv_segments: Int[Array, '...'] | None,
  kv_order: Num[Array, '...'] | None,
) -> Tokens | None:
  """The keys' side of cross-attention, or None.

  Raises:
    ValueError: if one of x_kv and kv_pos is missing, or segments or order have no x_kv.
  """
  if x_kv is None:
    given = {'kv_pos': kv_pos, 'kv_segments': kv_segments, 'kv_order': kv_order}
    found = [name for name, value in given.items() if value is not None]
    if found:
      raise ValueError(f'{", ".join(found)} belong to x_kv, but got no x_kv.')
    return None
  if kv_pos is None:
    raise ValueError('x_kv needs kv_pos, the ids of its tokens, but got none.')
  return Tokens(x_kv, kv_pos, kv_segments, kv_order)


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
  segments = ones if new.segments is None else rows('segments', new.segments, batch, tokens, 1)
  segments = segments.astype(jnp.int32)
  order = cache.length + jnp.arange(tokens, dtype=jnp.int32)
  new = new._replace(pos=rows('pos', new.pos, batch, tokens, axes), segments=segments, order=order)
  params, new = prepared(layer.scheme, params, new, caches.last(cache))
  layer, heads = _place(layer, params, heads, new)
  brought = heads.k, heads.v, new.at, new.pos, segments
  sorted_slots = 'S' in layer.scheme.whole
  seen, stored = caches.append(cache, *brought, window=layer.window, sorted_slots=sorted_slots)
  out = meet(layer, params, Heads(heads.q, seen.k, seen.v), new, seen, sinks=sinks)
  if layer.window is None:  # dynamic_update_slice would have clamped, and silently
    out = jnp.where(stored.length > cache.k.shape[1], jnp.nan, out)
  return out.astype(heads.v.dtype), stored


def _place(layer: Layer, params: Params, heads: Heads, new: Tokens) -> tuple[Layer, Heads]:
  """What is left of the layer, and its heads after place 2, where the cache keeps placed keys."""
  at = new.pos if new.at is None else new.at
  done, k = caches.placed(layer.scheme, params, heads.k, at)
  if not done:
    return layer, heads
  rest = without_place_2(layer.scheme)
  scale = heads.q.shape[-1] ** -0.5 if layer.scale is None else layer.scale  # of raw heads
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
  pos = rows('pos', tokens.pos, batch, length, axes)
  params, at = scheme.prepare(params, tokens.x, pos, last)
  return params, tokens._replace(at=at)


def rows(name: str, ids: Array, batch: int, length: int, axes: int) -> Array:
  """[T] or [1, T] for all rows, or [B, T]; with several ids per token, [..., n]."""
  token = (length, axes) if axes > 1 else (length,)
  if ids.shape not in (token, (1, *token), (batch, *token)):
    raise ValueError(f'{name} must be {(batch, *token)} or {token}, but got {ids.shape}.')
  return jnp.broadcast_to(ids, (batch, *token))
