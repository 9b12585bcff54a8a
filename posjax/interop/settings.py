"""The settings of a layer: all that it does around its scheme."""

import difflib
import functools
import json
from importlib import resources
from typing import Any, NamedTuple

from posjax.arguments import Size, Whole, read, shown
from posjax.chain import chain
from posjax.interop import latent
from posjax.interop.families import FAMILIES, scheme_of
from posjax.interop.family import Attention, Family, Layer, Options
from posjax.interop.fields import Config, Fields, read_config
from posjax.interop.layers import type_of
from posjax.layers.projections import Latent, Norm
from posjax.scheme import Scheme, declares

_DEPTHS = 'num_hidden_layers', 'n_layer', 'num_layers', 'n_layers', 'encoder_layers'
_WIDTHS = 'hidden_size', 'n_embd', 'd_model', 'dim'
_HEADS = 'num_attention_heads', 'n_head', 'num_heads', 'n_heads'


class Settings(NamedTuple):
  """The attention of one layer. `arguments` has what the layers of posjax take.

  Positions that a model adds to its embeddings are the model's, and not here: see `from_hf`.

  Attributes:
    width: M, of the input and the output.
    num_heads: H, query heads.
    scheme: the positions of this layer.
    head_dim: D.
    num_kv_heads: K, key/value heads.
    causal: whether a token sees only what is not after it.
    window: as `posjax.attend` has it.
    scale: the factor of q . k; None for 1/sqrt(D).
    logit_cap: cap * tanh(logits / cap) before the softmax; None for no cap.
    sinks: whether each head learns a logit that takes its share of the softmax.
    gated: whether the heads are multiplied by the sigmoid of a map of the input.
    use_bias: whether queries, keys and values have biases.
    out_bias: whether the output has one.
    qk_norm: the norm of queries and keys, or None.
    value_dim: the width of a value; None for D.
    latent: the narrow vectors of which keys and values are made, or None.
    chunk: how many tokens make a chunk, where tokens see only their own chunk; the layers do not
      take this: longer texts need `segments=1 + pos // chunk`. None where there are no chunks.
  """

  width: int
  num_heads: int
  scheme: Scheme
  head_dim: int
  num_kv_heads: int
  causal: bool = False
  window: int | None = None
  scale: float | None = None
  logit_cap: float | None = None
  sinks: bool = False
  gated: bool = False
  use_bias: bool = False
  out_bias: bool | None = None
  qk_norm: Norm | None = None
  value_dim: int | None = None
  latent: Latent | None = None
  chunk: int | None = None

  def arguments(self) -> dict[str, Any]:
    """The arguments of `posjax.nnx.Attention` and `posjax.linen.Attention`.

    Example:
      >>> config = {'model_type': 'llama', 'hidden_size': 8, 'num_attention_heads': 2}
      >>> settings = layer(config, 0).arguments()
      >>> settings['causal'], settings['num_heads'], 'sinks' in settings
      (True, 2, False)
    """
    default, taken = self._field_defaults, self._asdict()
    del taken['chunk']
    return {name: v for name, v in taken.items() if name not in default or v != default[name]}


def layer(
  config: Config, index: int, *, part: str | None = None, length: int | None = None
) -> Settings:
  """All that the attention of a layer does: its scheme, its sizes, and what goes with them.

  Args:
    config: the contents of `config.json`, or of its `text_config` for a model of several parts.
    index: of the layer, from 0.
    part: 'encoder', 'decoder', or 'cross' for the decoder's attention to the encoder, for models
      that have these parts.
    length: see `from_hf`.

  Raises:
    ValueError: if the configuration has something that is not supported or not of its type, or an
      argument is missing.
    TypeError: if the configuration is no dict, or another argument not of its type.

  Example:
    >>> settings = layer({'model_type': 'gemma2', 'rope_theta': 1e4}, 0)
    >>> settings.window, settings.num_kv_heads, settings.logit_cap
    (4096, 4, 50.0)
    >>> layer({'model_type': 'gemma2', 'rope_theta': 1e4}, 1).window is None
    True
  """
  length = read(length, Size | None, 'length')
  found = part_of(config, index, part)
  fields, attention, this = found.fields, found.attention, found.layer
  _check_supported(fields, attention)
  width, heads, kv_heads, head_dim = _sizes(fields, attention, this)
  if heads % attention.names.shards:
    raise ValueError(
      f'The heads must be a multiple of {attention.names.shards}, because one projection holds '
      f'them in as many parts, but got {heads}.'
    )
  made_of, value_dim = attention.latent(fields, this), None
  if made_of is not None:
    _, value_dim = latent.widths(fields)
  scheme, family = Scheme(), found.family
  if part != 'cross' and (family.rotary is not None or family.scheme is not None):
    whole = fields if made_of is None else latent.of_whole_heads(fields)
    options = Options(layer=index, length=length, bidirectional=part == 'encoder')
    scheme = _without_embedding(scheme_of(whole, options))
  use_bias = bool(attention.bias(fields, this))
  out_bias = attention.out_bias(fields, this)
  return Settings(
    *(width, heads, scheme, head_dim, kv_heads),
    causal=bool(attention.causal(fields, this)),
    window=attention.window(fields, this),
    scale=attention.scale(fields, this),
    logit_cap=attention.logit_cap(fields, this),
    sinks=attention.sinks,
    gated=attention.gated,
    use_bias=use_bias,
    out_bias=use_bias if out_bias is None else out_bias,
    qk_norm=attention.norm(fields, this),
    value_dim=value_dim,
    latent=made_of,
    chunk=attention.chunk(fields, this),
  )


@functools.cache
def _defaults() -> dict[str, Any]:
  """By model_type, what transformers takes for the fields that a configuration leaves out.

  The fields that are read here are in 'defaults'. 'unread' has those that are not, though they
  change what whole models compute.
  """
  text = resources.files('posjax.interop').joinpath('defaults.json').read_text('utf-8')
  return json.loads(text)


class Part(NamedTuple):
  """A layer of a part of a model, as its configuration and its family describe it.

  Attributes:
    fields: the configuration, with the defaults of transformers.
    family: of the model.
    attention: of the part.
    layer: its index and its type.
  """

  fields: Fields
  family: Family
  attention: Attention
  layer: Layer

  def block(self) -> str:
    """The beginning of the names of the weights, after any prefix."""
    return f'{self.attention.block(self.fields, self.layer)}.'


def part_of(config: Config, index: int, part: str | None) -> Part:
  """The layer of a configuration.

  Raises:
    ValueError: if the model_type is unknown, the part is missing or unknown, or there is no layer
      of the index.
    TypeError: if the configuration is no dict, or another argument not of its type.
  """
  fields = read_config(config)
  index = read(index, Whole, 'The index of a layer')
  part = read(part, str | None, 'part')
  if 'text_config' in config:
    raise ValueError("The model has several parts; its layers are in config['text_config'].")
  kind = fields.get('model_type', str) or ''
  family = FAMILIES.get(kind, Family())
  if not family.parts:
    known = [kind for kind, family in FAMILIES.items() if family.parts]
    near = difflib.get_close_matches(kind, known)
    hint = f'; did you mean one of {near}?' if near else '.'
    raise ValueError(
      f'model_type must be one of the {len(known)} in docs/checkpoints.md whose layers are known, '
      f'but got {fields.get("model_type", str)!r}{hint}'
    )
  fields = with_defaults(fields)
  count = layers_in(fields, part)
  in_stages = 'depths' in fields.values  # whose number num_layers is, in Swin
  if not in_stages and count is not None and index >= count:
    raise ValueError(f'The index must be that of one of the {count} layers, but got {index}.')
  if part not in family.parts:
    raise ValueError(f'part must be one of {list(family.parts)} for {kind}, but got {shown(part)}.')
  return Part(fields, family, family.parts[part], Layer(index, type_of(family, fields, index)))


def with_defaults(fields: Fields) -> Fields:
  """A configuration, with what transformers takes for the fields that it leaves out."""
  defaults = _defaults()['defaults'].get(fields.get('model_type', str) or '', {})
  # A size has no default where the file has it under another name.
  given = {*fields.values}
  there = {other for names in (_WIDTHS, _HEADS, _DEPTHS) if {*names} & given for other in names}
  return Fields({**{name: x for name, x in defaults.items() if name not in there}, **fields.values})


def layers_in(fields: Fields, part: str | None) -> int | None:
  """The number of layers of a part of a model; None where the configuration does not say it."""
  if part in ('decoder', 'cross'):
    own = fields.size('decoder_layers', 'num_decoder_layers')
    if own is not None:
      return own
  return fields.size(*_DEPTHS)


def check_read(fields: Fields) -> None:
  """Refuses a configuration that asks for what no code here reads.

  A field that transformers reads for the model type, and posjax does not, must have the value that
  it has by default.

  Raises:
    ValueError: if one has another value.
  """
  unread = _defaults()['unread'].get(fields.get('model_type', str) or '', {})
  for name, default in unread.items():
    value = fields.values.get(name, default)
    if value != default and value is not None:
      raise fields.refuse(name, f'{default!r}, because other values are not supported')


def _check_supported(fields: Fields, attention: Attention) -> None:
  for path, values in attention.supported:
    *sections, name = path.split('.')
    held = functools.reduce(Fields.section, sections, fields)
    if held.values.get(name) not in values:
      raise held.refuse(name, f'{values[0]}, because other values are not supported')


def _sizes(fields: Fields, attention: Attention, layer: Layer) -> tuple[int, int, int, int]:
  own = attention.sizes(fields, layer)
  if own is not None:
    return own
  width = fields.size(*_WIDTHS)
  heads = fields.size(*([attention.heads] if attention.heads else _HEADS))
  if width is None or heads is None:
    raise ValueError(
      'The configuration needs the width of the model and the number of its heads, but got '
      f'{shown(dict(fields.values))}.'
    )
  kv_heads = attention.kv_heads(fields, layer) or fields.size('num_key_value_heads') or heads
  head_dim = fields.size('head_dim', 'd_kv', 'd_head')
  if attention.latent(fields, layer) is not None:  # whose heads have widths of their own
    head_dim, _ = latent.widths(fields)
  if head_dim is None:
    if width % heads:
      raise ValueError(
        f'The heads must divide the width of the model, but got {heads} and {width}.'
      )
    head_dim = width // heads
  return width, heads, kv_heads, head_dim


def _without_embedding(scheme: Scheme) -> Scheme:
  """The scheme without what it adds to embeddings, which is the model's."""
  parts = scheme.parts or (scheme,)
  return chain(*(part for part in parts if not declares(part, 'embed')))
