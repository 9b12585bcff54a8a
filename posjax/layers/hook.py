"""`attention_fn`: any scheme inside Flax's own attention modules, linen and nnx."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, Int, Num

from posjax.arguments import Share, read, shown
from posjax.attention import attend
from posjax.attention.inputs import check_places, read_window
from posjax.known import known_arange
from posjax.layers import arguments
from posjax.layers.tokens import check_array, check_ids
from posjax.scheme import Ids, Params, Scheme, check_is_scheme, declares, merge, split

_PRECISIONS = ('default', 'high', 'highest', 'bfloat16', 'tensorfloat32', 'float32')


def attention_fn(
  scheme: Scheme,
  params: Params,
  *,
  q_pos: Ids,
  k_pos: Ids | None = None,
  q_order: Num[Array, '...'] | None = None,
  k_order: Num[Array, '...'] | None = None,
  q_segments: Int[Array, '...'] | None = None,
  k_segments: Int[Array, '...'] | None = None,
  causal: bool = False,
  window: int | tuple[int | None, int | None] | None = None,
  implementation: str | None = None,
  model_places: bool = False,
  frozen: bool | None = None,
) -> Callable[..., Array]:
  """The `attention_fn` that `nnx.MultiHeadAttention` and linen's modules accept.

  Flax's modules hand over no positions, so they are bound here. `posjax.nnx.AttentionFn` and
  `posjax.linen.AttentionFn` are modules that hold the scheme's parameters, number the tokens
  themselves, and count them where Flax's modules decode with their cache.

  Flax's modules cannot train what this function holds. So a scheme with parameters to train is
  refused until you say what becomes of them: `frozen=True` leaves them as they are, and
  `frozen=False` says that a module of yours holds them, and makes this function of them at each of
  its calls.

  A precision, and the weights that Flax's modules store (`sow_weights`), need all logits at once:
  the implementation is then 'dense', and no other is accepted. A mask of numbers is one of 0 and 1,
  as Flax's functions make them; other numbers are refused where they are known, which they are not
  in a compiled program. To decode with Flax's cache, give the ids of the new queries and of all
  slots: `q_pos=index + jnp.arange(T), k_pos=jnp.arange(S)`.

  Args:
    scheme: any scheme that does not prepare its sides (those need the layer's input).
    params: its parameters.
    q_pos: ids of the queries, [B, T] or [T].
    k_pos: ids of the keys; by default those of the queries, with their order and segments.
    q_order: index of each query in its stream, as in `attend`.
    k_order: the same for the keys.
    q_segments: document of each query; 0 is padding.
    k_segments: the same for the keys.
    causal: as in `attend`; Flax's own `is_causal`, `mask` and `bias` are honoured besides.
    window: as in `attend`.
    implementation: as in `attend`.
    model_places: whether the model calls the scheme's `ids` and `embed` before its first layer;
      this function never does.
    frozen: whether the scheme's parameters are left as they are; see above. Must be given where
      there are parameters to train.

  Returns:
    A function (query, key, value, bias, mask, ...) -> [B, T, H, D].

  Raises:
    TypeError: if the scheme is none, or a switch neither True nor False.
    ValueError: if the scheme prepares its sides, has `ids` or `embed` without `model_places=True`,
      or has parameters to train without `frozen`; and, when called, for what cannot be honoured:
      einsums, a dtype other than the queries', two precisions, a mask of other numbers than 0 and
      1, or lengths other than the ids'.

  Example:
    >>> import jax, posjax
    >>> attention = posjax.attention_fn(posjax.get('rope'), {}, q_pos=jnp.arange(3))
    >>> x = jax.random.normal(jax.random.key(0), (1, 3, 2, 4))
    >>> attention(x, x, x).shape
    (1, 3, 2, 4)
  """
  check_hooked(scheme, causal, model_places)
  params = _frozen(scheme, params, frozen)
  read_window(window, causal)
  sides = _sides(q_pos, k_pos, q_order, k_order, q_segments, k_segments)

  def call(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    is_causal=False,
    dropout_rng=None,
    dropout_rate=0.0,
    deterministic=True,
    broadcast_dropout=True,
    dtype=None,
    precision=None,
    module=None,
    qk_attn_weights_einsum=None,
    attn_weights_value_einsum=None,
  ):
    arguments.check_switches(is_causal=is_causal)
    _check_module(module)
    rate = _dropout_rate(dropout_rate, deterministic)
    _refuse(
      qk_attn_weights_einsum=qk_attn_weights_einsum,
      attn_weights_value_einsum=attn_weights_value_einsum,
    )
    _check_dtype(dtype, query)
    with _at_precision(precision):
      out = attend(
        query,
        key,
        value,
        scheme,
        params,
        **sides,
        mask=_mask(mask),
        bias=bias,
        causal=causal or is_causal,
        window=window,
        dropout_rate=rate,
        dropout_key=dropout_rng if rate else None,
        broadcast_dropout=broadcast_dropout,
        implementation=_implementation(implementation, precision),
        return_weights=module is not None,
        model_places=True,  # checked when this function was made
      )
    return out if module is None else _sown(module, out)

  return call


def check_hooked(scheme: Any, causal: Any, model_places: Any) -> None:
  """Refuses a scheme that a function without the layer's input cannot apply.

  Raises:
    TypeError: if it is none, or a switch is neither True nor False.
    ValueError: if it prepares its sides, or acts before the first layer and `model_places` is
      False.
  """
  check_is_scheme(scheme)
  arguments.check_switches(causal=causal, model_places=model_places)
  check_places(scheme, model_places)
  if declares(scheme, 'prepare'):
    raise ValueError(
      "The scheme prepares its sides from the layer's input, which Flax does not hand over; use "
      'posjax.nnx.Attention or posjax.linen.Attention.'
    )


def numbered(
  positions: dict[str, Any], queries: int, keys: int, start: Int[Array, ''] | None
) -> dict[str, Any]:
  """The positions of `attention_fn` for one call of a module that numbers the tokens itself.

  Args:
    positions: q_pos, k_pos, and what else was given; where there are no ids, tokens count from 0.
    queries: T.
    keys: S.
    start: the number of queries before these, in the cache of a Flax module whose slots are the
      keys; None where it does not decode.

  Raises:
    ValueError: if positions are given to a module that decodes, which counts them itself.
  """
  given = {name: array for name, array in positions.items() if array is not None}
  if start is not None:
    if given:
      raise ValueError(
        f'A module that decodes counts the tokens itself, but got {", ".join(given)} as well as '
        'decode=True.'
      )
    q_pos, k_pos = start + jnp.arange(queries), jnp.arange(keys)
    return {'q_pos': q_pos, 'k_pos': k_pos, 'q_order': q_pos, 'k_order': k_pos}
  if 'q_pos' not in given:
    given['q_pos'] = known_arange(queries)
    if queries != keys and 'k_pos' not in given:
      given['k_pos'] = known_arange(keys)
  return given


def within_cache(
  out: Inexact[Array, '*B T H E'], start: Int[Array, ''] | None, keys: int
) -> Inexact[Array, '*B T H E']:
  """The output of a module that decodes; NaN for tokens that Flax's cache has no slot for.

  Flax overwrites the last slot then, without a word.

  Args:
    out: the output.
    start: the number of queries before these; None where the module does not decode.
    keys: S, the slots of the cache.

  Raises:
    ValueError: if there is no slot, where the number is known (outside jit).
  """
  if start is None:
    return out
  tokens = out.shape[-3]
  if not isinstance(start, jax.core.Tracer) and int(start) + tokens > keys:
    raise ValueError(
      f"Flax's cache has {keys} slots, {int(start)} of them taken, so {tokens} tokens do not fit."
    )
  return jnp.where(start + tokens > keys, jnp.nan, out)


def _sides(q_pos: Ids, k_pos: Ids | None, q_order, k_order, q_segments, k_segments) -> dict:
  """The arguments of `attend` that say where tokens are; keys default to the queries."""
  check_ids('q_pos', q_pos)
  rest = {'k_pos': k_pos, 'q_order': q_order, 'k_order': k_order}
  rest |= {'q_segments': q_segments, 'k_segments': k_segments}
  for name, array in rest.items():
    if array is not None:
      check_array(name, array)
  if k_pos is None:
    rest['k_pos'] = q_pos
    rest['k_order'] = q_order if k_order is None else k_order
    rest['k_segments'] = q_segments if k_segments is None else k_segments
  return {'q_pos': q_pos, **rest}


def _dropout_rate(rate: Any, deterministic: Any) -> float:
  """The rate at which weights are dropped, 0 where nothing is random; as Flax's modules give it."""
  rate = read(rate, Share, 'The dropout rate')
  arguments.check_switches(deterministic=deterministic)
  return 0.0 if deterministic else rate


def _mask(mask: Any) -> Any:
  """The mask as booleans; Flax's functions make masks of 0 and 1 in float32 by default."""
  if not isinstance(mask, (jax.Array, np.ndarray)) or mask.dtype == bool:
    return mask
  known = not isinstance(mask, jax.core.Tracer)
  if known and not np.isin(mask, (0, 1)).all():
    raise ValueError(
      'The mask must hold True or False, or 1 and 0, but got other numbers; what is added to the '
      'logits is a bias.'
    )
  return mask != 0


def _at_precision(given: Any) -> contextlib.AbstractContextManager:
  """A context in which all products have this one precision."""
  if given is None:
    return contextlib.nullcontext()
  each = given if isinstance(given, (tuple, list)) else (given,)
  names = {one.name.lower() if isinstance(one, jax.lax.Precision) else one for one in each}
  name = next(iter(names)) if len(names) == 1 else None
  if not isinstance(name, str) or name not in _PRECISIONS:
    raise ValueError(
      f'The precision must be one of {_PRECISIONS} for all products, but got {shown(given)}.'
    )
  return jax.default_matmul_precision(name)


def _implementation(name: str | None, precision: Any) -> str | None:
  """The implementation: 'dense' where a precision is asked for, which tiles would not have.

  A derivative of theirs is computed where this call has long ended.
  """
  if precision is None:
    return name
  if name not in (None, 'dense'):
    raise ValueError(f"A precision needs implementation='dense', or None, but got {name!r}.")
  return 'dense'


def _check_module(module: Any) -> None:
  if module is not None and not callable(getattr(module, 'sow', None)):
    raise TypeError(f'module must be one of Flax, which stores weights, but got {shown(module)}.')


def _sown(module: Any, attended: tuple[Array, Array]) -> Array:
  """The output, whose weights a module of Flax stores as its own function would."""
  out, weights = attended
  module.sow('intermediates', 'attention_weights', weights)
  return out


def _check_dtype(dtype: Any, query: Array) -> None:
  if dtype is None:
    return
  arguments.check_dtype('dtype', dtype)
  if jnp.dtype(dtype) != query.dtype:
    raise ValueError(f'The attention computes in {query.dtype}, but got dtype={dtype}.')


def _frozen(scheme: Scheme, params: Params, frozen: bool | None) -> Params:
  """The parameters; if they are frozen, no gradient reaches them."""
  if frozen is not None:
    arguments.check_switches(frozen=frozen)
  trained, fixed = split(scheme, params)
  if frozen is None and jax.tree.leaves(trained):
    raise ValueError(
      'The scheme has parameters to train, which a Flax module would not see and not train: use '
      'posjax.nnx.AttentionFn or posjax.linen.AttentionFn, which hold them, or pass frozen=True to '
      'leave them as they are, or frozen=False where your own module holds them and makes this '
      'function at each call, but got none of these.'
    )
  return merge(jax.lax.stop_gradient(trained), fixed) if frozen else params


def _refuse(**arguments) -> None:
  given = [name for name, value in arguments.items() if value is not None]
  if given:
    raise ValueError(f'The posjax attention_fn cannot honour {", ".join(given)}; leave it out.')
