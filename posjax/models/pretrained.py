"""Transformers as published checkpoints have them, made of the same parts as the other models.

They differ from `transformer` in where norms are, in what the embeddings and the readout do, in
feed-forward layers without biases or of several experts, and in layers of which each has its own
scheme and window. A `Plan` says all that, one `BlockPlan` for each layer. Layers that repeat are
stacked, and run by one scan, so that 32 equal layers compile as one.

`posjax.interop.load` makes plans from the configurations of checkpoints, and fills in the weights.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, Inexact, Int

from posjax.layers.cache import Cache
from posjax.layers.projections import Norm
from posjax.layers.tokens import Tokens
from posjax.models import axes
from posjax.models.blocks import Block, FeedForward, Memory, RematPolicy, Stack, by_token
from posjax.models.embedding import Embedded, Positions, Table
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.models.layer_sets import REAL, dropout
from posjax.models.transformer import Transformer
from posjax.nnx import Attention, HeadNorm
from posjax.scheme import Dims, Ids, Scheme

Where = Literal['before', 'around', 'after', 'outside', 'none', 'shared']
PARTS = 'attention', 'cross', 'feed_forward'


class Experts(NamedTuple):
  """Feed-forward layers of which each token takes a few.

  Attributes:
    count: E, of experts.
    active: how many a token takes: those of the largest logits, weighed by their softmax.
    limit: gates are at most this, and what they multiply is between minus this and this.
  """

  count: int
  active: int
  limit: float


class FeedForwardPlan(NamedTuple):
  """A feed-forward layer.

  Attributes:
    width: F.
    activation: a name in `ACTIVATIONS`.
    gated: down(activation(gate(x)) * up(x)) instead of down(activation(up(x))).
    use_bias: whether its maps have biases.
    experts: see `Experts`; None for one layer that all tokens take.
  """

  width: int
  activation: str
  gated: bool = False
  use_bias: bool = False
  experts: Experts | None = None


class BlockPlan(NamedTuple):
  """One layer.

  Attributes:
    attention: arguments of `posjax.nnx.Attention`, as pairs of a name and a value.
    feed_forward: the feed-forward layer.
    norm: all norms of the layer.
    attention_norms: where the norms of attention are: 'before' it (x + part(norm(x))), 'after' it
      (x + norm(part(x))), 'around' it (both), 'outside' (norm(x + part(x))), or 'none'.
    feed_forward_norms: the same of the feed-forward layer; or 'shared' in parallel layers, where it
      reads what attention reads.
    cross: arguments of the cross-attention, for a decoder that reads an encoder; its norms are
      where those of attention are.
    parallel: whether attention and the feed-forward layer both read the layer's input.
  """

  attention: tuple[tuple[str, Any], ...]
  feed_forward: FeedForwardPlan
  norm: Norm
  attention_norms: Where = 'before'
  feed_forward_norms: Where = 'before'
  cross: tuple[tuple[str, Any], ...] | None = None
  parallel: bool = False

  @property
  def scheme(self) -> Scheme:
    """That of self-attention."""
    return dict(self.attention)['scheme']


class EmbeddingPlan(NamedTuple):
  """The embeddings.

  Attributes:
    scale: their factor.
    norm: after positions are added; None for none.
    types: how many types of tokens there are, each with a vector that is added, as in BERT.
  """

  scale: float = 1.0
  norm: Norm | None = None
  types: int = 0


class ReadoutPlan(NamedTuple):
  """The readout.

  Attributes:
    tied: whether its kernel is the table of the embeddings.
    scale: a factor of its input.
    cap: c tanh(logits / c); None for no cap.
    use_bias: whether logits have a bias.
    transform: the activation of a dense layer before it, as in BERT; None for no such layer.
    transform_norm: the norm after that.
    transform_bias: whether that has a bias.
  """

  tied: bool = True
  scale: float = 1.0
  cap: float | None = None
  use_bias: bool = False
  transform: str | None = None
  transform_norm: Norm | None = None
  transform_bias: bool = True


class Plan(NamedTuple):
  """A whole model.

  Attributes:
    vocab: V.
    width: M.
    blocks: one for each layer.
    embedding: the embeddings.
    final_norm: of the last layer's output; None for none.
    readout: the readout; None for a model that has none.
  """

  vocab: int
  width: int
  blocks: tuple[BlockPlan, ...]
  embedding: EmbeddingPlan = EmbeddingPlan()
  final_norm: Norm | None = None
  readout: ReadoutPlan | None = ReadoutPlan()


class Source(NamedTuple):
  """Where a model comes from, as strings, so that models of one folder have one structure.

  Attributes:
    config: the configuration, as JSON.
    own: the line, or the `repr`, of the scheme of each layer's family.
    length: of the longest text, for schemes that depend on it.
    skipped: beginnings of names in the folder that the model does not have.
  """

  config: str
  own: tuple[str, ...]
  length: int | None = None
  skipped: tuple[str, ...] = ()


class Making(NamedTuple):
  """How layers are made.

  Attributes:
    dtype: of parameters and computation; norms, positions and logits are computed in float32.
    dropout_rate: of attention weights and of what each part adds.
    implementation: of attention, as in `posjax.attend`.
    remat: as in `Stack`.
    remat_policy: as in `Stack`.
  """

  dtype: Any = jnp.float32
  dropout_rate: float = 0.0
  implementation: str | None = None
  remat: bool = False
  remat_policy: RematPolicy | None = None

  def norm(self, norm: Norm | None, width: int) -> Any:
    """A norm of the width of the model; None for none."""
    if norm is None:
      return nnx.data(None)
    return HeadNorm(norm, (width,), self.dtype, axes.named(None))

  def linear(self, inputs: int, outputs: int, **options: Any) -> nnx.Linear:
    """A linear layer with parameters of the dtype."""
    made = axes.linear(inputs, outputs, dtype=self.dtype, **options)
    made.param_dtype = self.dtype
    return made

  def attention(self, options: tuple[tuple[str, Any], ...], **more: Any) -> Attention:
    """A layer of attention; the model calls places 0 and 1 of its scheme."""
    return axes.attention(
      Attention,
      **dict(options),
      **more,
      dtype=self.dtype,
      param_dtype=self.dtype,
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
      return nnx.Param(make(rngs.params(), shape, making.dtype), **axes.named(*names))

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
      product = jax.lax.ragged_dot(rows, kernel[...], sizes)
      return product + bias[...][expert]

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
    self.cross = nnx.data(None)
    if plan.cross is not None:
      self.cross = making.attention(plan.cross, rngs=rngs)
    inner = plan.feed_forward
    if inner.experts is None:
      dense = functools.partial(making.linear, use_bias=inner.use_bias)
      activation = ACTIVATIONS[inner.activation]
      self.feed_forward = FeedForward(
        width,
        inner.width,
        activation,
        inner.gated,
        layer_set=REAL._replace(dense=dense),
        rngs=rngs,
      )
    else:
      self.feed_forward = ExpertLayer(width, inner, making, rngs=rngs)
    places = [plan.attention_norms] * (1 if plan.cross is None else 2) + [plan.feed_forward_norms]
    self.norms = nnx.List([Norms(where, plan.norm, width, making) for where in places])
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
    table = lambda rows, names: Table(rows, dims.width, names=names, rngs=rngs)
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
    self.embed = PretrainedEmbedding(schemes, dims, plan.embedding, making, words=words, rngs=rngs)
    make = functools.partial(PretrainedBlock, width=plan.width, making=making)

    def stack(pattern, count):
      again = {'remat': making.remat, 'remat_policy': making.remat_policy}
      return Stack(pattern, count, make=make, norm=None, dtype=making.dtype, **again, rngs=rngs)

    self.stack = Stacks(
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
      zeros = jnp.zeros((plan.vocab,), making.dtype)
      self.logits_bias = nnx.Param(zeros, **axes.named(axes.WORDS))

  @property
  def schemes(self) -> tuple[Scheme, ...]:
    """That of each layer."""
    return tuple(block.scheme for block in self.plan.blocks)

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
      x = by_token(self.transform_norm, ACTIVATIONS[readout.transform](by_token(self.transform, x)))
    x = x * jnp.asarray(readout.scale, x.dtype) if readout.scale != 1 else x
    logits = super()._logits(x)
    if self.logits_bias is not None:
      logits = logits + self.logits_bias[...].astype(logits.dtype)
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


def runs(blocks: Sequence[Any]) -> list[tuple[tuple[Any, ...], int]]:
  """Layers as patterns that repeat: (pattern, layers) for each run, of as few layers as can be.

  Example:
    >>> runs('aaab' * 5 + 'aa')
    [(('a', 'a', 'a', 'b'), 20), (('a',), 2)]
  """
  blocks = tuple(blocks)

  @functools.cache
  def best(start):
    """The number of layers that compile, and the runs, from a layer on."""
    if start == len(blocks):
      return 0, 0, []
    found = []
    for period in range(1, len(blocks) - start + 1):
      pattern = blocks[start : start + period]
      end = start + period
      while blocks[end : end + period] == pattern:
        end += period
      compiled, count, rest = best(end)
      found.append((period + compiled, count + 1, [(pattern, end - start), *rest]))
    return min(found, key=lambda each: each[:2])

  return best(0)[2]


class Lazy(NamedTuple):
  """An array that is computed when it is needed.

  Attributes:
    shape: of the array.
    dtype: of the array.
    read: the array.
  """

  shape: tuple[int, ...]
  dtype: Any
  read: Callable[[], np.ndarray]


Leaf = np.ndarray | Lazy
Leaves = Mapping[tuple[Any, ...], Leaf | Sequence[Leaf]]  # by the path of a parameter


def assemble(
  make: Callable[[], Any],
  leaves: Leaves,
  dtype: Any,
  mesh: Mesh | None,
  may_be_new: Callable[[tuple[Any, ...]], bool],
) -> Any:
  """A model with given weights; each device reads its own part of them, and no other.

  Args:
    make: the constructor of the model. Nothing is made of what it would draw, but for what is not
      given.
    leaves: the weights by their paths; a sequence has one for each of the layers that are stacked.
    dtype: of the weights in the model.
    mesh: of devices, over which weights are cut by the names of their axes; None: one device.
    may_be_new: whether a trained parameter at a path may be drawn anew.

  Raises:
    ValueError: if a shape is another than the model's, or a trained parameter is missing.
  """
  graph, state = nnx.split(nnx.eval_shape(make))
  flat = dict(nnx.to_flat_state(state))
  missing = {path for path in flat if path not in leaves}
  lost = [path for path in missing if isinstance(flat[path], nnx.Param) and not may_be_new(path)]
  if lost:
    names = ', '.join(sorted('.'.join(map(str, path)) for path in lost))
    raise ValueError(f'The folder has no weights for the parameters {names} of the model.')

  def place(path, variable):
    if mesh is None:
      return None
    names = tuple(variable.get_metadata().get('out_sharding') or ())
    return NamedSharding(mesh, axes.spec('.'.join(map(str, path)), variable.shape, names, mesh))

  def new():
    made = dict(nnx.to_flat_state(nnx.state(make())))
    return {path: made[path][...] for path in missing}

  shardings = {path: place(path, flat[path]) for path in missing}
  drawn = jax.jit(new, out_shardings=None if mesh is None else shardings)() if missing else {}
  for path, variable in flat.items():
    if path in missing:
      flat[path] = variable.replace(drawn[path])
    else:
      flat[path] = variable.replace(
        on_devices(path, leaves[path], variable.shape, dtype, place(path, variable))
      )
  return nnx.merge(graph, nnx.from_flat_state(flat))


def on_devices(path, leaf, shape, dtype, sharding):
  """A weight of `Leaves`, as an array of JAX: cut as a sharding says, or on one device.

  Raises:
    ValueError: if it has another shape.
  """
  stacked = isinstance(leaf, list)
  one = leaf[0] if stacked else leaf
  got = (len(leaf), *one.shape) if stacked else tuple(one.shape)
  if got != shape:
    name = '.'.join(map(str, path))
    raise ValueError(f'The weight of {name} must have shape {shape}, but got {got}.')
  read = lambda leaf: leaf.read() if isinstance(leaf, Lazy) else leaf

  def part(index):
    if not stacked:
      return np.asarray(read(leaf)[index], dtype)
    layers, *rest = index
    return np.stack([np.asarray(read(each)[tuple(rest)], dtype) for each in leaf[layers]])

  if sharding is None:
    return jnp.asarray(part((slice(None),) * len(shape)))
  return jax.make_array_from_callback(shape, sharding, part)


def write(model: nnx.Module, leaves: Leaves) -> None:
  """Writes the weights of a model into arrays, which are views of those of a file.

  Raises:
    ValueError: if the model has a trained parameter for which there is no array.
  """
  for path, variable in nnx.to_flat_state(nnx.state(model)):
    if path not in leaves:
      if isinstance(variable, nnx.Param):
        name = '.'.join(map(str, path))
        raise ValueError(f'A checkpoint has no place for the parameter {name} of this model.')
      continue
    leaf, value = leaves[path], variable[...]
    if isinstance(leaf, list):
      for i, each in enumerate(leaf):
        each[...] = np.asarray(value[i])
    else:
      leaf[...] = np.asarray(value)


def rngs(seed: int) -> nnx.Rngs:
  """The streams of a new model."""
  return nnx.Rngs(seed)
