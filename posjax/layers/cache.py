"""A cache of keys and values that knows its positions: pure functions, prefill and decoding alike.

A slot holds its token's k, v, `at` (from the scheme's `prepare`), ids, order and segment. v is held
after the scheme's `values.value`. k is held after place 2 or before it, as `positioned` decides; if
before, place 2 acts at every call, which is exact because `at` is stored with k. Empty slots have
segment 0, to which nothing attends.

A cache that is filled at once, of the tokens that a cross-attention reads, is a `memory`.

Without a window, token i is in slot i. With one, the cache is a ring: token i is in slot
i mod C and replaces the token that left the window; visibility comes from order, never from slots.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, Int, Num

from posjax.attention.padding import zeroed
from posjax.scheme import At, Dims, Ids, Params, Scheme, declares, init, prepare


class Cache(NamedTuple):
  """C slots for each row. A tree of arrays, to be carried through jit and scan.

  Attributes:
    k: keys, after place 2, which may widen them, or before it: see `positioned`.
    v: values, after the scheme's `values.value`, which may widen them.
    at: what the scheme's `prepare` returned, leaves [B, C, ...]; None where it has none.
    pos: ids, [B, C] or [B, C, n].
    order: index of each token in its stream; one row where it is the same for all rows.
    segments: document of each token; 0 is padding, or an empty slot.
    length: tokens seen so far.
  """

  k: Inexact[Array, 'B C K Wider']
  v: Inexact[Array, 'B C K E']
  at: At
  pos: Num[Array, 'B C *n']
  order: Num[Array, 'b C']
  segments: Int[Array, 'B C']
  length: Int[Array, '']


def empty(
  scheme: Scheme,
  dims: Dims,
  batch: int,
  capacity: int,
  *,
  value_dim: int | None = None,
  dtype: jax.typing.DTypeLike = jnp.float32,
  pos_dtype: jax.typing.DTypeLike = jnp.int32,
  axes: int | None = None,
) -> Cache:
  """A cache without tokens.

  Args:
    scheme: the scheme whose `at` it will hold.
    dims: the sizes of the layer.
    batch: B, rows.
    capacity: C, slots for each row: tokens in all, or at least the window where there is one.
    value_dim: E, the width of a value; by default that of a key.
    dtype: of keys and values.
    pos_dtype: of the ids, int32 or float32.
    axes: ids per token; by default as the scheme declares, or one.

  Raises:
    ValueError: if there is no slot.

  Example:
    >>> empty(Scheme(), Dims(width=8, num_heads=2, head_dim=4), batch=1, capacity=3).k.shape
    (1, 3, 2, 4)
  """
  if capacity < 1:
    raise ValueError(f'A cache needs at least one slot, but got capacity={capacity}.')
  axes = scheme.traits.axes if axes is None else axes
  heads = (batch, capacity, dims.num_kv_heads or dims.num_heads)
  pos = jnp.zeros((batch, capacity, axes) if axes > 1 else (batch, capacity), pos_dtype)
  value_dim = dims.head_dim if value_dim is None else value_dim
  raw_k, raw_v = (jnp.zeros((*heads, width), dtype) for width in (dims.head_dim, value_dim))
  k, v, at = _empty_heads_and_at(scheme, dims, raw_k, raw_v, pos)
  return Cache(
    k=k,
    v=v,
    at=at,
    pos=pos,
    order=jnp.zeros((1, capacity), jnp.int32),
    segments=jnp.zeros((batch, capacity), jnp.int32),
    length=jnp.zeros((), jnp.int32),
  )


def _empty_heads_and_at(
  scheme: Scheme, dims: Dims, raw_k: Array, raw_v: Array, pos: Ids
) -> tuple[Array, Array, At]:
  """Zeros in the form of the results of `positioned`, `values.value` and `prepare`."""

  def stored(key, x, raw_k, raw_v, pos):
    params, at = prepare(scheme, init(scheme, key, dims), x, pos)
    return positioned(scheme, params, raw_k, at)[1], scheme.values.value(params, raw_v, at), at

  if not any(declares(scheme, field) for field in ('key', 'values', 'prepare')):
    return raw_k, raw_v, None
  x = jax.ShapeDtypeStruct((*pos.shape[:2], dims.width), jnp.result_type(float))
  k, v, at = jax.eval_shape(stored, jax.random.key(0), x, raw_k, raw_v, pos)
  at = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), at)
  k, v = (jnp.zeros(held.shape, raw_k.dtype) for held in (k, v))
  return k, v, at if declares(scheme, 'prepare') else None


def memory(
  k: Inexact[Array, 'B S K Wider'],
  v: Inexact[Array, 'B S K E'],
  at: At,
  pos: Num[Array, 'B S *n'],
  order: Num[Array, 'b S'],
  segments: Int[Array, 'B S'],
) -> Cache:
  """A full cache of S tokens, to which others attend; arguments as in `append`.

  Example:
    >>> x, one = jnp.ones((1, 3, 1, 2)), jnp.ones((1, 3), jnp.int32)
    >>> int(memory(x, x, None, one, one, one).length)
    3
  """
  k, v = zeroed((k, v), segments)
  return Cache(k, v, at, pos, order, segments, jnp.asarray(k.shape[1], jnp.int32))


def select(cache: Cache, rows: Int[Array, ' N']) -> Cache:
  """The cache of N rows, taken from the B rows of a cache: beams are copied and reordered by it.

  Example:
    >>> cache = empty(Scheme(), Dims(width=2, num_heads=1, head_dim=2), batch=2, capacity=4)
    >>> select(cache, jnp.array([1, 1, 0])).k.shape
    (3, 4, 1, 2)
  """
  order = cache.order if cache.order.shape[0] == 1 else cache.order[rows]  # 1: of all rows
  return _each(lambda leaf: leaf[rows], cache, length=cache.length)._replace(order=order)


def last(cache: Cache) -> At:
  """The `at` of the newest token, leaves [B, ...]: zeros while the cache is empty."""
  return _newest(cache, cache.at)


def last_segment(cache: Cache) -> Int[Array, ' B']:
  """The document of the newest token: 0 while the cache is empty."""
  return _newest(cache, cache.segments)


def _newest(cache: Cache, tree: Any) -> Any:
  slot = (cache.length - 1) % cache.k.shape[1]
  return jax.tree.map(lambda leaf: jnp.take(leaf, slot, axis=1, mode='clip'), tree)


def positioned(
  scheme: Scheme, params: Params, k: Inexact[Array, 'B T K D'], at: At
) -> tuple[bool, Inexact[Array, 'B T K Wider']]:
  """`(done, k)`: the keys as the cache holds them, and whether place 2 has acted on them.

  Place 2 acts once, when tokens are appended, unless place 3 reads raw keys or place 2 makes keys
  more than twice as wide: then the cache holds raw keys, and place 2 acts at every call.

  Args:
    scheme: any scheme.
    params: as from its `prepare`.
    k: keys of new tokens.
    at: what `prepare` returned for them; their ids where the scheme has none.

  Example:
    >>> doubling = Scheme(key=lambda params, k, at: 2 * k)
    >>> done, k = positioned(doubling, {}, jnp.ones((1, 1, 1, 1)), jnp.zeros((1, 1)))
    >>> done, float(k[0, 0, 0, 0])
    (True, 2.0)
  """
  if not _may_act_once(scheme):
    return False, k
  positioned_k = scheme.key(params, k, at)
  few = positioned_k.shape[-1] <= 2 * k.shape[-1]
  return few, positioned_k if few else k


def are_positioned(scheme: Scheme, params: Params, cache: Cache, head_dim: int) -> bool:
  """Whether place 2 has acted on the keys of a cache, as `positioned` decides.

  Args:
    scheme: any scheme.
    params: as from its `prepare`.
    cache: the cache.
    head_dim: D, the width of a key before place 2.
  """
  if not _may_act_once(scheme):
    return False
  raw = jax.ShapeDtypeStruct((*cache.k.shape[:-1], head_dim), cache.k.dtype)
  like = jax.eval_shape(scheme.key, params, raw, cache.pos if cache.at is None else cache.at)
  return like.shape[-1] <= 2 * head_dim


def _may_act_once(scheme: Scheme) -> bool:
  return declares(scheme, 'key') and not declares(scheme, 'logits')


def append(
  cache: Cache,
  k: Inexact[Array, 'B T K Wider'],
  v: Inexact[Array, 'B T K E'],
  at: At,
  pos: Num[Array, 'B T *n'],
  segments: Int[Array, 'B T'],
  *,
  window: int | None = None,
  sorted_slots: bool = False,
) -> tuple[Cache, Cache]:
  """`(seen, cache)`: the tokens that the new ones may attend to, and the next cache.

  The two differ only where new tokens replace old ones to which others of them still attend: where
  several tokens come to a ring, `seen` holds the old slots and all new tokens, and the last C stay.

  Args:
    cache: the tokens so far.
    k: keys of the new tokens, as from `positioned`.
    v: values, after the scheme's `values.value`; stored, as k, in the cache's dtype. Those of
      padding are stored as zeros.
    at: what `prepare` returned for them, given `last(cache)`; None where the scheme has none.
    pos: their ids.
    segments: their documents; 0 is padding.
    window: how many tokens back a query sees, itself included; it makes the cache a ring.
    sorted_slots: whether `seen` must hold its tokens in order ('S' in the scheme's `mixes`).

  Returns:
    Two caches. A full cache has no room: the values of the tokens that do not fit are NaN, and
    `length` tells, being above C.

  Raises:
    ValueError: if the window is longer than the ring, tokens do not fit the cache's rows, ids or
      heads, or, where `length` is known (outside jit), the cache is full.
    TypeError: if ids or `at` would lose precision in the cache.

  Example:
    >>> cache = empty(Scheme(), Dims(width=2, num_heads=1, head_dim=2), batch=1, capacity=4)
    >>> x, one = jnp.ones((1, 3, 1, 2)), jnp.ones((1, 3), jnp.int32)
    >>> append(cache, x, x, None, one, one)[1].segments
    Array([[1, 1, 1, 0]], dtype=int32)
  """
  capacity, tokens = cache.k.shape[1], k.shape[1]
  check_window(capacity, window)
  length = cache.length + tokens
  if window is None:
    _check_room(cache, tokens)
    v = jnp.where(length > capacity, jnp.nan, v)
  order = (cache.length + jnp.arange(tokens, dtype=jnp.int32))[None]
  k, v = zeroed((k, v), segments)
  new = Cache(k.astype(cache.k.dtype), v.astype(cache.v.dtype), at, pos, order, segments, length)
  _check_fit(cache, new)
  if window is None:
    stored = _write(cache, new, cache.length)
    return stored, stored
  if tokens == 1:
    stored = _write(cache, new, cache.length % capacity)
    return _by_age(stored) if sorted_slots else stored, stored
  return _beside(_by_age(cache), new), _wrap(cache, new)


def check_window(capacity: int, window: int | None) -> None:
  """Raises ValueError if a ring has fewer slots than its window has tokens."""
  if window is not None and capacity < window:
    raise ValueError(
      f'The cache must hold its window of {window} tokens, but has {capacity} slots.'
    )


def check_form(cache: Any, name: str = 'cache', maker: str = 'init_cache') -> None:
  """Refuses what is no cache of one layer: another object, or the stacked caches of several.

  Args:
    cache: what should be one.
    name: of the argument, for messages.
    maker: the method that makes such a cache, for messages.

  Raises:
    TypeError: if it is no cache, or not one of arrays.
    ValueError: if the arrays have another number of axes.
  """
  if not isinstance(cache, Cache):
    raise TypeError(f'{name} must be one of {maker}, but got {type(cache).__name__}.')
  axes = {'k': (4,), 'v': (4,), 'pos': (2, 3), 'order': (2,), 'segments': (2,), 'length': (0,)}
  for name, expected in axes.items():
    array = getattr(cache, name)
    if not isinstance(array, (jax.Array, np.ndarray)):
      raise TypeError(f'{name} of the cache must be an array, but got {type(array).__name__}.')
    if array.ndim not in expected:
      raise ValueError(
        f'The cache must be that of one layer, whose {name} has {expected[0]} axes, but got shape '
        f'{array.shape}.'
      )
  if any(jnp.ndim(leaf) < 2 for leaf in jax.tree.leaves(cache.at)):
    raise ValueError('The leaves of at in the cache must be [B, C, ...], but one has no such axes.')


def _check_room(cache: Cache, tokens: int) -> None:
  known = not isinstance(cache.length, jax.core.Tracer)
  length = int(cache.length) if known else 0
  capacity = cache.k.shape[1]
  if length + tokens > capacity:
    raise ValueError(
      f'The cache has {capacity} slots, {length} of them taken, so {tokens} tokens do not fit.'
    )


def _check_fit(cache: Cache, new: Cache) -> None:
  """Checks that new tokens have the shapes of the cache, and that only k and v are rounded."""
  if jax.tree.structure(cache.at) != jax.tree.structure(new.at):
    raise ValueError(
      f'at must be {jax.tree.structure(cache.at)}, as in the cache, but got '
      f'{jax.tree.structure(new.at)}.'
    )
  tokens = new.k.shape[1]
  for name in ('k', 'v', 'at', 'pos', 'segments'):
    both = zip(
      jax.tree.leaves(getattr(cache, name)), jax.tree.leaves(getattr(new, name)), strict=True
    )
    for slots, leaf in both:
      expected = (slots.shape[0], tokens, *slots.shape[2:])
      if leaf.shape != expected:
        raise ValueError(f'{name} must be {expected} for this cache, but got {leaf.shape}.')
      if jnp.promote_types(slots.dtype, leaf.dtype) != slots.dtype:
        raise TypeError(f'The cache holds {name} as {slots.dtype}, but got {leaf.dtype}.')


def _each(f, *caches: Cache, length: Int[Array, '']) -> Cache:
  """Applies `f` to every array that has tokens along axis 1."""
  *tokens, _ = zip(*caches, strict=True)  # all fields but length
  k, v, at, pos, order, segments = (jax.tree.map(f, *field) for field in tokens)
  return Cache(k, v, at, pos, order, segments, length)


def _write(cache: Cache, new: Cache, slot: Int[Array, '']) -> Cache:
  def write(slots, leaf):
    return jax.lax.dynamic_update_slice_in_dim(slots, leaf.astype(slots.dtype), slot, axis=1)

  return _each(write, cache, new, length=new.length)


def _wrap(cache: Cache, new: Cache) -> Cache:
  """The last C of the new tokens in their slots of the ring."""
  capacity, tokens = cache.k.shape[1], new.k.shape[1]
  last = min(tokens, capacity)
  slots = (new.length - last + jnp.arange(last)) % capacity

  def write(old, leaf):
    leaf = leaf[:, tokens - last :].astype(old.dtype)
    return old.at[:, slots].set(leaf, mode='promise_in_bounds', unique_indices=True)

  return _each(write, cache, new, length=new.length)


def _by_age(cache: Cache) -> Cache:
  """The ring, unrolled: empty slots, then the oldest token to the newest."""
  shift = -(cache.length % cache.k.shape[1])
  return _each(lambda leaf: jnp.roll(leaf, shift, axis=1), cache, length=cache.length)


def _beside(cache: Cache, new: Cache) -> Cache:
  def join(old, leaf):
    return jnp.concatenate([old, leaf.astype(old.dtype)], axis=1)

  return _each(join, cache, new, length=new.length)
