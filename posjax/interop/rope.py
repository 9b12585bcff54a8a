"""The rotary part of a Hugging Face configuration: rope types, layouts, widths, defaults.

Users call `interop.from_hf`, which calls `rotary` here. For each rope type there is one function:
it reads the parameters of the type and returns the constructor of its scheme, to which `rotary`
passes base, fraction and layout, because these are read alike for all types. The defaults are those
of transformers' configuration classes, which `config.json` leaves out.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

from posjax.arguments import NonNegative, Size, shown
from posjax.chain import chain
from posjax.interop import layouts
from posjax.interop.fields import Fields
from posjax.interop.layers import check_layers, turns, type_of
from posjax.interop.turned_norm import turned_norm
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

# The rope types that M-RoPE may have, and the parameters that each reads.
_SECTIONED: dict[str, tuple[str, ...]] = {
  'default': (),
  'mrope': (),
  'linear': ('factor',),
  'yarn': (
    *('factor', 'original_max_position_embeddings', 'finetuned', 'beta_fast', 'beta_slow'),
    *('mscale', 'mscale_all_dim', 'attention_factor', 'truncate'),
  ),
}


def rotary(
  fields: Fields,
  layer_type: str | None = None,
  length: int | None = None,
  interleaved: bool | None = None,
  layer: int | None = None,
) -> Scheme:
  """The scheme of a model that rotates queries and keys; for the arguments see `interop.from_hf`.

  Raises:
    ValueError: if the configuration has something that is not known, or an argument is missing.

  Example:
    >>> from posjax.scheme import places
    >>> places(rotary(Fields({'model_type': 'gptj', 'n_embd': 4096, 'n_head': 16})))
    ('query', 'key')
  """
  kind = fields.get('model_type', str)
  if kind in layouts.AXIAL:
    return _axial(fields, kind)
  fields = _OWN_NAMES.get(kind, lambda fields: fields)(fields)
  fields = Fields({**layouts.DEFAULTS.get(kind, {}), **fields.values})
  layout = _interleaved(fields, kind, interleaved)
  _check_alone(fields, kind)
  check_layers(fields, kind, kind in layouts.INTERLEAVED | layouts.SPLIT)
  if layer is not None and layer_type is None:
    layer_type = type_of(fields, layer)
  if not turns(fields, layer, layer_type):
    return _temperature(fields) if kind == 'llama4_text' else none.scheme()
  if kind in layouts.TEMPERED:
    return _tempered(fields, length, layout)
  turning = _turning(fields, layer_type, length, layout)
  return chain(turning, turned_norm(fields)) if kind in layouts.NORMED else turning


def _gpt_neox(fields: Fields) -> Fields:
  """Refuses the usual names of base and rotated share, which transformers ignores for GPT-NeoX."""
  inner = {**fields.section('rope_scaling').values, **fields.section('rope_parameters').values}
  read = {
    'rope_theta': fields.positive('rotary_emb_base') or 1e4,
    'partial_rotary_factor': fields.get('rotary_pct', float, 0.25),
  }
  for name, value in read.items():
    if name not in inner and fields.get(name, float, value) != value:
      raise fields.refuse(name, f'{value}, as rotary_emb_base and rotary_pct say of GPT-NeoX')
  return fields


def _nomic_bert(fields: Fields) -> Fields:
  """Dynamic NTK under the usual names, of which the configuration of the model's own code has none.

  Raises:
    ValueError: if queries and keys have xPos's scales, too, which are not read.
  """
  if fields.positive('rotary_emb_scale_base') is not None:
    raise fields.refuse('rotary_emb_scale_base', 'null, because the scales of xPos are not read')
  factor = fields.get('rotary_scaling_factor', NonNegative)
  if not factor:
    return fields
  dynamic = {'rope_type': 'dynamic', 'factor': factor}
  longest = {'max_position_embeddings': fields.get('max_trained_positions', Size, 2048)}
  return Fields({**fields.values, 'rope_scaling': dynamic, **longest})


def _check_alone(fields: Fields, kind: str | None) -> None:
  """Raises ValueError if a model that may turn queries and keys does not."""
  if kind == 'esm' and fields.get('position_embedding_type', str, 'absolute') != 'rotary':
    got = shown(fields.values.get('position_embedding_type'))
    raise ValueError(f"ESM is known with position_embedding_type 'rotary', but got {got}.")


def _temperature(fields: Fields) -> Scheme:
  """The layers of Llama 4 that do not turn: their queries grow with their position."""
  if not fields.get('attn_temperature_tuning', bool, True):
    return none.scheme()
  floor = fields.get('floor_scale', Size, 8192)
  return floor_log.scheme(floor, fields.get('attn_scale', float, 0.1), offset=1)


def _tempered(fields: Fields, length: int | None, layout: bool) -> Scheme:
  """Ministral 3: queries grow with their position after they have turned."""
  told = _parameters(fields, None)
  beta = told.get('llama_4_scaling_beta', float)
  apart = 'llama_4_scaling_beta', 'max_position_embeddings', _LENGTH
  rest = {name: value for name, value in told.values.items() if name not in apart}
  rest = {told.path.rstrip('.'): rest, _LENGTH: _original(told, fields)}
  turning = _turning(Fields({**fields.values, **rest}), None, length, layout)
  if beta is None:
    got = shown(dict(told.values))
    raise ValueError(f'The configuration needs {told.path}llama_4_scaling_beta, but got {got}.')
  floor = _original_or_longest(told, fields)
  return chain(turning, floor_log.scheme(floor, beta, offset=0)) if beta else turning


def _turning(fields: Fields, layer_type: str | None, length: int | None, layout: bool) -> Scheme:
  """The scheme of a layer that turns."""
  kind = fields.get('model_type', str)
  told = _parameters(fields, layer_type)
  if told.values.get('mrope_section') is None and kind in layouts.SECTIONS:
    told = Fields({**told.values, 'mrope_section': layouts.SECTIONS[kind]}, told.path)
  if told.values.get('mrope_section') is not None:
    return _multimodal(told, fields, layout)
  if kind in layouts.MULTIMODAL:
    raise ValueError(f'{kind} needs {told.path}mrope_section, but got {shown(dict(told.values))}.')
  model, kind = kind, _rope_type(told)
  if kind not in _MAKERS:
    raise ValueError(
      f'There is no scheme for the rope type {kind!r}. There are: {sorted(_MAKERS)}.'
    )
  by_alpha = kind == 'dynamic' and model in layouts.NORMED and told.values.get('alpha') is not None
  maker, reads = _BY_ALPHA if by_alpha else _MAKERS[kind]
  _refuse_unknown(told, {'partial_rotary_factor', *reads}, f'The rope type {kind!r}')
  common = {'base': _base(fields, told), 'interleaved': layout}
  if kind != 'proportional':
    common['fraction'] = _fraction(fields, told)
  made = maker(told, fields, length)(**common)
  if model == 'roformer' and fields.get('rotary_value', bool):  # and nothing turns back
    return made._replace(values=Values(turn=rope.scheme(**common, values=True).values.turn))
  return made


def _multimodal(told: Fields, fields: Fields, interleaved: bool) -> Scheme:
  """M-RoPE, with three ids for each token, whatever the rope type is called."""
  kind = _rope_type(told)
  if interleaved or kind not in _SECTIONED:
    raise ValueError(
      f'M-RoPE is known with the rope types {list(_SECTIONED)}, and pairs half a head apart, but '
      f'got {shown(dict(told.values))} of {fields.values.get("model_type")!r}.'
    )
  reads = {'mrope_section', 'mrope_interleaved', 'partial_rotary_factor', *_SECTIONED[kind]}
  _refuse_unknown(told, reads, 'M-RoPE')
  sections = told.get('mrope_section', list[Size])
  model = fields.get('model_type', str) or ''
  in_turn = told.get('mrope_interleaved', bool, layouts.MULTIMODAL.get(model, False))
  if in_turn != layouts.MULTIMODAL.get(model, in_turn):
    raise told.refuse('mrope_interleaved', f'{not in_turn} for {model}')
  _check_sections(sections, fields, told)
  base = _base(fields, told)
  return mrope.scheme(sections, base, in_turn, *_scaled(told, fields, 2 * sum(sections), base))


def _check_sections(sections: Sequence[int], fields: Fields, told: Fields) -> None:
  """Raises ValueError if part of a head turns, and the sections have another number of pairs."""
  share = _share(fields, told)
  if share not in (None, 1) and int(_head_dim(fields) * share) != 2 * sum(sections):
    raise told.refuse('mrope_section', f'those of {int(_head_dim(fields) * share) // 2} pairs')


def _scaled(
  told: Fields, fields: Fields, width: int, base: float
) -> tuple[list[float] | None, float]:
  """M-RoPE's frequencies where they are scaled, and the factor of queries and keys."""
  kind = _rope_type(told)
  if kind == 'linear':
    factor = told.needed('factor', told.positive)
    return (angles.frequencies(width, base) / factor).tolist(), 1.0
  if kind != 'yarn':
    return None, 1.0
  made = _yarn(told, fields, None)
  factor, original = made.args
  given = dict(made.keywords)
  names = 'beta_fast', 'beta_slow', 'truncate'
  shape = {name: given[name] for name in names if name in given}
  grown = given.get('attention_factor')
  if grown is None:
    both = {name: given[name] for name in ('mscale', 'mscale_all_dim') if name in given}
    grown = yarn.magnitude(factor, **both)
  return yarn.frequencies(width, factor, original, base, **shape).tolist(), grown


def _rope_type(told: Fields) -> str:
  older = told.get('type', str, 'default')
  return told.get('rope_type', str, older)


def _refuse_unknown(told: Fields, known: set[str], owner: str) -> None:
  known = {'rope_type', 'type', 'rope_theta', *known}
  there = [str(name) for name, value in told.values.items() if value is not None]
  unknown = sorted(set(there) - known)
  if unknown:
    got = shown(dict(told.values), longest=200)
    raise ValueError(f'{owner} is not known with {unknown}, but got {got}.')


def _parameters(fields: Fields, layer_type: str | None) -> Fields:
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
  told = old if old.values else new
  local = fields.positive('rope_local_base_freq', 'local_rope_theta')
  if local is not None and not _layered(told):
    whole = {'rope_theta': fields.positive('rope_theta', 'global_rope_theta'), **told.values}
    each = {'full_attention': whole, 'sliding_attention': {'rope_theta': local}}
    told = Fields(each, told.path)
  if not _layered(told):
    return told
  if layer_type not in told.values:
    raise ValueError(
      f'Layers differ: layer_type must be one of {list(told.values)}, but got {shown(layer_type)}.'
    )
  return _of_layers(fields, told, layer_type)


def _of_layers(fields: Fields, told: Fields, layer_type: str) -> Fields:
  if told.values[layer_type] is not None:
    return told.section(layer_type)
  name = layouts.LAYER_BASES.get(fields.get('model_type', str), {}).get(layer_type)
  if name is None:
    raise told.refuse(layer_type, 'a dict, because layers without RoPE are not read')
  return Fields({'rope_theta': fields.needed(name, fields.positive)}, f'{told.path}{layer_type}.')


def _layered(told: Fields) -> bool:
  """Whether the parameters are one dict for each type of layers."""
  there = {name: value for name, value in told.values.items() if value is not None}
  dicts = [name for name, value in there.items() if isinstance(value, Mapping)]
  if dicts and len(dicts) < len(there):
    raise told.refuse(dicts[0], 'no dict, because not all parameters beside it are dicts')
  return bool(dicts)


def _base(fields: Fields, told: Fields) -> float:
  inner, outer = told.positive('rope_theta'), fields.positive('rope_theta', 'rotary_emb_base')
  if inner is None and outer != (fields.positive('rotary_emb_base') or outer):
    raise fields.refuse('rotary_emb_base', f'its rope_theta, {outer}')
  found = outer if inner is None else inner
  kind = fields.values.get('model_type')
  if found is None and kind not in layouts.BASE_10000:
    raise ValueError(f'The configuration has no rope_theta, and that of {kind!r} is not known.')
  return 10000.0 if found is None else found


def _interleaved(fields: Fields, kind: str | None, given: bool | None) -> bool:
  told = fields.get('rope_interleave', bool, fields.get('rotary_emb_interleaved', bool))
  if given is not None:
    return given
  if kind not in layouts.INTERLEAVED | layouts.SPLIT:
    raise ValueError(
      f'No positions are known of the model_type {kind!r}. If it turns queries and keys, say which '
      'numbers together: interleaved=True, neighbours, or False, those half a head apart.'
    )
  return kind in layouts.INTERLEAVED if told is None else told


def _fraction(fields: Fields, told: Fields) -> float:
  """The share of a head that is rotated, rounded to whole dimensions as transformers does."""
  width = fields.size('rotary_dim')
  share = _share(fields, told)
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


def _share(fields: Fields, told: Fields) -> float | None:
  """The share of a head that is rotated, where the configuration has it."""
  places = (
    (told, 'partial_rotary_factor'),
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
    raise ValueError('A part of each head turns, but the configuration has no width of a head.')
  if width % heads:
    raise ValueError(f'The heads must divide the width of the model, but got {heads} and {width}.')
  return width // heads


def _original(told: Fields, fields: Fields) -> int | None:
  """The length in training, in tokens, where the configuration has it."""
  inner, outer = told.size(_LENGTH), fields.size(_LENGTH)
  if None not in (inner, outer) and inner != outer:
    raise ValueError(f'The configuration must have one {_LENGTH}, but got {inner} and {outer}.')
  return outer if inner is None else inner


def _original_or_longest(told: Fields, fields: Fields) -> int:
  """The length in training; that of the longest text, where nothing else is told."""
  found = _original(told, fields)
  return fields.needed('max_position_embeddings', fields.size) if found is None else found


def _factor(told: Fields, fields: Fields) -> float:
  """The extension of the model: the `factor` of the configuration, or the ratio of its lengths."""
  factor, original = told.positive('factor'), _original(told, fields)
  if factor is not None:
    return factor
  if original is None:
    raise ValueError(
      f'The configuration needs {told.path}factor or {_LENGTH}, but got {shown(dict(told.values))}.'
    )
  return fields.needed('max_position_embeddings', fields.size) / original


def _declared(length: int | None, kind: str) -> int:
  if length is None:
    raise ValueError(f'{kind} depends on the length of the text: give length, in tokens.')
  return length


def _default(told, fields, length):
  return rope.scheme


def _linear(told, fields, length):
  return functools.partial(rope.scheme, factor=told.needed('factor', told.positive))


def _dynamic(told, fields, length):
  length = _declared(length, 'Dynamic NTK')
  original = fields.needed('max_position_embeddings', fields.size)
  return functools.partial(
    dynamic_ntk.scheme, length, original, told.needed('factor', told.positive)
  )


def _alpha(told, fields, length):
  return functools.partial(ntk.scheme, told.needed('alpha', told.positive))


def _yarn(told, fields, length):
  names = 'beta_fast', 'beta_slow', 'attention_factor'
  given = {name: told.positive(name) for name in names if told.values.get(name) is not None}
  both = {name: told.get(name, float) for name in ('mscale', 'mscale_all_dim')}
  for name, value in both.items():
    if value is not None and value < 0:
      raise told.refuse(name, 'a number of at least 0')
  if all(both.values()):
    given |= both
  given['truncate'] = told.get('truncate', bool, True)
  lengths = _factor(told, fields), _original_or_longest(told, fields)
  return functools.partial(yarn.scheme, *lengths, **given)


def _longrope(told, fields, length):
  length, original = _declared(length, 'LongRoPE'), _original(told, fields)
  if original is None:
    raise ValueError(f'The configuration needs {_LENGTH}, but got {shown(dict(told.values))}.')
  reading = functools.partial(told.get, kind=list[float])
  short, long = (told.needed(f'{which}_factor', reading) for which in ('short', 'long'))
  by_length = told.positive('short_mscale'), told.positive('long_mscale')
  scale = told.positive('attention_factor')
  return functools.partial(
    longrope.scheme,
    *(length, original, short, long),
    extension=_factor(told, fields),
    attention_factor=by_length[length > original] if scale is None else scale,
  )


def _llama3(told, fields, length):
  factor, low, high = (
    told.needed(name, told.positive) for name in ('factor', 'low_freq_factor', 'high_freq_factor')
  )
  return functools.partial(
    llama3.scheme,
    factor=factor,
    original_length=_original_or_longest(told, fields),
    low_frequency_factor=low,
    high_frequency_factor=high,
  )


def _proportional(told, fields, length):
  share = _share(fields, told)
  factor = told.positive('factor')
  return functools.partial(
    partial.scheme, 1.0 if share is None else share, factor=1.0 if factor is None else factor
  )


def _axial(fields: Fields, kind: str) -> Scheme:
  """The vision towers that turn by two ids for each token: its row, then its column."""
  told = _parameters(fields, None)
  if _rope_type(told) != 'axial':
    got = shown(dict(told.values))
    raise ValueError(f"{kind} is known with the rope type 'axial', but got {got}.")
  _refuse_unknown(told, set(), "The rope type 'axial'")
  base = told.needed('rope_theta', told.positive)
  return axial_rope.scheme(axes=2, base=base, dealt=layouts.AXIAL[kind])


# Models whose configurations have names of their own.
_OWN_NAMES = {'gpt_neox': _gpt_neox, 'nomic_bert': _nomic_bert}
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
# HunYuan's type 'dynamic', beside which its files have parameters of YaRN that it does not use.
_BY_ALPHA = (*(_alpha, ('alpha', 'factor', 'beta_fast', 'beta_slow', 'mscale', 'mscale_all_dim')),)
