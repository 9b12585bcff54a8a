"""Attention for Flax NNX: owns the projections and the scheme's parameters, and calls `attend`.

Runs in both of NNX's modes: no Variable is shared, nothing is mutated in a call, and no random
state is held (dropout takes a key). So a layer can be split, merged, stacked by `nnx.vmap` and
scanned by `jax.lax.scan` like any tree of arrays.
"""

try:
  from flax import nnx
  from flax.nnx import reprlib
except ModuleNotFoundError as error:
  if error.name is None or error.name.partition('.')[0] != 'flax':
    raise
  raise ImportError(
    "posjax.nnx needs flax, which is not installed: pip install 'posjax[flax]'."
  ) from error

import re
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int, Num

from posjax.arguments import shown
from posjax.layers import arguments, parameters, projections
from posjax.layers import layer as layers
from posjax.layers.cache import Cache
from posjax.layers.hook import attention_fn, check_hooked, numbered, within_cache
from posjax.layers.projections import Latent, Norm
from posjax.layers.tokens import Heads, Tokens, keys_of
from posjax.scheme import Dims, Ids, Params, PRNGKey, Scheme

Axis = str | tuple[str, ...] | None  # a mesh axis, several, or none


class Constant(nnx.Variable):
  """A constant of a scheme, named in `traits.fixed`: stored with the weights, but not trained."""


class Readable(nnx.Module):
  """A module whose `repr` shows schemes by their lines, and other functions by their names.

  Flax takes records apart, and would print the address of every function of a scheme.
  """

  def __nnx_repr__(self) -> Generator[reprlib.Object | reprlib.Attr]:
    """The parts of Flax's `repr`; those that are tuples of functions as Python prints them."""
    for part in super().__nnx_repr__():
      if isinstance(part, reprlib.Attr):
        # Flax hands over a copy of the value, whose schemes have lost their lines.
        value = getattr(self, part.key)
        if isinstance(value, tuple) and any(map(callable, jax.tree.leaves(value))):
          text = re.sub(' at 0x[0-9a-f]+>', '>', repr(value))
          part = reprlib.Attr(part.key, text, use_raw_value=True)
      yield part


class Parameters(Readable):
  """A scheme's parameters where a model holds them: those of `init_model`, for all its layers.

  Trained ones are `nnx.Param`, constants `Constant`. Called, it gives what `Attention` takes:
  `layer(x, pos, model_params=shared())` where `shared = Parameters(scheme, init_model(...))`.
  """

  def __init__(self, scheme: Scheme, params: Params):
    self.scheme = scheme
    self.held = nnx.data(_variables(scheme, params))

  def __call__(self) -> Params:
    """The parameters: a dict of arrays; for a chain, a tuple of dicts."""
    return parameters.unnamed(self.scheme, _arrays(self.held))


class AttentionFn(Readable):
  """An `attention_fn` for `nnx.MultiHeadAttention` that holds and trains its scheme's parameters.

  Tokens are numbered from 0, the queries as the keys, unless ids are given. See
  `posjax.attention_fn` for what Flax's module may ask for.

  Args:
    scheme: any scheme that does not prepare its sides.
    dims: the sizes of the layer.
    q_pos: ids of the queries, as are the next five in `posjax.attention_fn`.
    k_pos: ids of the keys.
    q_order: order of the queries.
    k_order: order of the keys.
    q_segments: documents of the queries.
    k_segments: documents of the keys.
    causal: as in `posjax.attention_fn`, as are the next three.
    window: how far a token sees.
    implementation: how to compute it.
    model_places: whether the model calls the scheme's `ids` and `embed`.
    decode: whether Flax's module decodes with its cache: `nnx.view` sets it for both. Call
      `init_cache` where Flax's module makes its cache; this module counts the tokens from there.
    sharding: names of the axes of the scheme's parameters along M, H and D, as in `Attention`.
    rngs: `nnx.Rngs` with a `params` stream.

  Example:
    >>> import posjax
    >>> attention = AttentionFn(
    ...   posjax.get('t5'), posjax.Dims(8, 2, 4), causal=True, rngs=nnx.Rngs(0)
    ... )
    >>> module = nnx.MultiHeadAttention(
    ...   2, 8, attention_fn=attention, decode=False, rngs=nnx.Rngs(1)
    ... )
    >>> module(jnp.ones((1, 3, 8))).shape
    (1, 3, 8)
    >>> nnx.state(module, nnx.Param)['attention_fn']['model_params']['table'].shape
    (32, 2)
  """

  def __init__(
    self,
    scheme: Scheme,
    dims: Dims,
    *,
    q_pos: Ids | None = None,
    k_pos: Ids | None = None,
    q_order: Num[Array, '...'] | None = None,
    k_order: Num[Array, '...'] | None = None,
    q_segments: Int[Array, '...'] | None = None,
    k_segments: Int[Array, '...'] | None = None,
    causal: bool = False,
    window: Any = None,
    implementation: str | None = None,
    model_places: bool = False,
    decode: bool = False,
    sharding: tuple[Axis, Axis, Axis] | None = None,
    rngs: nnx.Rngs,
  ):
    _check_rngs(rngs)
    check_hooked(scheme, causal, model_places)
    arguments.check_switches(decode=decode)
    self.scheme, self.decode = scheme, decode
    self.options = {'causal': causal, 'window': window, 'implementation': implementation}
    self.options |= {'model_places': model_places}
    sides = {'q_pos': q_pos, 'k_pos': k_pos, 'q_order': q_order, 'k_order': k_order}
    sides |= {'q_segments': q_segments, 'k_segments': k_segments}
    given = {name: Constant(array) for name, array in sides.items() if array is not None}
    self.sides = nnx.data(given)
    arguments.check_sharding(sharding)
    made = lambda field: nnx.data(_made(scheme, field, rngs.params(), dims, sharding))
    self.scheme_params, self.model_params = made('init'), made('init_model')
    self.index: nnx.Cache | None = nnx.data(None)

  def __call__(self, query: Array, key: Array, value: Array, *args: Any, **kwargs: Any) -> Array:
    """The output [*B, T, H, D]; Flax's module calls this as it calls `posjax.attention_fn`."""
    own, held = (_arrays(each) for each in (self.scheme_params, self.model_params))
    own, held = (parameters.unnamed(self.scheme, each) for each in (own, held))
    params = parameters.merged(self.scheme, own, held, None)
    queries = query.shape[-3]
    start = self._start(queries)
    sides = numbered(_arrays(self.sides), queries, key.shape[-3], start)
    call = attention_fn(self.scheme, params, **sides, **self.options, frozen=False)
    return within_cache(call(query, key, value, *args, **kwargs), start, key.shape[-3])

  def init_cache(self):
    """Counts the tokens from 0, as Flax's module does after its own `init_cache`."""
    self.index = nnx.Cache(jnp.zeros((), jnp.int32))

  def set_view(self, decode: bool | None = None):
    """Sets whether Flax's module decodes; `nnx.view` calls this."""
    if decode is not None:
      arguments.check_switches(decode=decode)
      self.decode = decode

  def _start(self, queries):
    """The number of tokens before these where Flax's module decodes; None where it does not."""
    if not self.decode:
      return None
    if self.index is None:
      raise ValueError('A module that decodes must begin with init_cache(), but got no such call.')
    start = self.index[...]
    self.index[...] = start + queries
    return start


class HeadNorm(nnx.Module):
  """A norm of heads or of narrow vectors, with its weight `scale` and perhaps its `bias`."""

  def __init__(
    self, norm: Norm, shape: tuple[int, ...], param_dtype: Any, metadata: dict[str, Any]
  ):
    self.norm = norm
    self.scale = nnx.Param(jnp.full(shape, 1 - norm.offset, param_dtype), **metadata)
    self.bias = nnx.data(None)
    if norm.use_bias:
      self.bias = nnx.Param(jnp.zeros(shape, param_dtype), **metadata)

  def __call__(self, x: Inexact[Array, '...']) -> Inexact[Array, '...']:
    """The heads, or the narrow vectors, after the norm."""
    bias = None if self.bias is None else self.bias[...]
    return projections.normalized(self.norm, x, self.scale[...], bias)


class Attention(Readable):
  """Self- or cross-attention in which a scheme says where position enters.

  x -> q, k, v -> attend -> out. The layer calls places 2 to 4 of its scheme. Places 0 and 1,
  `scheme.ids` and `scheme.embed`, come before the first layer: the model calls them, once, and
  says so by `model_places=True`. A scheme that has them is refused otherwise.

  Args:
    width: M, of the input and the output.
    num_heads: H, query heads.
    scheme: any `Scheme`; the default knows no positions.
    head_dim: D; by default M / H.
    num_kv_heads: K, key/value heads; by default H.
    value_dim: E, the width of a value; by default D.
    qk_norm: 'rms' or 'layer' normalizes each query and each key after its projection, before the
      scheme acts on it, with one learned weight [D] for all heads; a `Norm` says more. None does
      nothing.
    latent: a `Latent` makes keys and values, and perhaps queries, of narrow vectors, with a part of
      the key that all heads share, as in DeepSeek V3. None makes them of the input.
    causal: whether a token sees only what is not after it.
    window: how many tokens back a token sees, itself included; or a pair, as in `attend`.
    logit_cap: cap * tanh(logits / cap) before the softmax.
    sinks: whether each head learns a logit that takes its share of the softmax.
    gated: whether each number of the heads is multiplied, before the output projection, by the
      sigmoid of a linear map of the input, as in Qwen3-Next.
    use_bias: whether the projections have biases.
    out_bias: whether the output projection has one; by default as `use_bias` says.
    dropout_rate: share of the attention weights dropped in calls, unless they are deterministic.
    deterministic: whether calls drop nothing, unless they say otherwise; `nnx.Module.eval` and
      `train` set it.
    scale: factor of q . k; by default 1/sqrt(D). What a scheme adds to it at `logits` (`shaw`), or
      puts in its place (`xpos`), has a factor of its own.
    dtype: to compute the projections in; by default that of input and weights.
    param_dtype: of the weights. The scheme makes its own parameters, float32.
    kernel_init: of the projections.
    bias_init: of their biases.
    model_params: whether this layer holds the parameters that the scheme shares between layers;
      if not, calls must give them.
    model_places: whether the model calls the scheme's `ids` and `embed` before its first layer.
    sharding: names of the axes along M, H (and K) and D, of all weights and of those parameters of
      the scheme that have such axes: axes of the mesh, or names that `nnx.logical_axis_rules` maps
      to them. None annotates nothing. NNX shards annotated weights as it makes them, and needs a
      mesh around the constructor for that, unless `nnx.use_eager_sharding(False)`.
    implementation: as in `attend`.
    keep_rngs: whether the layer keeps a stream for its dropout, forked from the stream `dropout` of
      `rngs`, from which calls without a key draw one. Otherwise it holds no random state.
    rngs: `nnx.Rngs` with a `params` stream.

  Raises:
    TypeError: if an argument is of another type.
    ValueError: if sizes do not fit, a number is out of range, or the scheme has `ids` or `embed`
      without `model_places=True`.

  Example:
    >>> import posjax
    >>> layer = Attention(8, 2, posjax.get('rope'), causal=True, rngs=nnx.Rngs(0))
    >>> x = jnp.ones((1, 3, 8))
    >>> layer(x, jnp.arange(3)).shape
    (1, 3, 8)
    >>> y, cache = layer.extend(x, layer.init_cache(batch=1, capacity=9), jnp.arange(3))
    >>> int(cache.length)
    3
  """

  def __init__(
    self,
    width: int,
    num_heads: int,
    scheme: Scheme = Scheme(),  # noqa: B008 (immutable)
    *,
    head_dim: int | None = None,
    num_kv_heads: int | None = None,
    value_dim: int | None = None,
    qk_norm: str | Norm | None = None,
    latent: Latent | None = None,
    causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None,
    logit_cap: float | None = None,
    sinks: bool = False,
    gated: bool = False,
    use_bias: bool = False,
    out_bias: bool | None = None,
    dropout_rate: float = 0.0,
    scale: float | None = None,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
    kernel_init: nnx.Initializer = nnx.initializers.lecun_normal(),  # noqa: B008
    bias_init: nnx.Initializer = nnx.initializers.zeros_init(),  # noqa: B008
    model_params: bool = True,
    model_places: bool = False,
    deterministic: bool = False,
    sharding: tuple[Axis, Axis, Axis] | None = None,
    implementation: str | None = None,
    keep_rngs: bool = False,
    rngs: nnx.Rngs,
  ):
    sizes = (width, num_heads, scheme, head_dim, num_kv_heads)
    options = (causal, window, logit_cap, dropout_rate, scale, implementation, model_places)
    self.layer = layers.make(*sizes, *options, value_dim=value_dim)
    dims = self.layer.dims
    biases = {'use_bias': use_bias, 'out_bias': out_bias}
    plan = projections.plan(
      dims, self.layer.value_dim, **biases, qk_norm=qk_norm, latent=latent, gated=gated
    )
    switches = {'sinks': sinks, 'model_params': model_params, 'deterministic': deterministic}
    switches['keep_rngs'] = keep_rngs
    arguments.check_weights(dtype, param_dtype, kernel_init, bias_init, sharding, **switches)
    _check_rngs(rngs)
    self.dtype, self.param_dtype, self.deterministic = dtype, param_dtype, deterministic

    def project(each):
      return nnx.LinearGeneral(
        *each.sizes,
        axis=range(-len(each.inputs), 0),
        use_bias=each.use_bias,
        dtype=dtype,
        param_dtype=param_dtype,
        kernel_init=kernel_init,
        bias_init=bias_init,
        kernel_metadata=_metadata(sharding, each.inputs + each.outputs),
        bias_metadata=_metadata(sharding, each.outputs),
        rngs=rngs,
      )

    def norm(weight):
      return HeadNorm(weight.norm, weight.shape, param_dtype, _metadata(sharding, weight.axes))

    self.query = project(plan.linears['query'])
    self.key = project(plan.linears['key'])
    self.value = project(plan.linears['value'])
    self.out = project(plan.linears['out'])
    for name, each in plan.linears.items():
      if not hasattr(self, name):
        setattr(self, name, project(each))
    for name, weight in plan.norms.items():
      setattr(self, name, norm(weight))
    self.sinks = nnx.data(None)
    if sinks:
      zeros = jnp.zeros((dims.num_heads,), param_dtype)
      self.sinks = nnx.Param(zeros, **_metadata(sharding, 'H'))
    made = lambda field: nnx.data(_made(scheme, field, rngs.params(), dims, sharding))
    self.scheme_params = made('init')
    self.model_params = made('init_model') if model_params else nnx.data(None)
    self.rngs = nnx.data(None)
    if keep_rngs and self.layer.dropout_rate:
      self.rngs = _dropout_stream(rngs).fork()

  def __call__(
    self,
    x: Num[Array, 'B T M'],
    pos: Ids,
    *,
    x_kv: Num[Array, 'B S M'] | None = None,
    kv_pos: Ids | None = None,
    segments: Int[Array, '...'] | None = None,
    kv_segments: Int[Array, '...'] | None = None,
    order: Num[Array, '...'] | None = None,
    kv_order: Num[Array, '...'] | None = None,
    past: Tokens | None = None,
    mask: Bool[Array, '...'] | None = None,
    bias: Float[Array, '...'] | None = None,
    model_params: Params | None = None,
    dropout_key: PRNGKey | None = None,
    rngs: nnx.Rngs | nnx.RngStream | None = None,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Attends from `x` to itself, to `past` and itself, or to `x_kv`.

    Args:
      x: what asks.
      pos: ids of `x` after `scheme.ids`, [B, T] or [T] (n axes: [B, T, n] or [T, n]).
      x_kv: what keys and values are made of, for cross-attention; by default `x`.
      kv_pos: ids of `x_kv`.
      segments: document of each token, [B, T] or [T]; 0 is padding.
      kv_segments: the same for `x_kv`.
      order: index of each token in its stream, for causality and windows; by default the ids. A
        scheme that changes ids, or has several per token, needs it.
      kv_order: the same for `x_kv`.
      past: inputs of this layer that come directly before `x`, see `posjax.layers.recurrence`.
      mask: as in `attend`; True may attend.
      bias: as in `attend`, added to the logits.
      model_params: what the scheme shares between layers, instead of the layer's own.
      dropout_key: draws the dropout, where the layer has a dropout rate.
      rngs: streams of which `dropout` gives the key instead; by default the layer's own stream,
        where it keeps one.
      deterministic: whether nothing is dropped; by default as the layer's attribute says.
      return_weights: whether to return the attention weights, too, as in `attend`.

    Returns:
      The layer's output, before any residual; with `return_weights`, this and the weights.

    Raises:
      ValueError: if shapes do not fit, or an argument lacks what it needs: a dropout rate a key,
        say, unless the call is deterministic.
      TypeError: if the mask is not boolean, ids are neither integers nor float32, or an argument is
        of another type.
    """
    queries = Tokens(x, pos, segments, order)
    out = layers.call(
      self.layer,
      self._params(model_params),
      self._heads,
      queries,
      keys_of(x_kv, kv_pos, kv_segments, kv_order),
      past,
      mask=mask,
      bias=bias,
      sinks=self._sinks(),
      dropout_key=self._dropout_key(dropout_key, rngs, deterministic),
      return_weights=return_weights,
    )
    return layers.projected(self._part, queries, out)

  def set_view(self, deterministic: bool | None = None):
    """Sets whether calls drop nothing; `nnx.view` calls this."""
    if deterministic is not None:
      arguments.check_switches(deterministic=deterministic)
      self.deterministic = deterministic

  def init_cache(
    self,
    batch: int,
    capacity: int | None = None,
    *,
    dtype: Any = None,
    pos_dtype: Any = jnp.int32,
    axes: int | None = None,
  ) -> Cache:
    """An empty cache for `extend`; with a window, a ring.

    Args:
      batch: B, rows.
      capacity: C, slots for each row: all the tokens that will come, or, where there is a window,
        at least that, which is the default.
      dtype: of keys and values; by default that of the projections of a float32 input.
      pos_dtype: of the ids, int32 or float32.
      axes: ids per token; by default as the scheme declares, or one.

    Raises:
      TypeError: if an argument is of another type.
      ValueError: if the layer is not causal, the capacity is missing or below the window, or a
        token has another number of ids than the scheme takes.
    """
    if dtype is None:
      dtype = self.dtype or jnp.promote_types(self.param_dtype, jnp.float32)
    return layers.init_cache(self.layer, batch, capacity, dtype, pos_dtype, axes)

  def extend(
    self,
    x: Num[Array, 'B T M'],
    cache: Cache,
    pos: Ids,
    *,
    segments: Int[Array, '...'] | None = None,
    bias: Float[Array, '...'] | None = None,
    model_params: Params | None = None,
  ) -> tuple[Inexact[Array, 'B T M'], Cache]:
    """Appends T tokens to the cache, and attends from them: prefill and decoding alike.

    Nothing is dropped, whatever the dropout rate.

    Args:
      x: the next tokens of each row.
      cache: from `init_cache`, or the last call.
      pos: their ids, after `scheme.ids`. A token sees what comes before it by these ids, as in a
        call without `order`; where they are no order, because the scheme changes them or there
        are several for each token, by the number of tokens so far.
      segments: their documents; by default all in document 1. Padding, on the left of shorter
        rows say, is 0.
      bias: as in a call, for these queries, with a column for each token of the stream, the first
        one first: as many as the cache has slots, or, with a window, as many as there are tokens.
      model_params: as in a call.

    Returns:
      The output for these tokens, and the cache that holds them too. Where the cache was full,
      the output is NaN.

    Raises:
      ValueError: if the layer is not causal, shapes do not fit, or, outside jit, the cache is full.
      TypeError: if ids would lose precision in the cache, or an argument is of another type.
    """
    new, params = Tokens(x, pos, segments), self._params(model_params)
    rest = {'bias': bias, 'sinks': self._sinks()}
    out, cache = layers.extend(self.layer, params, self._heads, new, cache, **rest)
    return layers.projected(self._part, new, out), cache

  def memorize(
    self,
    x_kv: Num[Array, 'B S M'],
    kv_pos: Ids,
    *,
    segments: Int[Array, '...'] | None = None,
    order: Num[Array, '...'] | None = None,
    model_params: Params | None = None,
  ) -> Cache:
    """The keys and values of `x_kv`, projected once for many calls of `read`.

    For cross-attention in decoding: an encoder's output is projected once for a whole sentence. The
    layer need not be causal.

    Args:
      x_kv: what keys and values are made of.
      kv_pos: its ids, after `scheme.ids`.
      segments: its documents; 0 is padding. By default all is document 1.
      order: as `kv_order` in a call.
      model_params: as in a call.

    Returns:
      A full cache, to which `extend` can add nothing.

    Raises:
      ValueError: if shapes do not fit, or a causal layer needs an order.
      TypeError: if an argument is of another type.
    """
    project = self._keys_and_values
    tokens = Tokens(x_kv, kv_pos, segments, order)
    return layers.memorize(self.layer, self._params(model_params), project, tokens)

  def read(
    self,
    x: Num[Array, 'B T M'],
    pos: Ids,
    memory: Cache,
    *,
    segments: Int[Array, '...'] | None = None,
    order: Num[Array, '...'] | None = None,
    mask: Bool[Array, '...'] | None = None,
    bias: Float[Array, '...'] | None = None,
    model_params: Params | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Attends from `x` to what `memorize` returned, as a call with that `x_kv` does.

    Nothing is dropped, whatever the dropout rate. The calls may come token by token, unless the
    scheme sums over the tokens of `x` before them (`forgetting`), which a call cannot see.

    Args:
      x: what asks.
      pos: its ids, after `scheme.ids`.
      memory: from `memorize`.
      segments: its documents; by default all is document 1.
      order: as in a call.
      mask: as in a call.
      bias: as in a call.
      model_params: as in a call.
      return_weights: as in a call.

    Returns:
      As a call.

    Raises:
      ValueError: if shapes do not fit, or a causal layer needs an order.
      TypeError: if an argument is of another type.

    Example:
      >>> layer = Attention(8, 2, rngs=nnx.Rngs(0))
      >>> memory = layer.memorize(jnp.ones((1, 5, 8)), jnp.arange(5))
      >>> layer.read(jnp.ones((1, 3, 8)), jnp.arange(3), memory).shape
      (1, 3, 8)
    """
    queries = Tokens(x, pos, segments, order)
    out = layers.read_memory(
      self.layer,
      self._params(model_params),
      self._queries,
      queries,
      memory,
      mask=mask,
      bias=bias,
      sinks=self._sinks(),
      return_weights=return_weights,
    )
    return layers.projected(self._part, queries, out)

  def _dropout_key(self, given, rngs, deterministic):
    deterministic = self.deterministic if deterministic is None else deterministic
    rate, stream = self.layer.dropout_rate, self.rngs
    if rngs is not None:
      if given is not None:
        raise ValueError('Dropout is drawn by dropout_key or by rngs, but got both.')
      stream = _dropout_stream(rngs)
    if given is None and stream is not None and rate and deterministic is False:
      given = stream()
    return arguments.chosen_key(rate, given, deterministic)

  def _heads(self, x, x_kv):
    return Heads(self._queries(x), *self._keys_and_values(x_kv))

  def _queries(self, x):
    return projections.queries(self._part, x)

  def _keys_and_values(self, x):
    return projections.keys_and_values(self._part, x)

  def _part(self, name):
    return getattr(self, name, None)

  def _sinks(self):
    return None if self.sinks is None else self.sinks[...].astype(jnp.float32)

  def _params(self, given):
    scheme = self.layer.scheme
    own = parameters.unnamed(scheme, _arrays(self.scheme_params))
    held = self.model_params
    held = None if held is None else parameters.unnamed(scheme, _arrays(held))
    return parameters.merged(scheme, own, held, given)


def _check_rngs(rngs: Any) -> None:
  if not isinstance(rngs, nnx.Rngs):
    raise TypeError(
      f'rngs must be nnx.Rngs, but got {type(rngs).__name__}; a key becomes one by nnx.Rngs(key).'
    )
  if 'params' not in rngs and 'default' not in rngs:
    raise ValueError('rngs must have a stream params, as nnx.Rngs(0) has, but got none.')


def _dropout_stream(rngs: Any) -> nnx.RngStream:
  if isinstance(rngs, nnx.RngStream):
    return rngs
  if not isinstance(rngs, nnx.Rngs):
    raise TypeError(f'rngs must be nnx.Rngs or one of its streams, but got {shown(rngs)}.')
  if 'dropout' not in rngs and 'default' not in rngs:
    raise ValueError('rngs must have a stream dropout, as nnx.Rngs(0) has, but got none.')
  return rngs.dropout


def _metadata(sharding: tuple[Axis, Axis, Axis] | None, letters: str) -> dict[str, Any]:
  """The sharding of a weight whose axes are `letters` of MHD, as NNX takes it."""
  return {} if sharding is None else {'out_sharding': parameters.names(sharding, letters)}


def _made(scheme: Scheme, field: str, key: PRNGKey, dims: Dims, sharding: Any) -> dict[str, Any]:
  """The parameters that the scheme's `init` or `init_model` makes, as `_variables`."""
  variables = _variables(scheme, getattr(scheme, field)(key, dims))
  if sharding is None:
    return variables
  letters = parameters.axes(scheme, field, dims)

  def named(variable, letters):
    return type(variable)(variable[...], **_metadata(sharding, letters))

  is_leaf = lambda leaf: isinstance(leaf, nnx.Variable)
  return jax.tree.map(named, variables, parameters.part(letters, variables), is_leaf=is_leaf)


def _variables(scheme: Scheme, params: Params) -> dict[str, Any]:
  """The scheme's parameters as Params and Constants, in plain dicts."""
  trained, fixed = parameters.split_named(scheme, params)
  trained, fixed = jax.tree.map(nnx.Param, trained), jax.tree.map(Constant, fixed)
  return parameters.union(trained, fixed)


def _arrays(variables: dict[str, Any]) -> dict[str, Any]:
  return jax.tree.map(
    lambda variable: variable[...], variables, is_leaf=lambda x: isinstance(x, nnx.Variable)
  )
