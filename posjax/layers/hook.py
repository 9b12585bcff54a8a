"""`attention_fn`: any scheme inside Flax's own attention modules, linen and nnx."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Num

from posjax.arguments import Share, Size, read
from posjax.attention import attend
from posjax.layers import arguments
from posjax.layers.tokens import check_array
from posjax.scheme import Ids, Params, Scheme, declares, merge, split


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
  window: int | None = None,
  implementation: str | None = None,
  model_places: bool = False,
  frozen: bool | None = None,
) -> Callable[..., Array]:
  """The `attention_fn` that `nnx.MultiHeadAttention` and linen's modules accept.

  Flax's modules hand over no positions and no cache index, so the positions are bound here, and
  decoding with Flax's cache is refused: `posjax.nnx.Attention` and `posjax.linen.Attention` have
  a cache that knows its positions.

  Flax's modules do not know the scheme's parameters, and cannot train what this function holds.
  So a scheme with parameters to train is refused until you say what becomes of them:

  - `frozen=True` leaves them as they are.
  - `frozen=False` says that a module of yours holds them, and makes this function of them at each
    of its calls. In linen, inside a compact method:
    `params = self.param('positions', scheme.init, dims)`, then
    `nn.MultiHeadDotProductAttention(heads, attention_fn=attention_fn(scheme, params, ...))`. In
    nnx, a module that holds `nnx.Param`s and whose `__call__` makes and calls this function is
    itself an `attention_fn`.

  Args:
    scheme: any scheme that does not prepare its sides (those need the layer's input).
    params: its parameters.
    q_pos: ids of the queries, [B, T] or [T].
    k_pos: ids of the keys; by default those of the queries, with their order and segments.
    q_order: index of each query in its stream, as in `attend`.
    k_order: the same for the keys.
    q_segments: document of each query; 0 is padding.
    k_segments: the same for the keys.
    causal: as in `attend`; Flax's own `is_causal` and `mask` are honoured besides.
    window: as in `attend`.
    implementation: as in `attend`.
    model_places: whether the model calls the scheme's `ids` and `embed` before its first layer;
      this function never does.
    frozen: whether the scheme's parameters are left as they are; see above. Must be given where
      there are parameters to train.

  Returns:
    A function (query, key, value, bias, mask, ...) -> [B, T, H, D].

  Raises:
    TypeError: if the scheme is none, or a switch neither True nor False; and, when called, if the
      mask is not boolean (Flax makes masks of float32 unless given `dtype=bool`).
    ValueError: if the scheme prepares its sides, has `ids` or `embed` without `model_places=True`,
      or has parameters to train without `frozen`; and, when called, for what cannot be honoured: a
      bias, sown weights (`module`), a precision, einsums, a dtype other than the queries', dropout
      broadcast over heads, or lengths other than the ids'.

  Example:
    >>> import jax, posjax
    >>> attention = posjax.attention_fn(posjax.get('rope'), {}, q_pos=jnp.arange(3))
    >>> x = jax.random.normal(jax.random.key(0), (1, 3, 2, 4))
    >>> attention(x, x, x).shape
    (1, 3, 2, 4)
  """
  _check_scheme(scheme, causal, model_places)
  params = _frozen(scheme, params, frozen)
  window = read(window, Size | None, 'The window')
  arguments.check_implementation(implementation)
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
    rate = _dropout_rate(dropout_rate, deterministic, broadcast_dropout)
    _refuse(
      bias=bias,
      precision=precision,
      module=module,
      qk_attn_weights_einsum=qk_attn_weights_einsum,
      attn_weights_value_einsum=attn_weights_value_einsum,
    )
    _check_dtype(dtype, query)
    return attend(
      query,
      key,
      value,
      scheme,
      params,
      **sides,
      mask=mask,
      causal=causal or is_causal,
      window=window,
      dropout_rate=rate,
      dropout_key=dropout_rng if rate else None,
      implementation=implementation,
    )

  return call


def _check_scheme(scheme: Any, causal: Any, model_places: Any) -> None:
  """Refuses a scheme that a function without the layer's input cannot apply."""
  arguments.check_scheme(scheme)
  arguments.check_switches(causal=causal, model_places=model_places)
  arguments.check_places(scheme, model_places)
  if declares(scheme, 'prepare'):
    raise ValueError(
      "The scheme prepares its sides from the layer's input, which Flax does not hand over; use "
      'posjax.nnx.Attention or posjax.linen.Attention.'
    )


def _sides(q_pos: Ids, k_pos: Ids | None, q_order, k_order, q_segments, k_segments) -> dict:
  """The arguments of `attend` that say where tokens stand; keys may stand where the queries do."""
  check_array('q_pos', q_pos)
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


def _dropout_rate(rate: Any, deterministic: Any, broadcast: Any) -> float:
  """The rate at which weights are dropped, 0 where nothing is random; as Flax's modules give it."""
  rate = read(rate, Share, 'The dropout rate')
  arguments.check_switches(deterministic=deterministic, broadcast_dropout=broadcast)
  if deterministic or rate == 0:
    return 0.0
  if broadcast:
    raise ValueError(
      'Dropout is drawn for each head and row, so broadcast_dropout must be False, but got True.'
    )
  return rate


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
  arguments.check_params(scheme, params, 'params', 'posjax.init(scheme, key, dims)')
  trained, fixed = split(scheme, params)
  if frozen is None and jax.tree.leaves(trained):
    raise ValueError(
      'The scheme has parameters to train, which a Flax module would not see and not train: pass '
      'frozen=True to leave them as they are, or frozen=False where your own module holds them and '
      'makes this function at each call, but got neither.'
    )
  return merge(jax.lax.stop_gradient(trained), fixed) if frozen else params


def _refuse(**arguments) -> None:
  given = [name for name, value in arguments.items() if value is not None]
  if given:
    raise ValueError(f'The posjax attention_fn cannot honour {", ".join(given)}; leave it out.')
