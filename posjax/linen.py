"""Attention for Flax Linen: the same layer as `posjax.nnx.Attention`, the same numbers.

All that is trained is in the collection 'params', as plain dicts of arrays. The constants of a
scheme, as ALiBi's slopes, follow from the sizes of the layer: they are made anew where they are
used, so that no program has to carry them and no optimizer sees them. Where variables have a
collection 'constants' (the weights of an nnx layer, say), it is read. Only constants that a scheme
draws at random must be stored there. The cache is an argument and a result, not a collection.
"""

try:
  from flax import linen as nn
  from flax import struct
except ModuleNotFoundError as error:
  if error.name is None or error.name.partition('.')[0] != 'flax':
    raise
  raise ImportError(
    "posjax.linen needs flax, which is not installed: pip install 'posjax[flax]'."
  ) from error

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int, Num

from posjax.layers import arguments, parameters, projections
from posjax.layers import layer as layers
from posjax.layers.cache import Cache
from posjax.layers.hook import attention_fn, numbered, within_cache
from posjax.layers.projections import Latent, Norm
from posjax.layers.tokens import Heads, Tokens, keys_of
from posjax.scheme import Dims, Ids, Params, PRNGKey, Scheme, check_is_scheme

Axis = str | tuple[str, ...] | None  # a mesh axis, several, or none


class HeadNorm(nn.Module):
  """A norm of heads or of narrow vectors, with its weight `scale` and perhaps its `bias`."""

  norm: Norm
  shape: tuple[int, ...]
  param_dtype: Any
  scale_init: Callable[..., Any]
  bias_init: Callable[..., Any]

  @nn.compact
  def __call__(self, x: Inexact[Array, '...']) -> Inexact[Array, '...']:
    """The heads, or the narrow vectors, after the norm."""
    scale, bias = self.param('scale', self.scale_init, self.shape, self.param_dtype), None
    if self.norm.use_bias:
      bias = self.param('bias', self.bias_init, self.shape, self.param_dtype)
    return projections.normalized(self.norm, x, scale, bias)


@struct.dataclass
class AxisNames(nn.LogicallyPartitioned):
  """A weight with the names of its axes, of which `nn.DenseGeneral` can make its kernel."""

  def unbox(self, apply_constraint: bool = True) -> Any:
    """The weight, cut along its axes where Flax has a mesh and rules.

    `nn.DenseGeneral` takes the kernel out while it is flat and does not have these axes yet.
    """
    is_whole = jnp.ndim(self.value) == len(self.names)
    return super().unbox(apply_constraint and is_whole)


class _Holder(nn.Module):
  """A module that holds a scheme's parameters."""

  @nn.nowrap
  def _held(self, scheme, dims, name, field, sharding):
    """The scheme's parameters that its `init` or `init_model` makes: trained ones, and constants.

    Trained ones come from the collections, and so do constants where they are there. Others are
    made anew, if they are the same for every random key.
    """
    make = getattr(scheme, field)
    if self.has_variable('constants', name):
      fixed = self.get_variable('constants', name)
    else:
      fixed = parameters.constants(scheme, field, dims)
    # Constants and parameters that are drawn from one key may depend on each other.
    key = self._key_of_drawn_constants() if fixed is None else None

    def made(i):
      def init(own):  # flax offers a key of its own, and calls this for the shapes later
        return parameters.split_named(scheme, make(own if key is None else key, dims))[i]

      return init

    trained = jax.eval_shape(made(0), jax.random.key(0))
    if trained:
      trained = self.param(name, _annotated(made(0), scheme, dims, field, sharding))
    if fixed is None:
      fixed = self.variable('constants', name, made(1), key).value
    return parameters.unnamed(scheme, parameters.union(trained, fixed))

  @nn.nowrap
  def _key_of_drawn_constants(self):
    if not self.is_mutable_collection('constants'):
      raise ValueError(
        'The scheme draws its constants at random, so that they must be stored, but got no '
        "collection 'constants' next to 'params' (in nn.scan and nn.vmap: variable_axes)."
      )
    return self.make_rng('params')


def _annotated(init, scheme, dims, field, sharding):
  """The initializer of a scheme's trained parameters, whose axes along M, H and D have names."""
  if sharding is None:
    return init
  letters = parameters.axes(scheme, field, dims)

  def named(array, letters):
    return AxisNames(array, parameters.names(sharding, letters))

  def boxed(key):
    trained = init(key)
    return jax.tree.map(named, trained, parameters.part(letters, trained))

  return boxed


class Parameters(_Holder):
  """The parameters that a scheme shares between the layers of a model, held once.

  Give the layers `model_params=False`, and each of their calls `model_params=` what this returns;
  give `AttentionFn` the attribute `model_params`.

  Attributes:
    scheme: any scheme.
    dims: the sizes of the model.
    sharding: as in `Attention`.

  Example:
    >>> import posjax
    >>> shared = Parameters(posjax.get('t5'), Dims(width=8, num_heads=2, head_dim=4))
    >>> shared.init_with_output(jax.random.key(0))[0]['table'].shape
    (32, 2)
  """

  scheme: Scheme
  dims: Dims
  sharding: tuple[Axis, Axis, Axis] | None = None

  @nn.compact
  def __call__(self) -> Params:
    """The parameters of `scheme.init_model`: a dict of arrays; for a chain, a tuple of dicts."""
    check_is_scheme(self.scheme)
    arguments.check_sharding(self.sharding)
    return self._held(self.scheme, self.dims, 'model_params', 'init_model', self.sharding)


class AttentionFn(_Holder):
  """An `attention_fn` for Flax's attention modules that holds and trains its scheme's parameters.

  Tokens are numbered from 0, the queries as the keys, unless ids are given. See
  `posjax.attention_fn` for what Flax's modules may ask for.

  The attributes are the arguments of `posjax.nnx.AttentionFn`, except that

  - `dims` may be left out: they are then those of the queries and keys, with M = H D;
  - `decode` is set where the module's `decode` is set. This module then counts the tokens, in the
    collection 'cache' next to Flax's;
  - `model_params` is what the scheme shares between layers, as from `Parameters`, where the model
    holds it. None: this module holds its own, as a single `AttentionFn` for all layers may.

  Example:
    >>> import posjax
    >>> attention = AttentionFn(posjax.get('t5'), causal=True)
    >>> module = nn.MultiHeadDotProductAttention(2, attention_fn=attention)
    >>> variables = module.init(jax.random.key(0), jnp.ones((1, 3, 8)))
    >>> variables['params']['attention_fn']['model_params']['table'].shape
    (32, 2)
  """

  scheme: Scheme
  dims: Dims | None = None
  q_pos: Any = None
  k_pos: Any = None
  q_order: Any = None
  k_order: Any = None
  q_segments: Any = None
  k_segments: Any = None
  causal: bool = False
  window: Any = None
  implementation: str | None = None
  model_places: bool = False
  decode: bool = False
  sharding: tuple[Axis, Axis, Axis] | None = None
  model_params: Any = None

  @nn.compact
  def __call__(
    self,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    is_causal: bool = False,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    deterministic: bool = True,
    broadcast_dropout: bool = True,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    qk_attn_weights_einsum: Any = None,
    attn_weights_value_einsum: Any = None,
  ) -> Array:
    """The output [*B, T, H, D]; Flax's modules call this with what `posjax.attention_fn` takes."""
    check_is_scheme(self.scheme)
    arguments.check_switches(decode=self.decode)
    arguments.check_sharding(self.sharding)
    sides = ('q_pos', 'k_pos', 'q_order', 'k_order', 'q_segments', 'k_segments')
    given, queries = {name: getattr(self, name) for name in sides}, query.shape[-3]
    start = self._start(queries)
    sides = numbered(given, queries, key.shape[-3], start)
    call = attention_fn(
      self.scheme,
      self._params(query, key),
      **sides,
      causal=self.causal,
      window=self.window,
      implementation=self.implementation,
      model_places=self.model_places,
      frozen=False,
    )
    out = call(
      query,
      key,
      value,
      bias,
      mask,
      is_causal=is_causal,
      dropout_rng=dropout_rng,
      dropout_rate=dropout_rate,
      deterministic=deterministic,
      broadcast_dropout=broadcast_dropout,
      dtype=dtype,
      precision=precision,
      module=module,
      qk_attn_weights_einsum=qk_attn_weights_einsum,
      attn_weights_value_einsum=attn_weights_value_einsum,
    )
    return within_cache(out, start, key.shape[-3])

  @nn.nowrap
  def _params(self, query, key):
    heads, width = query.shape[-2:]
    dims = self.dims or Dims(heads * width, heads, width, key.shape[-2])
    own = self._held(self.scheme, dims, 'scheme_params', 'init', self.sharding)
    if self.model_params is not None:
      return parameters.merged(self.scheme, own, None, self.model_params)
    shared = self._held(self.scheme, dims, 'model_params', 'init_model', self.sharding)
    return parameters.merged(self.scheme, own, shared, None)

  @nn.nowrap
  def _start(self, queries):
    """The number of tokens before these where Flax's module decodes; None where it does not."""
    if not self.decode:
      return None
    begun = self.has_variable('cache', 'index')
    index = self.variable('cache', 'index', jnp.zeros, (), jnp.int32)
    start = index.value
    if not begun:  # a whole row is shown to Flax's modules when they make their caches
      return None
    index.value = start + queries
    return start


class Attention(_Holder):
  """Self- or cross-attention in which a scheme says where position enters.

  x -> q, k, v -> attend -> out. The layer calls places 2 to 4 of its scheme. Places 0 and 1,
  `scheme.ids` and `scheme.embed`, come before the first layer: the model calls them, once, and
  says so by `model_places=True`. A scheme that has them is refused otherwise.

  The attributes are the arguments of `posjax.nnx.Attention`, except that

  - `rngs` and `keep_rngs` are those of `init` and `apply`;
  - `deterministic`, under `nn.remat`, which traces the arguments of calls, must be set here;
  - the names of `sharding` are for `nn.get_partition_spec`: axes of the mesh, or names that
    `nn.logical_to_mesh` and its rules map to them.

  Example:
    >>> import posjax
    >>> layer = Attention(8, 2, posjax.get('rope'), causal=True)
    >>> x, pos = jnp.ones((1, 3, 8)), jnp.arange(3)
    >>> variables = layer.init(jax.random.key(0), x, pos)
    >>> cache = layer.init_cache(batch=1, capacity=9)
    >>> y, cache = layer.apply(variables, x, cache, pos, method='extend')
    >>> y.shape, int(cache.length)
    ((1, 3, 8), 3)
  """

  width: int
  num_heads: int
  scheme: Scheme = Scheme()
  head_dim: int | None = None
  num_kv_heads: int | None = None
  value_dim: int | None = None
  qk_norm: str | Norm | None = None
  latent: Latent | None = None
  causal: bool = False
  window: int | tuple[int | None, int | None] | None = None
  logit_cap: float | None = None
  sinks: bool = False
  use_bias: bool = False
  out_bias: bool | None = None
  dropout_rate: float = 0.0
  scale: float | None = None
  dtype: Any = None
  param_dtype: Any = jnp.float32
  kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
  bias_init: Callable[..., Any] = nn.initializers.zeros_init()
  model_params: bool = True
  model_places: bool = False
  deterministic: bool = False
  sharding: tuple[Axis, Axis, Axis] | None = None
  implementation: str | None = None
  gated: bool = False

  def setup(self):
    """Makes the projections, and the scheme's parameters."""
    switches = {'sinks': self.sinks, 'model_params': self.model_params}
    weights = (self.dtype, self.param_dtype, self.kernel_init, self.bias_init)
    arguments.check_weights(*weights, self.sharding, **switches)
    layer = self._layer()
    dims = layer.dims
    biases = {'use_bias': self.use_bias, 'out_bias': self.out_bias}
    plan = projections.plan(
      dims,
      layer.value_dim,
      **biases,
      qk_norm=self.qk_norm,
      latent=self.latent,
      gated=self.gated,
    )

    def project(each):
      return nn.DenseGeneral(
        each.sizes[1],
        axis=tuple(range(-len(each.inputs), 0)),
        use_bias=each.use_bias,
        dtype=self.dtype,
        param_dtype=self.param_dtype,
        kernel_init=self._annotated(self.kernel_init, each.inputs + each.outputs),
        bias_init=self._annotated(self.bias_init, each.outputs),
      )

    def norm(weight):
      one = nn.initializers.constant(1 - weight.norm.offset)  # a norm begins with a factor of 1
      ones = self._annotated(one, weight.axes)
      zeros = self._annotated(nn.initializers.zeros, weight.axes)
      return HeadNorm(weight.norm, weight.shape, self.param_dtype, ones, zeros)

    self.query = project(plan.linears['query'])
    self.key = project(plan.linears['key'])
    self.value = project(plan.linears['value'])
    self.out = project(plan.linears['out'])
    for name, each in plan.linears.items():
      if name not in ('query', 'key', 'value', 'out'):
        setattr(self, name, project(each))
    for name, weight in plan.norms.items():
      setattr(self, name, norm(weight))
    if self.sinks:
      zeros = self._annotated(nn.initializers.zeros, 'H')
      self.sink_logits = self.param('sinks', zeros, (dims.num_heads,), self.param_dtype)
    self.own = self._held(layer.scheme, dims, 'scheme_params', 'init', self.sharding)
    self.shared = None
    if self.model_params:
      self.shared = self._held(layer.scheme, dims, 'model_params', 'init_model', self.sharding)

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
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Attends from `x` to itself, to `past` and itself, or to `x_kv`.

    Arguments as in `posjax.nnx.Attention`; without a `dropout_key`, the stream 'dropout' of
    `apply(..., rngs={'dropout': key})` gives one. `init` drops nothing.
    """
    layer, queries = self._layer(), Tokens(x, pos, segments, order)
    out = layers.call(
      layer,
      parameters.merged(layer.scheme, self.own, self.shared, model_params),
      self._heads,
      queries,
      keys_of(x_kv, kv_pos, kv_segments, kv_order),
      past,
      mask=mask,
      bias=bias,
      sinks=self._sinks(),
      dropout_key=self._dropout_key(dropout_key, deterministic),
      return_weights=return_weights,
    )
    return layers.projected(self._part, queries, out)

  @nn.nowrap
  def init_cache(
    self,
    batch: int,
    capacity: int | None = None,
    *,
    dtype: Any = None,
    pos_dtype: Any = jnp.int32,
    axes: int | None = None,
  ) -> Cache:
    """An empty cache; arguments as in `posjax.nnx.Attention`. Needs no `apply`."""
    if dtype is None:
      dtype = self.dtype or jnp.promote_types(self.param_dtype, jnp.float32)
    return layers.init_cache(self._layer(), batch, capacity, dtype, pos_dtype, axes)

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
    """Appends T tokens to the cache, and attends from them; as in `posjax.nnx.Attention`."""
    layer = self._layer()
    params = parameters.merged(layer.scheme, self.own, self.shared, model_params)
    new = Tokens(x, pos, segments)
    rest = {'bias': bias, 'sinks': self._sinks()}
    out, cache = layers.extend(layer, params, self._heads, new, cache, **rest)
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
    """The keys and values of `x_kv`, projected once for `read`; as in `posjax.nnx.Attention`."""
    layer = self._layer()
    params = parameters.merged(layer.scheme, self.own, self.shared, model_params)
    project = self._keys_and_values
    return layers.memorize(layer, params, project, Tokens(x_kv, kv_pos, segments, order))

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
    """Attends to what `memorize` returned; as in `posjax.nnx.Attention`."""
    layer = self._layer()
    params = parameters.merged(layer.scheme, self.own, self.shared, model_params)
    queries = Tokens(x, pos, segments, order)
    out = layers.read_memory(
      layer,
      params,
      self._queries,
      queries,
      memory,
      mask=mask,
      bias=bias,
      sinks=self._sinks(),
      return_weights=return_weights,
    )
    return layers.projected(self._part, queries, out)

  @nn.nowrap
  def _layer(self):
    return layers.make(
      width=self.width,
      num_heads=self.num_heads,
      scheme=self.scheme,
      head_dim=self.head_dim,
      num_kv_heads=self.num_kv_heads,
      causal=self.causal,
      window=self.window,
      logit_cap=self.logit_cap,
      dropout_rate=self.dropout_rate,
      scale=self.scale,
      implementation=self.implementation,
      model_places=self.model_places,
      value_dim=self.value_dim,
    )

  def _heads(self, x, x_kv):
    return Heads(self._queries(x), *self._keys_and_values(x_kv))

  def _queries(self, x):
    return projections.queries(self._part, x)

  def _keys_and_values(self, x):
    return projections.keys_and_values(self._part, x)

  @nn.nowrap
  def _part(self, name):
    return getattr(self, name, None)

  def _sinks(self):
    held: Any = self.sink_logits if self.sinks else None
    return None if held is None else held.astype(jnp.float32)

  @nn.nowrap
  def _annotated(self, init, letters):
    if self.sharding is None:
      return init
    names = parameters.names(self.sharding, letters)
    return lambda *arguments: AxisNames(init(*arguments), names)

  def _dropout_key(self, given, deterministic):
    deterministic = self.deterministic if deterministic is None else deterministic
    arguments.check_switches(deterministic=deterministic)
    if self.is_initializing():
      return None
    drops = self.dropout_rate and not deterministic
    if drops and given is None and self.has_rng('dropout'):
      given = self.make_rng('dropout')
    return arguments.chosen_key(self.dropout_rate, given, deterministic)
