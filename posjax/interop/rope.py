"""The rotary part of a Hugging Face configuration: rope types, layouts, widths, defaults.

For each rope type there is one function: it reads the parameters of the type and returns the
constructor of its scheme, to which `rotary` passes base, fraction and layout, because these are
read alike for all types. What differs by the family is in its record `Rotary`; those of its
functions that one or two families have are at the end.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp

from posjax.arguments import NonNegative, Size, shown
from posjax.chain import chain
from posjax.interop.family import Family, Options, Rotary, SchemeReader
from posjax.interop.fields import Fields
from posjax.interop.layers import check_alike, type_of
from posjax.layers.projections import Norm, normalized
from posjax.math import angles
from posjax.scheme import Scheme, Values
from posjax.schemes import (
  axial_rope,
  dynamic_ntk,
  floor_log,
  llama3,
  longrope,
  mrope,
  none,
  ntk,
  partial,
  rope,
  yarn,
)

_SECTIONED = 'default', 'mrope', 'linear', 'yarn'  # the rope types that M-RoPE may have


def rotary(family: Family, fields: Fields, options: Options) -> Scheme:
  """The scheme of a model that rotates queries and keys.

  Raises:
    ValueError: if the configuration has something that is not supported, or an option is missing.

  Example:
    >>> from posjax.scheme import places
    >>> llama = Family(rotary=Rotary(interleaved=False, base=10000.0))
    >>> places(rotary(llama, Fields({'model_type': 'llama'}), Options()))
    ('query', 'key')
  """
  known = family.rotary or Rotary()
  fields = Fields({**known.defaults, **fields.values})
  usual = known.renamed(fields)
  interleaved = _interleaved(usual, known, options.interleaved)
  if family.rotary is None:
    check_alike(fields)
  layer_type = options.layer_type
  if options.layer is not None and layer_type is None:
    layer_type = type_of(family, fields, options.layer)
  if not known.rotates(fields, options.layer, layer_type):
    return known.unrotated(fields)
  parameters = _parameters(usual, known, layer_type)
  return known.finished(fields, _rotating(usual, known, parameters, options.length, interleaved))


def _rotating(
  fields: Fields, known: Rotary, parameters: Fields, length: int | None, interleaved: bool
) -> Scheme:
  """The scheme of a layer that rotates its queries and keys."""
  if parameters.values.get('mrope_section') is None and known.sections is not None:
    sections = {'mrope_section': known.sections}
    parameters = Fields({**parameters.values, **sections}, parameters.path)
  if parameters.values.get('mrope_section') is not None:
    return _multimodal(parameters, fields, known, interleaved)
  if known.in_turn is not None:
    raise ValueError(
      f'{fields.values["model_type"]} needs {parameters.path}mrope_section, but got '
      f'{shown(dict(parameters.values))}.'
    )
  kind = _rope_type(parameters)
  if kind not in _MAKERS:
    raise ValueError(f'The rope type must be one of {sorted(_MAKERS)}, but got {kind!r}.')
  by_alpha = known.has_alpha and kind == 'dynamic' and parameters.values.get('alpha') is not None
  maker, reads = _BY_ALPHA if by_alpha else _MAKERS[kind]
  _refuse_unknown(parameters, {'partial_rotary_factor', *reads}, f'The rope type {kind!r}')
  common = {'base': _base(fields, known, parameters), 'interleaved': interleaved}
  if kind != 'proportional':
    common['fraction'] = _fraction(fields, parameters)
  return maker(parameters, fields, length)(**common)


def _multimodal(parameters: Fields, fields: Fields, known: Rotary, interleaved: bool) -> Scheme:
  """M-RoPE, with three ids for each token, whatever the rope type is called."""
  kind = _rope_type(parameters)
  if interleaved or kind not in _SECTIONED:
    raise ValueError(
      f'M-RoPE must have one of the rope types {list(_SECTIONED)}, and pairs half a head apart, '
      f'but got {shown(dict(parameters.values))} of {fields.values.get("model_type")!r}.'
    )
  reads = {
    'mrope_section',
    'mrope_interleaved',
    'partial_rotary_factor',
    *_MAKERS.get(kind, _MAKERS['default'])[1],
  }
  _refuse_unknown(parameters, reads, 'M-RoPE')
  sections = parameters.get('mrope_section', list[Size])
  in_turn = parameters.get('mrope_interleaved', bool, bool(known.in_turn))
  if known.in_turn not in (None, in_turn):
    raise parameters.refuse(
      'mrope_interleaved', f'{known.in_turn} for {fields.values["model_type"]}'
    )
  _check_sections(sections, fields, parameters)
  base = _base(fields, known, parameters)
  return mrope.scheme(
    sections, base, in_turn, *_scaled(parameters, fields, 2 * sum(sections), base)
  )


def _check_sections(sections: Sequence[int], fields: Fields, parameters: Fields) -> None:
  """Raises ValueError unless the sections have as many pairs as the rotated part of a head."""
  share = _share(fields, parameters)
  if share not in (None, 1) and int(_head_dim(fields) * share) != 2 * sum(sections):
    raise parameters.refuse(
      'mrope_section', f'those of {int(_head_dim(fields) * share) // 2} pairs'
    )


def _scaled(
  parameters: Fields, fields: Fields, width: int, base: float
) -> tuple[list[float] | None, float]:
  """M-RoPE's frequencies where they are scaled, and the factor of queries and keys."""
  kind = _rope_type(parameters)
  if kind == 'linear':
    factor = parameters.needed('factor', parameters.positive)
    return (angles.frequencies(width, base) / factor).tolist(), 1.0
  if kind != 'yarn':
    return None, 1.0
  made = _yarn(parameters, fields, None)
  factor, original = made.args
  given = dict(made.keywords)
  names = 'beta_fast', 'beta_slow', 'truncate'
  shape = {name: given[name] for name in names if name in given}
  grown = given.get('attention_factor')
  if grown is None:
    both = {name: given[name] for name in ('mscale', 'mscale_all_dim') if name in given}
    grown = yarn.magnitude(factor, **both)
  return yarn.frequencies(width, factor, original, base, **shape).tolist(), grown


def _rope_type(parameters: Fields) -> str:
  older = parameters.get('type', str, 'default')
  return parameters.get('rope_type', str, older)


def _refuse_unknown(parameters: Fields, known: set[str], owner: str) -> None:
  known = {'rope_type', 'type', 'rope_theta', *known}
  there = [str(name) for name, value in parameters.values.items() if value is not None]
  unknown = sorted(set(there) - known)
  if unknown:
    got = shown(dict(parameters.values), longest=200)
    raise ValueError(f'{owner} has no parameter {" and ".join(unknown)}, but got {got}.')


def _parameters(fields: Fields, known: Rotary, layer_type: str | None) -> Fields:
  """The parameters of RoPE for one type of layers, from the old or the new form of configurations.

  The old form has one key for each parameter; the new form has a dict, which may have one dict for
  each type of layers.
  """
  new, old = fields.section('rope_parameters'), fields.section('rope_scaling')
  if new.values and old.values and new.values != old.values:
    raise ValueError(
      'The configuration must have rope_parameters or rope_scaling, but got both, and they differ: '
      f'{shown(dict(new.values))} and {shown(dict(old.values))}.'
    )
  parameters = old if old.values else new
  local = fields.positive('rope_local_base_freq', 'local_rope_theta')
  if local is not None and not _layered(parameters):
    whole = {'rope_theta': fields.positive('rope_theta', 'global_rope_theta'), **parameters.values}
    each = {'full_attention': whole, 'sliding_attention': {'rope_theta': local}}
    parameters = Fields(each, parameters.path)
  if not _layered(parameters):
    return parameters
  if layer_type not in parameters.values:
    raise ValueError(
      f'Layers differ: layer_type must be one of {list(parameters.values)}, but got '
      f'{shown(layer_type)}.'
    )
  return _of_layers(fields, known, parameters, layer_type)


def _of_layers(fields: Fields, known: Rotary, parameters: Fields, layer_type: str) -> Fields:
  if parameters.values[layer_type] is not None:
    return parameters.section(layer_type)
  name = known.layer_bases.get(layer_type)
  if name is None:
    raise parameters.refuse(layer_type, 'a dict, because layers without RoPE are not supported')
  return Fields(
    {'rope_theta': fields.needed(name, fields.positive)}, f'{parameters.path}{layer_type}.'
  )


def _layered(parameters: Fields) -> bool:
  """Whether the parameters are one dict for each type of layers."""
  there = {name: value for name, value in parameters.values.items() if value is not None}
  dicts = [name for name, value in there.items() if isinstance(value, Mapping)]
  if dicts and len(dicts) < len(there):
    raise parameters.refuse(dicts[0], 'no dict, because not all of the other parameters are dicts')
  return bool(dicts)


def _base(fields: Fields, known: Rotary, parameters: Fields) -> float:
  inner, outer = parameters.positive('rope_theta'), fields.positive('rope_theta', 'rotary_emb_base')
  if inner is None and outer != (fields.positive('rotary_emb_base') or outer):
    raise fields.refuse('rotary_emb_base', f'its rope_theta, {outer}')
  found = next((base for base in (inner, outer, known.base) if base is not None), None)
  if found is None:
    kind = fields.values.get('model_type')
    raise ValueError(
      f'The configuration needs rope_theta, because the default of {kind!r} is not known, but '
      'got none.'
    )
  return found


def _interleaved(fields: Fields, known: Rotary, given: bool | None) -> bool:
  own = fields.get('rope_interleave', bool, fields.get('rotary_emb_interleaved', bool))
  if given is not None:
    return given
  if known.interleaved is None:
    kind = fields.get('model_type', str)
    raise ValueError(
      f'The positions of the model_type {kind!r} are not known. If it rotates queries and keys, '
      'give interleaved: True if the dimensions of a pair are neighbours, False if they are half '
      'a head apart.'
    )
  return known.interleaved if own is None else own


def _fraction(fields: Fields, parameters: Fields) -> float:
  """The share of a head that is rotated, rounded to whole dimensions as transformers does."""
  width = fields.size('rotary_dim')
  share = _share(fields, parameters)
  share = 1.0 if share is None else share
  if width is None and share == 1:
    return 1.0
  head_dim = _head_dim(fields)
  width = int(head_dim * share) if width is None else width
  if not 0 < width <= head_dim or width % 2:
    raise ValueError(
      'The configuration must rotate an even number of the dimensions of each head, but got '
      f'{width} of {head_dim}.'
    )
  return width / head_dim


def _share(fields: Fields, parameters: Fields) -> float | None:
  """The share of a head that is rotated, where the configuration has it."""
  places = (
    (parameters, 'partial_rotary_factor'),
    (fields, 'partial_rotary_factor'),
    (fields, 'rotary_pct'),
    (fields, 'rotary_emb_fraction'),
  )
  found = None
  for place, name in places:
    share = place.get(name, float)
    if share is not None and not 0 <= share <= 1:
      raise place.refuse(name, 'in 0 .. 1')
    found = share if found is None else found
  return found


def _head_dim(fields: Fields) -> int:
  head_dim = fields.size('qk_rope_head_dim', 'head_dim')
  if head_dim is not None:
    return head_dim
  width, heads = fields.size('hidden_size', 'n_embd'), fields.size('num_attention_heads', 'n_head')
  if width is None or heads is None:
    raise ValueError(
      'A part of each head is rotated, but the configuration has no width of a head.'
    )
  if width % heads:
    raise ValueError(f'The heads must divide the width of the model, but got {heads} and {width}.')
  return width // heads


def _original(parameters: Fields, fields: Fields) -> int | None:
  """The length in training, in tokens, where the configuration has it."""
  inner, outer = parameters.size(_LENGTH), fields.size(_LENGTH)
  if None not in (inner, outer) and inner != outer:
    raise ValueError(f'The configuration must have one {_LENGTH}, but got {inner} and {outer}.')
  return outer if inner is None else inner


def _original_or_longest(parameters: Fields, fields: Fields) -> int:
  """The length in training; that of the longest text, where there is no other."""
  found = _original(parameters, fields)
  return fields.needed('max_position_embeddings', fields.size) if found is None else found


def _factor(parameters: Fields, fields: Fields) -> float:
  """The extension of the model: the `factor` of the configuration, or the ratio of its lengths."""
  factor, original = parameters.positive('factor'), _original(parameters, fields)
  if factor is not None:
    return factor
  if original is None:
    raise ValueError(
      f'The configuration needs {parameters.path}factor or {_LENGTH}, but got '
      f'{shown(dict(parameters.values))}.'
    )
  return fields.needed('max_position_embeddings', fields.size) / original


def _declared(length: int | None, kind: str) -> int:
  if length is None:
    raise ValueError(f'{kind} depends on the length of the text: give length, in tokens.')
  return length


def _default(parameters, fields, length):
  return rope.scheme


def _linear(parameters, fields, length):
  return functools.partial(rope.scheme, factor=parameters.needed('factor', parameters.positive))


def _dynamic(parameters, fields, length):
  length = _declared(length, 'Dynamic NTK')
  original = fields.needed('max_position_embeddings', fields.size)
  return functools.partial(
    dynamic_ntk.scheme, length, original, parameters.needed('factor', parameters.positive)
  )


def _alpha(parameters, fields, length):
  return functools.partial(ntk.scheme, parameters.needed('alpha', parameters.positive))


def _yarn(parameters, fields, length):
  names = 'beta_fast', 'beta_slow', 'attention_factor'
  given = {
    name: parameters.positive(name) for name in names if parameters.values.get(name) is not None
  }
  both = {name: parameters.get(name, float) for name in ('mscale', 'mscale_all_dim')}
  for name, value in both.items():
    if value is not None and value < 0:
      raise parameters.refuse(name, 'a number of at least 0')
  if all(both.values()):
    given |= both
  given['truncate'] = parameters.get('truncate', bool, True)
  lengths = _factor(parameters, fields), _original_or_longest(parameters, fields)
  return functools.partial(yarn.scheme, *lengths, **given)


def _longrope(parameters, fields, length):
  length, original = _declared(length, 'LongRoPE'), _original(parameters, fields)
  if original is None:
    raise ValueError(
      f'The configuration needs {_LENGTH}, but got {shown(dict(parameters.values))}.'
    )
  reading = functools.partial(parameters.get, kind=list[float])
  short, long = (parameters.needed(f'{which}_factor', reading) for which in ('short', 'long'))
  by_length = parameters.positive('short_mscale'), parameters.positive('long_mscale')
  scale = parameters.positive('attention_factor')
  return functools.partial(
    longrope.scheme,
    *(length, original, short, long),
    extension=_factor(parameters, fields),
    attention_factor=by_length[length > original] if scale is None else scale,
  )


def _llama3(parameters, fields, length):
  factor, low, high = (
    parameters.needed(name, parameters.positive)
    for name in ('factor', 'low_freq_factor', 'high_freq_factor')
  )
  return functools.partial(
    llama3.scheme,
    factor=factor,
    original_length=_original_or_longest(parameters, fields),
    low_frequency_factor=low,
    high_frequency_factor=high,
  )


def _proportional(parameters, fields, length):
  share = _share(fields, parameters)
  factor = parameters.positive('factor')
  return functools.partial(
    partial.scheme, 1.0 if share is None else share, factor=1.0 if factor is None else factor
  )


_LENGTH = 'original_max_position_embeddings'
_SEARCHED = ('short_factor', 'long_factor', 'short_mscale', 'long_mscale', 'attention_factor')
_SCALED = ('beta_fast', 'beta_slow', 'mscale', 'mscale_all_dim', 'attention_factor', 'truncate')
# For each rope type, the function that returns its constructor, and the parameters that it reads.
_MAKERS: dict[str, tuple[Callable[..., Callable[..., Scheme]], tuple[str, ...]]] = {
  'default': (_default, ()),
  'linear': (_linear, ('factor',)),
  'dynamic': (_dynamic, ('factor',)),
  'yarn': (_yarn, ('factor', _LENGTH, 'finetuned', *_SCALED)),
  'longrope': (_longrope, ('factor', _LENGTH, *_SEARCHED)),
  'su': (_longrope, ('factor', _LENGTH, *_SEARCHED)),  # the former name of longrope
  'llama3': (_llama3, ('factor', _LENGTH, 'low_freq_factor', 'high_freq_factor')),
  'proportional': (_proportional, ('factor',)),
}
# HunYuan's type 'dynamic', with which its files have parameters of YaRN that it does not use.
_BY_ALPHA = (*(_alpha, ('alpha', 'factor', 'beta_fast', 'beta_slow', 'mscale', 'mscale_all_dim')),)


# What one or two families have.


def axial(interleaved_axes: bool) -> SchemeReader:
  """The vision towers that rotate by two ids for each token: its row, then its column.

  The pairs are half a head apart, and those of the row come before those of the column.

  Args:
    interleaved_axes: whether the frequencies of the whole head are dealt out to row and column in
      turn.
  """

  def scheme(family: Family, fields: Fields, options: Options) -> Scheme:
    parameters = _parameters(fields, Rotary(), None)
    if _rope_type(parameters) != 'axial':
      got, kind = shown(dict(parameters.values)), fields.values['model_type']
      raise ValueError(f"The rope type of {kind} must be 'axial', but got {got}.")
    _refuse_unknown(parameters, set(), "The rope type 'axial'")
    base = parameters.needed('rope_theta', parameters.positive)
    return axial_rope.scheme(axes=2, base=base, interleaved_axes=interleaved_axes)

  return scheme


def gpt_neox_fields(fields: Fields) -> Fields:
  """Refuses the usual names of base and rotated share, which transformers ignores for GPT-NeoX."""
  inner = {**fields.section('rope_scaling').values, **fields.section('rope_parameters').values}
  read = {
    'rope_theta': fields.positive('rotary_emb_base') or 1e4,
    'partial_rotary_factor': fields.get('rotary_pct', float, 0.25),
  }
  for name, value in read.items():
    if name not in inner and fields.get(name, float, value) != value:
      raise fields.refuse(
        name, f'{value}, because GPT-NeoX reads rotary_emb_base and rotary_pct instead'
      )
  return fields


def nomic_bert_fields(fields: Fields) -> Fields:
  """Dynamic NTK under the usual names, of which the configuration of the model's own code has none.

  Raises:
    ValueError: if queries and keys have xPos's scales, too, which are not supported.
  """
  if fields.positive('rotary_emb_scale_base') is not None:
    raise fields.refuse(
      'rotary_emb_scale_base', 'null, because the scales of xPos are not supported'
    )
  factor = fields.get('rotary_scaling_factor', NonNegative)
  if not factor:
    return fields
  dynamic = {'rope_type': 'dynamic', 'factor': factor}
  longest = {'max_position_embeddings': fields.get('max_trained_positions', Size, 2048)}
  return Fields({**fields.values, 'rope_scaling': dynamic, **longest})


def esm_fields(fields: Fields) -> Fields:
  """Refuses ESM with positions that are not rotary."""
  if fields.get('position_embedding_type', str, 'absolute') != 'rotary':
    got = shown(fields.values.get('position_embedding_type'))
    raise ValueError(f"The position_embedding_type of ESM must be 'rotary', but got {got}.")
  return fields


def llama4_temperature(fields: Fields) -> Scheme:
  """The layers of Llama 4 that do not rotate: their queries grow with their position."""
  if not fields.get('attn_temperature_tuning', bool, True):
    return none.scheme()
  floor = fields.get('floor_scale', Size, 8192)
  return floor_log.scheme(floor, fields.get('attn_scale', float, 0.1), offset=1)


def ministral_fields(fields: Fields) -> Fields:
  """The fields without the parameter by which the queries of Ministral 3 grow."""
  parameters = _parameters(fields, Rotary(), None)
  apart = 'llama_4_scaling_beta', 'max_position_embeddings', _LENGTH
  rest = {name: value for name, value in parameters.values.items() if name not in apart}
  rest = {parameters.path.rstrip('.'): rest, _LENGTH: _original(parameters, fields)}
  return Fields({**fields.values, **rest})


def ministral_finished(fields: Fields, rotating: Scheme) -> Scheme:
  """Ministral 3: queries grow with their position after they have been rotated."""
  parameters = _parameters(fields, Rotary(), None)
  beta = parameters.get('llama_4_scaling_beta', float)
  if beta is None:
    got = shown(dict(parameters.values))
    raise ValueError(
      f'The configuration needs {parameters.path}llama_4_scaling_beta, but got {got}.'
    )
  floor = _original_or_longest(parameters, fields)
  return chain(rotating, floor_log.scheme(floor, beta, offset=0)) if beta else rotating


def hunyuan_finished(fields: Fields, rotating: Scheme) -> Scheme:
  """HunYuan normalizes queries and keys after it has rotated them, by a weight [D] for each side.

  The norm of a layer (`qk_norm`) comes before its scheme, and would not do: the weights of the two
  dimensions of a pair differ.
  """
  norm = Norm('rms', fields.needed('rms_norm_eps', fields.positive))
  init = lambda key, dims: {side: jnp.ones(dims.head_dim) for side in ('query', 'key')}
  normed = lambda side: lambda params, x, at: normalized(norm, x, params[side], None)
  return chain(rotating, Scheme(init=init, query=normed('query'), key=normed('key')))


def roformer_finished(fields: Fields, rotating: Scheme) -> Scheme:
  """RoFormer may rotate values, too, and does not rotate the sum of them back."""
  if not fields.get('rotary_value', bool):
    return rotating
  return rotating._replace(values=Values(value=rotating.query))
