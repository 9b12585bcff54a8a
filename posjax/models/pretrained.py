"""Transformers as published checkpoints have them, made of the same parts as the other models.

They differ from `transformer` in where norms are, in what the embeddings and the readout do, in
feed-forward layers without biases or of several experts, and in layers of which each has its own
scheme and window. A `Plan` says all that, one `BlockPlan` for each layer. Layers that repeat are
stacked, and run by one scan, so that 32 equal layers compile as one.

`posjax.interop.load` makes plans from the configurations of checkpoints, and fills in the weights.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Inexact, Int

from posjax.layers.cache import Cache
from posjax.layers.projections import Norm
from posjax.layers.tokens import Tokens
from posjax.models import axes
from posjax.models.blocks import Block, FeedForward, Memory, RematPolicy, Stack, by_token
from posjax.models.embedding import Embedded, Positions, Table
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.models.layer_sets import REAL, dropout, is_complex
from posjax.models.plans import (
  BlockPlan,
  EmbeddingPlan,
  FeedForwardPlan,
  Plan,
  Source,
  Where,
  runs,
)
from posjax.models.transformer import Transformer
from posjax.nnx import Attention, HeadNorm
from posjax.scheme import Dims, Ids, Scheme


class Making(NamedTuple):
  """How layers are made.

  Attributes:
    dtype: of the computation; norms, positions and logits are computed in float32.
    param_dtype: of the parameters.
    dropout_rate: of attention weights and of what each part adds.
    implementation: of attention, as in `posjax.attend`.
    remat: as in `Stack`.
    remat_policy: as in `Stack`.
  """

  dtype: Any = jnp.float32
  param_dtype: Any = jnp.float32
  dropout_rate: float = 0.0
  implementation: str | None = None
  remat: bool = False
  remat_policy: RematPolicy | None = None

  def norm(self, norm: Norm | None, width: int) -> Any:
    """A norm of the width of the model; None for none."""
    if norm is None:
      return nnx.data(None)
    return HeadNorm(norm, (width,), self.param_dtype, axes.named(None))

  def linear(self, inputs: int, outputs: int, **options: Any) -> nnx.Linear:
    """A linear layer with parameters of the dtype."""
    own = {'dtype': self.dtype, 'param_dtype': self.param_dtype}
    return axes.linear(inputs, outputs, **own, **options)

  def attention(self, options: tuple[tuple[str, Any], ...], **more: Any) -> Attention:
    """A layer of attention; the model calls places 0 and 1 of its scheme."""
    return axes.attention(
      Attention,
      **dict(options),
      **more,
      dtype=self.dtype,
      param_dtype=self.param_dtype,
      dropout_rate=self.dropout_rate,
      implementation=self.implementation,
    )


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
  'silu': jax.nn.silu,
  'relu': jax.nn.relu,
  'gelu': functools.partial(jax.nn.gelu, approximate=False),
  'gelu_tanh': functools.partial(jax.nn.gelu, approximate=True),
}


class Norms(nnx.Module):
  """The norms of one part of a block; see `BlockPlan`."""

  def __init__(self, where: Where, norm: Norm, width: int, making: Making):
    there = lambda *places: making.norm(norm if where in places else None, width)
    self.before = there('before', 'around')
    self.after = there('after', 'around')
    self.outside = there('outside')

  def add(self, x, part, rate, key):
    """The tokens with what the part adds to them."""
    x = x + self.added(x, part, rate, key)
    return x if self.outside is None else by_token(self.outside, x)

  def added(self, x, part, rate, key):
    """The part's output, as it is added to the tokens."""
    return dropout(self.leave(part(self.enter(x))), rate, key)

  def enter(self, x):
    """The input of the part, after its norm."""
    return x if self.before is None else by_token(self.before, x)

  def leave(self, y):
    """The output of the part, after its norm."""
    return y if self.after is None else by_token(self.after, y)


class ExpertLayer(nnx.Module):
  """Gated feed-forward layers of which each token takes a few, as in gpt-oss.

  Each token's rows are sorted by their experts, so that one product of ragged groups computes all:
  nothing is dropped, and no expert computes for tokens that do not take it. An expert is
  down((up(x) + 1) * gate(x) * sigmoid(1.702 gate(x))), with gates and ups cut at the limit.

  Args:
    width: M.
    plan: of the layer; its experts are there.
    making: how.
    rngs: a stream for `params`.
  """

  def __init__(self, width: int, plan: FeedForwardPlan, making: Making, *, rngs: nnx.Rngs):
    experts: Any = plan.experts
    self.experts, self.dtype = experts, making.dtype
    self.router = making.linear(width, experts.count, rngs=rngs)
    count, inner = experts.count, plan.width

    def made(shape, *names):
      draw = nnx.initializers.lecun_normal(batch_axis=0)
      make = draw if len(shape) == 3 else nnx.initializers.zeros
      return nnx.Param(make(rngs.params(), shape, making.param_dtype), **axes.named(*names))

    self.gate = made((count, width, inner), None, axes.WIDTH, axes.HIDDEN)
    self.up = made((count, width, inner), None, axes.WIDTH, axes.HIDDEN)
    self.down = made((count, inner, width), None, axes.HIDDEN, axes.WIDTH)
    self.gate_bias = made((count, inner), None, axes.HIDDEN)
    self.up_bias = made((count, inner), None, axes.HIDDEN)
    self.down_bias = made((count, width), None, axes.WIDTH)

  def __call__(self, x: Float[Array, 'B T M']) -> Float[Array, 'B T M']:
    """The weighed sum of what each token's experts say."""
    flat, active, limit = x.reshape(-1, x.shape[-1]), self.experts.active, self.experts.limit
    values, chosen = jax.lax.top_k(self.router(flat), active)
    shares = jax.nn.softmax(values, axis=-1)
    order = jnp.argsort(chosen.ravel())  # of pairs of a token and one of its experts
    expert, token = chosen.ravel()[order], order // active
    sizes = jnp.bincount(expert, length=self.experts.count).astype(jnp.int32)

    def apply(rows, kernel, bias):
      product = jax.lax.ragged_dot(rows, kernel[...].astype(self.dtype), sizes)
      return product + bias[...].astype(self.dtype)[expert]

    rows = flat[token]
    gate = jnp.minimum(apply(rows, self.gate, self.gate_bias), limit)
    up = jnp.clip(apply(rows, self.up, self.up_bias), -limit, limit)
    out = apply((up + 1) * gate * jax.nn.sigmoid(1.702 * gate), self.down, self.down_bias)
    weighed = out * shares.ravel()[order, None].astype(out.dtype)
    return jnp.zeros_like(flat).at[token].add(weighed).reshape(x.shape)


class PretrainedBlock(Block):
  """A layer of a checkpoint; called as `Block` is.

  Args:
    plan: of the layer.
    width: M.
    making: how.
    rngs: a stream for `params`.
  """

  def __init__(self, plan: BlockPlan, *, width: int, making: Making, rngs: nnx.Rngs):
    self.attention = making.attention(
      plan.attention, model_params=False, model_places=True, rngs=rngs
    )
    cross = plan.cross
    self.cross = nnx.data(None) if cross is None else making.attention(cross, rngs=rngs)
    self.feed_forward: Any = _feed_forward(width, plan.feed_forward, making, rngs)
    places = [plan.attention_norms] * (1 if plan.cross is None else 2) + [plan.feed_forward_norms]
    self.norms: Any = nnx.List([Norms(where, plan.norm, width, making) for where in places])
    self.parallel, self.dropout_rate = plan.parallel, making.dropout_rate

  def _through(self, parts, x, segments, keys):
    rate = self.dropout_rate
    if not self.parallel:
      for part, norms, key in zip(parts, self.norms, keys, strict=True):
        x = norms.add(x, part, rate, key)
      return x
    attend, feed_forward = parts
    first, second = self.norms
    read = first.enter(x)
    attended = dropout(first.leave(attend(read)), rate, keys[0])
    shared = second.before is None
    said = feed_forward(read if shared else second.enter(x))
    return x + attended + dropout(second.leave(said), rate, keys[1])


def _feed_forward(width: int, plan: FeedForwardPlan, making: Making, rngs: nnx.Rngs) -> nnx.Module:
  if plan.experts is not None:
    return ExpertLayer(width, plan, making, rngs=rngs)
  dense = functools.partial(making.linear, use_bias=plan.use_bias)
  layer_set = REAL._replace(dense=dense)
  activation = ACTIVATIONS[plan.activation]
  return FeedForward(width, plan.width, activation, plan.gated, layer_set=layer_set, rngs=rngs)


class Stacks(nnx.Module):
  """Stacks of layers, one after the other, with the interface of one `Stack`.

  Its `ids`, `model_params` and caches have one entry for each layer, or for each layer of a
  stack's pattern, in their order.
  """

  def __init__(self, stacks: Sequence[Stack], norm: Any):
    self.stacks = nnx.List(stacks)
    self.norm = norm

  def __call__(
    self, embedded: Embedded, *, caches: tuple[Cache, ...] | None = None, **context: Any
  ) -> tuple[Inexact[Array, 'B T M'], Any]:
    """Runs all layers; as a `Stack`, without a past."""
    x, after, layer, slot = embedded.x, [], 0, 0
    memory: Memory | None = context.pop('memory', None)
    train_key = context.pop('train_key', None)
    for i, stack in enumerate(self.stacks):
      count = len(stack.periods)
      mine = slice(layer, layer + count)
      held = slice(slot, slot + count)
      if caches is not None:
        context['caches'] = caches[held]
      if memory is not None and not isinstance(memory.tokens, Tokens):
        own: Any = memory.tokens
        context['memory'] = memory._replace(tokens=own[held])
      elif memory is not None:
        context['memory'] = memory
      given = embedded._replace(
        x=x, ids=embedded.ids[mine], model_params=embedded.model_params[mine]
      )
      key = None if train_key is None else jax.random.fold_in(train_key, i)
      x, more = stack(given, train_key=key, **context)
      if more is not None:
        after.append(more)
      layer, slot = layer + count * stack.repeats, slot + count
    x = x if self.norm is None else by_token(self.norm, x)
    if context.get('return_weights'):
      return x, jax.tree.map(lambda *each: jnp.concatenate(each), *after)
    return x, tuple(each for stack in after for each in stack) or None

  def memorize(self, tokens: Tokens) -> tuple[Cache, ...]:
    """As `Stack.memorize`."""
    return tuple(each for stack in self.stacks for each in stack.memorize(tokens))

  def init_cache(self, batch: int, capacity: int) -> tuple[Cache, ...]:
    """As `Stack.init_cache`."""
    return tuple(each for stack in self.stacks for each in stack.init_cache(batch, capacity))


class PretrainedEmbedding(Positions):
  """Token embeddings with positions, as checkpoints have them; called as `Embedding` is.

  Args:
    schemes: one for each layer.
    dims: sizes of the model.
    plan: of the embeddings.
    making: how.
    words: another embedding with the same table.
    rngs: a stream for `params`.
  """

  def __init__(
    self,
    schemes: Sequence[Scheme],
    dims: Dims,
    plan: EmbeddingPlan,
    making: Making,
    *,
    words: 'PretrainedEmbedding | None' = None,
    rngs: nnx.Rngs,
  ):
    super().__init__(schemes, dims, rngs=rngs)
    own: Any = {'param_dtype': making.param_dtype, 'rngs': rngs}
    table = lambda rows, names: Table(rows, dims.width, names=names, **own)
    self.table = table(dims.vocab, axes.TABLE) if words is None else words.table
    self.types = table(plan.types, axes.WHOLE) if plan.types else nnx.data(None)
    self.norm = making.norm(plan.norm, dims.width)
    self.scale, self.dtype = plan.scale, making.dtype

  def __call__(
    self,
    tokens: Int[Array, 'B T'],
    ids: Sequence[Ids],
    segments: Int[Array, 'B T'] | None = None,
    types: Int[Array, 'B T'] | None = None,
  ) -> Embedded:
    """Place 1: the tokens' embeddings with their positions; without types, all are of type 0."""
    x = self.table(tokens).astype(self.dtype)
    x = x * jnp.asarray(self.scale, self.dtype) if self.scale != 1 else x
    if self.types is not None:
      x = x + self.types(jnp.zeros_like(tokens) if types is None else types).astype(self.dtype)
    embedded = self.add(x, tokens, ids, segments)
    x = embedded.x if self.norm is None else by_token(self.norm, embedded.x)
    return embedded._replace(x=x.astype(self.dtype))


class Pretrained(Transformer):
  """A decoder or an encoder with the weights of a checkpoint; called as `Transformer` is.

  Attributes:
    plan: of the model.
    source: where it comes from; None for a model that comes from nowhere.

  Args:
    plan: of the model.
    making: how layers are made.
    source: where it comes from.
    words: an embedding whose table is that of this model, too.
    rngs: a stream for `params`.

  Raises:
    ValueError: if a scheme makes complex embeddings.
  """

  def __init__(
    self,
    plan: Plan,
    making: Making = Making(),  # noqa: B008 (immutable)
    *,
    source: Source | None = None,
    words: PretrainedEmbedding | None = None,
    rngs: nnx.Rngs,
  ):
    self.plan, self.source, self.dropout_rate = plan, source, making.dropout_rate
    self.layer_set = REAL._replace(dtype=making.dtype, implementation=making.implementation)
    options = dict(plan.blocks[0].attention)
    heads = options['num_heads']
    dims = Dims(
      plan.width,
      heads,
      options.get('head_dim', plan.width // heads),
      options.get('num_kv_heads', heads),
      plan.vocab,
    )
    schemes = [block.scheme for block in plan.blocks]
    if any(is_complex(scheme, dims) for scheme in dict.fromkeys(schemes)):
      raise ValueError('The scheme of a checkpoint must make real embeddings, not complex ones.')
    self.embed: Any = PretrainedEmbedding(
      schemes, dims, plan.embedding, making, words=words, rngs=rngs
    )
    make = functools.partial(PretrainedBlock, width=plan.width, making=making)

    def stack(pattern, count):
      again = {'remat': making.remat, 'remat_policy': making.remat_policy}
      return Stack(pattern, count, make=make, norm=None, dtype=making.dtype, **again, rngs=rngs)

    self.stack: Any = Stacks(
      [stack(*run) for run in runs(plan.blocks)], making.norm(plan.final_norm, plan.width)
    )
    readout = plan.readout
    self.readout = self.transform = self.transform_norm = self.logits_bias = nnx.data(None)
    if readout is None:
      return
    if not readout.tied:
      names = (axes.WIDTH, axes.WORDS)
      self.readout = making.linear(plan.width, plan.vocab, names=names, use_bias=False, rngs=rngs)
    if readout.transform is not None:
      self.transform = making.linear(
        plan.width, plan.width, use_bias=readout.transform_bias, rngs=rngs
      )
      self.transform_norm = making.norm(readout.transform_norm, plan.width)
    if readout.use_bias:
      zeros = jnp.zeros((plan.vocab,), making.param_dtype)
      self.logits_bias = nnx.Param(zeros, **axes.named(axes.WORDS))

  @property
  def schemes(self) -> tuple[Scheme, ...]:
    """The scheme of each layer."""
    return tuple(block.scheme for block in self.plan.blocks)

  @property
  def is_causal(self) -> bool:
    """Whether it is a decoder that predicts the next token."""
    return all(dict(block.attention).get('causal', False) for block in self.plan.blocks)

  def encode_typed(
    self,
    tokens: Int[Array, 'B T'],
    pos: Ids,
    types: Int[Array, 'B T'],
    *,
    segments: Int[Array, 'B T'] | None = None,
  ) -> Inexact[Array, 'B T M']:
    """As `encode`, of tokens that have types, as the two sentences that BERT reads.

    Raises:
      ValueError: if tokens of this model have no types.
    """
    if self.embed.types is None:
      raise ValueError('The tokens of this model have no types.')
    ids = self.ids(jnp.broadcast_to(pos, tokens.shape))
    return self._run(self.embed(tokens, ids, segments, types), None)[0]

  def _logits(self, x):
    readout = self.plan.readout
    if readout is None:
      raise ValueError(
        'This model has no readout: its folder has none. Its `encode` gives the last states.'
      )
    if self.transform is not None:
      activation, norm = ACTIVATIONS[str(readout.transform)], self.transform_norm
      x = by_token(cast(Any, norm), activation(by_token(self.transform, x)))
    x = x * jnp.asarray(readout.scale, x.dtype) if readout.scale != 1 else x
    logits = super()._logits(x)
    if self.logits_bias is not None:
      bias = self.logits_bias[...].astype(logits.dtype)
      logits = logits + jnp.broadcast_to(bias, logits.shape)
    return logits if readout.cap is None else readout.cap * jnp.tanh(logits / readout.cap)


class PretrainedEncoderDecoder(EncoderDecoder):
  """An encoder and a decoder that reads it, with the weights of a checkpoint.

  Args:
    encoder: the plan of the encoder.
    decoder: the plan of the decoder. Both have one table of embeddings.
    making: how layers are made.
    source: where it comes from.
    rngs: a stream for `params`.
  """

  def __init__(
    self,
    encoder: Plan,
    decoder: Plan,
    making: Making = Making(),  # noqa: B008 (immutable)
    *,
    source: Source | None = None,
    rngs: nnx.Rngs,
  ):
    self.source = source
    self.encoder = Pretrained(encoder, making, rngs=rngs)
    self.decoder = Pretrained(decoder, making, words=self.encoder.embed, rngs=rngs)


def rngs(seed: int) -> nnx.Rngs:
  """The streams of a new model."""
  return nnx.Rngs(seed)
