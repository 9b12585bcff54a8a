"""A family of models: a record of how its layers attend, and the readers that it holds.

Transformers decides most of it in code, and only the rest is in the configuration: what a
configuration decides is a function of its fields and of the layer's index.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from posjax.interop.fields import Fields
from posjax.interop.layers import type_of
from posjax.interop.tables import Table
from posjax.layers.projections import Norm

Reader = Callable[[Fields, int], Any]  # the fields, and the index of the layer


class Names(NamedTuple):
  """The names of the weights of a layer's attention, and how they lie in fused ones.

  Attributes:
    block: where the attention of layer {} lies, after any prefix; see also `Family.place`.
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
    bare: whether weights are [M, H, D] and their names have no '.weight' at the end, as in XLNet.
    no_bias: the projection that has no bias where the others have one; '' if there is none.
    query_norm: the norm of the queries, where the layer has one.
    key_norm: the norm of the keys.
    sinks: the sinks, where the layer has some.
    beside: names in the block that are no weights of attention: buffers, and what comes after it.
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
  bare: bool = False
  no_bias: str = ''
  query_norm: str = 'q_norm'
  key_norm: str = 'k_norm'
  sinks: str = 'sinks'
  beside: tuple[str, ...] = ('rotary_emb.inv_freq',)

  def weight(self, name: str) -> str:
    """The name of the weight of a projection."""
    return name if self.bare else f'{name}.weight'


def never(fields: Fields, layer: int) -> Any:
  """None, for what a family does not have."""
  return None


class Family(NamedTuple):
  """A family: how its layers attend.

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
    added: what the weights of the norms lack, 1 in Gemma.
    weightless: whether the norms have no weights. Whether they come before RoPE or after it is then
      the same.
    embedded: whether positions are added to the embeddings, so that the layers know none.
    latent: the narrow vectors of which keys and values are made, or None.
    heads: the field that has the number of heads, where it is not a usual one.
    kv_heads: the number of key heads, where num_key_value_heads does not say it.
    chunk: tokens of one chunk, where tokens see no other chunk than their own.
    known: for fields that change attention in a way that is not read, the values that do not.
    tables: the parameters of the scheme among the weights, such as T5's table.
    gated: whether the projection of the queries makes a gate of the output, too.
    place: the numbers that stand in the block of a layer; its index, unless layers have stages.
    sizes: the width of a layer and its heads, where the usual fields do not say them.
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
  added: float = 0.0
  weightless: bool = False
  embedded: bool = False
  latent: Reader = never
  heads: str = ''
  kv_heads: Reader = never
  chunk: Reader = never
  known: tuple[tuple[str, tuple[Any, ...]], ...] = ()
  tables: tuple[Table, ...] = ()
  gated: bool = False
  place: Reader = lambda fields, layer: (layer,)
  sizes: Reader = never

  def block(self, fields: Fields, layer: int) -> str:
    """Where the attention of a layer lies, after any prefix."""
    return self.names.block.format(*self.place(fields, layer))


# Readers. Each returns one.


def always(value: Any) -> Reader:
  """The same for all layers."""
  return lambda fields, layer: value


def flag(name: str) -> Reader:
  """A field that is true or false; null is false."""
  return lambda fields, layer: bool(fields.get(name, bool))


def positive(name: str) -> Reader:
  """A field that is a positive number or null."""
  return lambda fields, layer: fields.positive(name)


def everywhere(fields: Fields, layer: int) -> int | None:
  """The sliding window, in all layers."""
  return fields.size('sliding_window')


def where_sliding(fields: Fields, layer: int) -> int | None:
  """The sliding window, in the layers whose type has one."""
  return everywhere(fields, layer) if type_of(fields, layer) == 'sliding_attention' else None


def heads_norm(
  epsilon: str,
  kind: Any = 'rms',
  heads: Any = 'alike',
  *,
  use_bias: bool = False,
  only: str | None = None,
) -> Reader:
  """A norm of queries and keys, if the field `only` says so; `epsilon` is a field's name."""

  def read(fields: Fields, layer: int) -> Norm | None:
    if only is not None and not fields.get(only, bool):
      return None
    return Norm(kind, fields.needed(epsilon, fields.positive), heads, use_bias)

  return read


_NO = (None, False, 0)  # values of a switch that is off


def off(*names: str) -> tuple[tuple[str, tuple[Any, ...]], ...]:
  """Fields that must be false, since nothing here reads what they turn on."""
  return tuple((name, _NO) for name in names)
