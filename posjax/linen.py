"""Attention for Flax Linen: the same layer as `posjax.nnx.Attention`, the same numbers.

All that is trained lies in the collection 'params', as plain dicts of arrays. The constants of a
scheme, as ALiBi's slopes, follow from the sizes of the layer: they are made anew where they are
used, so that no program has to carry them and no optimizer sees them. Where variables have a
collection 'constants' (the weights of an nnx layer, say), it is read. Only constants that a scheme
draws at random must be stored there. The cache is an argument and a result, not a collection.
"""

try:
  from flax import linen as nn
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
from jaxtyping import Array, Bool, Inexact, Int, Num

from posjax.layers import arguments, parameters, projections
from posjax.layers import layer as layers
from posjax.layers.cache import Cache
from posjax.layers.projections import Norm
from posjax.layers.tokens import Heads, Tokens, keys_of
from posjax.scheme import Ids, Params, PRNGKey, Scheme

Axis = str | tuple[str, ...] | None  # a mesh axis, several, or none


class HeadNorm(nn.Module):
  """The norm of queries or of keys, with its weight `scale` and perhaps its `bias`."""

  norm: Norm
  shape: tuple[int, ...]
  param_dtype: Any
  scale_init: Callable[..., Any]
  bias_init: Callable[..., Any]

  @nn.compact
  def __call__(self, x: Inexact[Array, 'B T H D']) -> Inexact[Array, 'B T H D']:
    """The heads after the norm."""
    scale, bias = self.param('scale', self.scale_init, self.shape, self.param_dtype), None
    if self.norm.use_bias:
      bias = self.param('bias', self.bias_init, self.shape, self.param_dtype)
    return projections.normalized(self.norm, x, scale, bias)


class Attention(nn.Module):
  """Self- or cross-attention in which a scheme says where position enters.

  x -> q, k, v -> attend -> out. The layer calls places 2 to 4 of its scheme. Places 0 and 1,
  `scheme.ids` and `scheme.embed`, come before the first layer: the model calls them, once, and
  says so by `model_places=True`. A scheme that has them is refused otherwise.

  Attributes:
    width: M, of the input and the output.
    num_heads: H, query heads.
    scheme: any `Scheme`; the default knows no positions.
    head_dim: D; by default M / H.
    num_kv_heads: K, key/value heads; by default H.
    value_dim: E, the width of a value; by default D.
    qk_norm: 'rms' or 'layer' normalizes each query and each key after its projection, before the
      scheme turns it, with one learned weight [D] for all heads; a `Norm` says more. None does
      nothing.
    causal: whether a token sees only what is not after it.
    window: how many tokens back a token sees, itself included.
    logit_cap: cap * tanh(logits / cap) before the softmax.
    sinks: whether each head learns a logit that takes its share of the softmax.
    use_bias: whether the projections have biases.
    out_bias: whether the output projection has one; by default as `use_bias` says.
    dropout_rate: share of the attention weights dropped in calls, unless they are deterministic.
    scale: factor of q . k; by default 1/sqrt(D). What a scheme adds to it at `logits` (`shaw`), or
      puts in its place (`xpos`), has a factor of its own.
    dtype: to compute the projections in; by default that of input and weights.
    param_dtype: of the weights. The scheme makes its own parameters, float32.
    kernel_init: of the projections.
    bias_init: of their biases.
    model_params: whether this layer holds the parameters that the scheme shares between layers;
      if not, calls must give them.
    model_places: whether the model calls the scheme's `ids` and `embed` before its first layer.
    deterministic: whether calls drop nothing, unless they say otherwise. Under `nn.remat`, which
      traces the arguments of calls, it must be set here.
    sharding: names of the mesh axes along M, H (and K) and D, for `nn.get_partition_spec`; None
      annotates nothing.
    implementation: as in `attend`.

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
  causal: bool = False
  window: int | None = None
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

  def setup(self):
    """Makes the projections, and the scheme's parameters."""
    switches = {'sinks': self.sinks, 'model_params': self.model_params}
    weights = (self.dtype, self.param_dtype, self.kernel_init, self.bias_init)
    arguments.check_weights(*weights, self.sharding, **switches)
    layer = self._layer()
    dims = layer.dims
    biases = {'use_bias': self.use_bias, 'out_bias': self.out_bias}
    plan = projections.plan(dims, layer.value_dim, **biases, qk_norm=self.qk_norm)
    for name, each in plan.linears.items():
      linear = nn.DenseGeneral(
        each.sizes[1],
        axis=tuple(range(-len(each.inputs), 0)),
        use_bias=each.use_bias,
        dtype=self.dtype,
        param_dtype=self.param_dtype,
        kernel_init=self._annotated(self.kernel_init, each.inputs + each.outputs),
        bias_init=self._annotated(self.bias_init, each.outputs),
      )
      setattr(self, name, linear)
    for name, shape in plan.norms.items():
      letters = 'HD'[-len(shape) :]
      ones, zeros = (
        self._annotated(init, letters) for init in (nn.initializers.ones, nn.initializers.zeros)
      )
      setattr(self, name, HeadNorm(plan.norm, shape, self.param_dtype, ones, zeros))
    if self.sinks:
      zeros = self._annotated(nn.initializers.zeros, 'H')
      self.sink_logits = self.param('sinks', zeros, (dims.num_heads,), self.param_dtype)
    self.own = self._held('scheme_params', 'init')
    self.shared = None
    if self.model_params:
      self.shared = self._held('model_params', 'init_model')

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
    model_params: Params | None = None,
    dropout_key: PRNGKey | None = None,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Attends from `x` to itself, to `past` and itself, or to `x_kv`.

    Arguments as in `posjax.nnx.Attention`; without a `dropout_key`, the stream 'dropout' of
    `apply(..., rngs={'dropout': key})` gives one. `init` drops nothing.
    """
    layer = self._layer()
    out = layers.call(
      layer,
      parameters.merged(layer.scheme, self.own, self.shared, model_params),
      self._heads,
      Tokens(x, pos, segments, order),
      keys_of(x_kv, kv_pos, kv_segments, kv_order),
      past,
      mask=mask,
      sinks=self._sinks(),
      dropout_key=self._dropout_key(dropout_key, deterministic),
      return_weights=return_weights,
    )
    return layers.projected(self.out, out)

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
    model_params: Params | None = None,
  ) -> tuple[Inexact[Array, 'B T M'], Cache]:
    """Appends T tokens to the cache, and attends from them; as in `posjax.nnx.Attention`."""
    layer = self._layer()
    params = parameters.merged(layer.scheme, self.own, self.shared, model_params)
    new = Tokens(x, pos, segments)
    out, cache = layers.extend(layer, params, self._heads, new, cache, sinks=self._sinks())
    return self.out(out), cache

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
    project = lambda x: (self._keys(x), self.value(x))
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
    model_params: Params | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Attends to what `memorize` returned; as in `posjax.nnx.Attention`."""
    layer = self._layer()
    params = parameters.merged(layer.scheme, self.own, self.shared, model_params)
    new, rest = Tokens(x, pos, segments, order), {'mask': mask, 'return_weights': return_weights}
    out = layers.read_memory(layer, params, self._queries, new, memory, sinks=self._sinks(), **rest)
    return layers.projected(self.out, out)

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
    return Heads(self._queries(x), self._keys(x_kv), self.value(x_kv))

  def _queries(self, x):
    return self.query(x) if self.qk_norm is None else self.query_norm(self.query(x))

  def _keys(self, x):
    return self.key(x) if self.qk_norm is None else self.key_norm(self.key(x))

  def _sinks(self):
    held: Any = self.sink_logits if self.sinks else None
    return None if held is None else held.astype(jnp.float32)

  @nn.nowrap
  def _annotated(self, init, letters):
    if self.sharding is None:
      return init
    names: Any = tuple(self.sharding['MHD'.index(letter)] for letter in letters)
    return nn.with_partitioning(init, names)

  def _dropout_key(self, given, deterministic):
    deterministic = self.deterministic if deterministic is None else deterministic
    arguments.check_switches(deterministic=deterministic)
    if self.is_initializing():
      return None
    drops = self.dropout_rate and not deterministic
    if drops and given is None and self.has_rng('dropout'):
      given = self.make_rng('dropout')
    return arguments.chosen_key(self.dropout_rate, given, deterministic)

  @nn.nowrap
  def _held(self, name, field):
    """The scheme's parameters that its `init` or `init_model` makes: trained ones, and constants.

    Trained ones come from the collections, and so do constants where they are there. Others are
    made anew, if they are the same for every random key.
    """
    dims, make = self._layer().dims, getattr(self.scheme, field)
    if self.has_variable('constants', name):
      fixed = self.get_variable('constants', name)
    else:
      fixed = parameters.constants(self.scheme, field, dims)
    # Constants and parameters that are drawn from one key may depend on each other.
    key = self._key_of_drawn_constants() if fixed is None else None

    def made(i):
      def init(own):  # flax offers a key of its own, and calls this for the shapes later
        return parameters.split_named(self.scheme, make(own if key is None else key, dims))[i]

      return init

    trained = jax.eval_shape(made(0), jax.random.key(0))
    if trained:
      trained = self.param(name, made(0))
    if fixed is None:
      fixed = self.variable('constants', name, made(1), key).value
    return parameters.unnamed(self.scheme, parameters.union(trained, fixed))

  @nn.nowrap
  def _key_of_drawn_constants(self):
    if not self.is_mutable_collection('constants'):
      raise ValueError(
        'The scheme draws its constants at random, so that they must be stored, but got no '
        "collection 'constants' beside 'params' (in nn.scan and nn.vmap: variable_axes)."
      )
    return self.make_rng('params')
