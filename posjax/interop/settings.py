"""The settings of a layer: all that it does around its scheme."""

import difflib
import functools
from typing import Any, NamedTuple

from posjax.arguments import Size, Whole, read, shown
from posjax.chain import chain
from posjax.interop import latent
from posjax.interop.defaults import DEFAULTS
from posjax.interop.families import FAMILIES
from posjax.interop.family import Family
from posjax.interop.fields import Config, Fields, read_config
from posjax.interop.positions import of_model
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
      >>> told = layer(config, 0).arguments()
      >>> told['causal'], told['num_heads'], 'sinks' in told
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
    ValueError: if the configuration has something that is not known or not of its type, or an
      argument is missing.
    TypeError: if the configuration is no dict, or another argument not of its type.

  Example:
    >>> told = layer({'model_type': 'gemma2', 'rope_theta': 1e4}, 0)
    >>> told.window, told.num_kv_heads, told.logit_cap
    (4096, 4, 50.0)
    >>> layer({'model_type': 'gemma2', 'rope_theta': 1e4}, 1).window is None
    True
  """
  fields, family = of_family(config, index, part)
  length = read(length, Size | None, 'length')
  _check_known(fields, family)
  width, heads, kv_heads, head_dim = _sizes(fields, family, index)
  if heads % family.names.shards:
    raise ValueError(
      f'The heads must be a multiple of {family.names.shards}, because one projection holds them '
      f'in as many parts, but got {heads}.'
    )
  made_of, value_dim = family.latent(fields, index), None
  if made_of is not None:
    _, value_dim = latent.widths(fields)
  scheme = Scheme()
  if part != 'cross' and not family.embedded:
    turning = fields if made_of is None else latent.of_whole_heads(fields)
    scheme = of_model(turning, layer=index, length=length, bidirectional=part == 'encoder')
    scheme = _without_embedding(scheme)
  use_bias = bool(family.bias(fields, index))
  out_bias = family.out_bias(fields, index)
  return Settings(
    *(width, heads, scheme, head_dim, kv_heads),
    causal=bool(family.causal(fields, index)),
    window=family.window(fields, index),
    scale=family.scale(fields, index),
    logit_cap=family.logit_cap(fields, index),
    sinks=family.sinks,
    gated=family.gated,
    use_bias=use_bias,
    out_bias=use_bias if out_bias is None else out_bias,
    qk_norm=family.norm(fields, index),
    value_dim=value_dim,
    latent=made_of,
    chunk=family.chunk(fields, index),
  )


def of_family(config: Config, index: int, part: str | None) -> tuple[Fields, Family]:
  """The fields of a configuration, with transformers' defaults, and the family of its model.

  Raises:
    ValueError: if the model_type is not known, the part is missing or unknown, or there is no layer
      of the index.
    TypeError: if the configuration is no dict, or another argument not of its type.
  """
  fields = read_config(config)
  index = read(index, Whole, 'The index of a layer')
  part = read(part, str | None, 'part')
  if 'text_config' in config:
    raise ValueError("The model has several parts; its layers are in config['text_config'].")
  kind = fields.get('model_type', str)
  if kind not in FAMILIES:
    near = difflib.get_close_matches(str(kind), FAMILIES)
    hint = f'; did you mean one of {near}?' if near else '.'
    raise ValueError(
      f'model_type must be one of the {len(FAMILIES)} in docs/checkpoints.md whose layers are '
      f'known, but got {kind!r}{hint}'
    )
  # A size has no default where the file has it under another name.
  there = {other for names in (_WIDTHS, _HEADS) if {*names} & {*config} for other in names}
  defaults = {name: x for name, x in DEFAULTS.get(kind, {}).items() if name not in there}
  fields = Fields({**defaults, **fields.values})
  decodes = part in ('decoder', 'cross') and 'decoder_layers' in fields.values
  count = fields.size(*(['decoder_layers'] if decodes else _DEPTHS))
  in_stages = 'depths' in fields.values  # whose number num_layers is, in Swin
  if not in_stages and count is not None and index >= count:
    raise ValueError(f'The index must be that of one of the {count} layers, but got {index}.')
  found = FAMILIES[kind]
  parts: dict[str | None, Family] = {**found} if isinstance(found, dict) else {None: found}
  if part not in parts:
    raise ValueError(f'part must be one of {list(parts)} for {kind}, but got {shown(part)}.')
  return fields, parts[part]


def _check_known(fields: Fields, family: Family) -> None:
  for path, values in family.known:
    *sections, name = path.split('.')
    held = functools.reduce(Fields.section, sections, fields)
    if held.values.get(name) not in values:
      raise held.refuse(name, f'{values[0]}, because what else it does is not read')


def _sizes(fields: Fields, family: Family, index: int) -> tuple[int, int, int, int]:
  told = family.sizes(fields, index)
  if told is not None:
    return told
  width = fields.size(*_WIDTHS)
  heads = fields.size(*([family.heads] if family.heads else _HEADS))
  if width is None or heads is None:
    raise ValueError(
      'The configuration needs the width of the model and the number of its heads, but got '
      f'{shown(dict(fields.values))}.'
    )
  kv_heads = family.kv_heads(fields, index) or fields.size('num_key_value_heads') or heads
  head_dim = fields.size('head_dim', 'd_kv', 'd_head')
  if family.latent(fields, index) is not None:  # whose heads have widths of their own
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
