"""The records that say how the configuration and the weights of a family of models are read.

A configuration says only a part of what a model does; transformers decides the rest in code.
Whatever depends on the configuration is a `Reader`: a function of its fields and of the layer.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from posjax.interop.embeddings import Embedded
from posjax.interop.fields import Fields
from posjax.interop.tables import Table
from posjax.layers.projections import Norm
from posjax.scheme import Scheme
from posjax.schemes import none


class Layer(NamedTuple):
  """One layer of a model.

  Attributes:
    index: from 0.
    type: such as 'sliding_attention', where layers of the model have types.
  """

  index: int
  type: str | None = None

  @property
  def slides(self) -> bool:
    """Whether its attention has a sliding window."""
    return self.type == 'sliding_attention'


class Options(NamedTuple):
  """The arguments of `interop.from_hf` besides the configuration; see there."""

  layer: int | None = None
  layer_type: str | None = None
  length: int | None = None
  bidirectional: bool = False
  interleaved: bool | None = None


Reader = Callable[[Fields, Layer], Any]
TypeReader = Callable[[Fields, int], str]
SchemeReader = Callable[['Family', Fields, Options], Scheme]


def never(fields: Fields, layer: Layer) -> Any:
  """None, for what a family does not have."""
  return None


class Names(NamedTuple):
  """The names of the weights of a layer's attention, and their order in fused ones.

  Attributes:
    block: where the attention of layer {} is, after any prefix; see also `Attention.place`.
    query: the projection of the queries; so are `key`, `value` and `out`.
    key: see `query`.
    value: see `query`.
    out: see `query`.
    fused: one projection in the place of the three; '' if there is none.
    grouped: whether a fused projection has, for each key head, its queries, its key and its value.
      If not, it has all queries, all keys and all values.
    order: what a fused projection holds, where it is not grouped.
    shards: how many equal parts a fused projection has, each with some heads of all three.
    transposed: whether weights are [inputs, outputs], as in GPT-2.
    no_weight_suffix: whether weights are [M, H, D], with names that do not end in '.weight', as in
      XLNet.
    no_bias: the projection that has no bias where the others have one; '' if there is none.
    query_norm: the norm of the queries, where the layer has one.
    key_norm: the norm of the keys.
    sinks: the sinks, where the layer has some.
    ignored: beginnings of names in the block that are no weights of its attention, such as buffers
      and the norm that comes after it.
  """

  block: str = 'layers.{}.self_attn'
  query: str = 'q_proj'
  key: str = 'k_proj'
  value: str = 'v_proj'
  out: str = 'o_proj'
  fused: str = ''
  grouped: Callable[[Fields], bool] = lambda fields: False
  order: tuple[str, str, str] = ('query', 'key', 'value')
  shards: int = 1
  transposed: bool = False
  no_weight_suffix: bool = False
  no_bias: str = ''
  query_norm: str = 'q_norm'
  key_norm: str = 'k_norm'
  sinks: str = 'sinks'
  ignored: tuple[str, ...] = ('rotary_emb.inv_freq',)

  def weight(self, name: str) -> str:
    """The name of the weight of a projection."""
    return name if self.no_weight_suffix else f'{name}.weight'


class Attention(NamedTuple):
  """How a layer attends, apart from its scheme, and the names of its weights.

  Attributes:
    names: of the weights.
    bias: whether queries, keys and values have biases.
    out_bias: whether the output has one; None: as the others.
    causal: whether a token sees only what is not after it.
    window: the window of a layer, as `posjax.attend` has it, or None.
    scale: the factor of q . k, or None for 1/sqrt(D).
    logit_cap: the cap of the logits, or None.
    sinks: whether each head has a sink.
    norm: the norm of queries and keys, or None.
    norm_has_weights: whether the norms have weights. Where they have none, it is the same whether
      they come before RoPE or after it.
    latent: the narrow vectors of which keys and values are made, or None.
    heads: the field that has the number of heads, where it is not a usual one.
    kv_heads: the number of key heads, where num_key_value_heads does not say it.
    sizes: the width of a layer and its heads, where the usual fields do not say them.
    chunk: tokens of one chunk, where tokens see no other chunk than their own.
    supported: the values that are supported of fields whose other values are refused. A field of a
      section has its path, as 'attn_config.clip_qkv'.
    tables: the parameters of the scheme among the weights, such as T5's table.
    gated: whether the projection of the queries makes a gate of the output, too.
    place: the numbers that stand in the name of a layer's block: its index, unless layers have
      stages.
  """

  names: Names = Names()
  bias: Reader = never
  out_bias: Reader = never
  causal: Reader = lambda fields, layer: True
  window: Reader = never
  scale: Reader = never
  logit_cap: Reader = never
  sinks: bool = False
  norm: Reader = never
  norm_has_weights: bool = True
  latent: Reader = never
  heads: str = ''
  kv_heads: Reader = never
  sizes: Reader = never
  chunk: Reader = never
  supported: tuple[tuple[str, tuple[Any, ...]], ...] = ()
  tables: tuple[Table, ...] = ()
  gated: bool = False
  place: Reader = lambda fields, layer: (layer.index,)

  def block(self, fields: Fields, layer: Layer) -> str:
    """Where the attention of a layer is, after any prefix."""
    return self.names.block.format(*self.place(fields, layer))


Parts = Mapping[str | None, Attention]


class Rotary(NamedTuple):
  """How queries and keys are rotated, where the configuration does not say it.

  Attributes:
    interleaved: whether the two dimensions of a pair are neighbours, or half a head apart; None if
      that is not known.
    base: the base where a configuration has no rope_theta; None if that is not known, or versions
      of transformers differ about it.
    defaults: values of other fields where a configuration has none.
    layer_bases: by the type of a layer, the field with its base where its own parameters are null.
    in_turn: of M-RoPE, which has three ids for each token, whether the ids take the frequencies in
      turn; transformers decides it by the model. None for models with one id.
    sections: of M-RoPE, where a configuration has none.
    has_alpha: whether the rope type 'dynamic' may have the parameter `alpha`.
    rotates: whether a layer rotates its queries and keys; by its index and its type, which may both
      be None.
    unrotated: the scheme of a layer that does not.
    renamed: the same fields with the usual names and without what `finished` reads.
    finished: the scheme of a layer that rotates, from the scheme that rotates it.
  """

  interleaved: bool | None = None
  base: float | None = None
  defaults: Mapping[str, Any] = MappingProxyType({})
  layer_bases: Mapping[str, str] = MappingProxyType({})
  in_turn: bool | None = None
  sections: tuple[int, ...] | None = None
  has_alpha: bool = False
  rotates: Callable[[Fields, int | None, str | None], bool] = lambda fields, layer, layer_type: True
  unrotated: Callable[[Fields], Scheme] = lambda fields: none.scheme()
  renamed: Callable[[Fields], Fields] = lambda fields: fields
  finished: Callable[[Fields, Scheme], Scheme] = lambda fields, rotating: rotating


class RelativeKeys(NamedTuple):
  """A table of keys by distance, which a layer learns where a field says 'relative_key'.

  Attributes:
    field: which says so.
    reach: the largest distances that the table has a row for, backward and forward.
    descending: whether the rows of a checkpoint are sorted by q_pos - k_pos, not k_pos - q_pos.
  """

  field: str
  reach: Callable[[Fields], tuple[int, int]]
  descending: bool


class Family(NamedTuple):
  """How models of some model types are read. A type whose layers are not known has no parts.

  Attributes:
    parts: the attention of each part of a model; the part of a model that has one is None.
    rotary: how queries and keys are rotated; None where they are not, or that is not known.
    embedded: the positions that are added to the embeddings.
    scheme: the scheme of a model, where it is neither `rotary` nor `embedded` alone.
    layer_type: the type of a layer by its index, where the configuration has no layer_types.
    relative_keys: the table of keys by distance that layers may have.
  """

  parts: Parts = MappingProxyType({})
  rotary: Rotary | None = None
  embedded: Embedded | None = None
  scheme: SchemeReader | None = None
  layer_type: TypeReader | None = None
  relative_keys: RelativeKeys | None = None


# Readers, and functions that return one.


def always(value: Any) -> Reader:
  """The same for all layers."""
  return lambda fields, layer: value


def flag(name: str) -> Reader:
  """A field that is true or false; null is false."""
  return lambda fields, layer: bool(fields.get(name, bool))


def positive(name: str) -> Reader:
  """A field that is a positive number or null."""
  return lambda fields, layer: fields.positive(name)


def everywhere(fields: Fields, layer: Layer) -> int | None:
  """The sliding window, in all layers."""
  return fields.size('sliding_window')


def where_sliding(fields: Fields, layer: Layer) -> int | None:
  """The sliding window, in the layers whose type has one."""
  return everywhere(fields, layer) if layer.slides else None


def heads_norm(
  epsilon: str,
  kind: Any = 'rms',
  heads: Any = 'alike',
  *,
  use_bias: bool = False,
  offset: float = 0.0,
  only: str | None = None,
) -> Reader:
  """A norm of queries and keys, if the field `only` says so; `epsilon` is a field's name."""

  def read(fields: Fields, layer: Layer) -> Norm | None:
    if only is not None and not fields.get(only, bool):
      return None
    return Norm(kind, fields.needed(epsilon, fields.positive), heads, use_bias, offset)

  return read


def off(*names: str) -> tuple[tuple[str, tuple[Any, ...]], ...]:
  """Fields that must be off, null or left out, because what they turn on is not supported."""
  return tuple((name, (None, False, 0)) for name in names)
