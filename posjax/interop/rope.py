"""The rotary part of a Hugging Face configuration: rope types, layouts, widths, defaults.

Users call `interop.from_hf`, which calls `rotary` here. For each rope type there is one function:
it reads the parameters of the type and returns the constructor of its scheme, to which `rotary`
passes base, fraction and layout, because these are read alike for all types. The defaults are those
of transformers' configuration classes, which `config.json` leaves out.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from posjax.scheme import Scheme
from posjax.schemes import dynamic_ntk, llama3, longrope, mrope, none, partial, rope, yarn

Config = Mapping[str, Any]

# Models whose pairs of dimensions are neighbours, and models whose pairs are half a head apart.
_INTERLEAVED = {
  *('codegen', 'cohere', 'cohere2', 'deepseek_v2', 'deepseek_v3', 'ernie4_5', 'glm', 'glm4'),
  *('gptj', 'helium', 'llama4_text'),
}
_SPLIT = {
  *('falcon', 'gemma', 'gemma2', 'gemma3_text', 'gemma4_text', 'gpt_neox', 'gpt_oss', 'granite'),
  *('llama', 'mistral', 'mixtral', 'modernbert', 'nemotron', 'olmo', 'olmo2', 'persimmon', 'phi'),
  *('phi3', 'phimoe', 'qwen2', 'qwen2_moe', 'qwen3', 'qwen3_moe', 'smollm3', 'stablelm'),
  *('qwen2_vl', 'qwen2_vl_text', 'qwen2_5_vl', 'qwen2_5_vl_text', 'qwen3_vl_text', 'starcoder2'),
}
_BASE_10000 = {
  *('codegen', 'cohere', 'deepseek_v2', 'deepseek_v3', 'falcon', 'gemma', 'gemma2', 'glm', 'gptj'),
  *('gpt_neox', 'llama', 'mistral', 'persimmon', 'phi', 'phi3', 'qwen2', 'stablelm'),
}
_DEFAULTS = {
  'codegen': {'rotary_dim': 64},
  'gemma3_text': {'rope_theta': 1e6, 'rope_local_base_freq': 1e4},
  'glm': {'partial_rotary_factor': 0.5},
  'glm4': {'partial_rotary_factor': 0.5},
  'gpt_neox': {'rotary_pct': 0.25},
  'gptj': {'rotary_dim': 64},
  'nemotron': {'partial_rotary_factor': 0.5},
  'persimmon': {'partial_rotary_factor': 0.5},
  'phi': {'partial_rotary_factor': 0.5},
  'stablelm': {'partial_rotary_factor': 0.25},
}


def first(config: Config, *names: str) -> Any:
  """The value of the first of these keys whose value is not None, and None if there is none.

  Example:
    >>> first({'n_embd': 8, 'hidden_size': None}, 'hidden_size', 'n_embd')
    8
  """
  return next((config[name] for name in names if config.get(name) is not None), None)


def rotary(
  config: Config, layer_type: str | None, length: int | None, interleaved: bool | None
) -> Scheme:
  """The scheme of a model that rotates queries and keys; for the arguments see `interop.from_hf`.

  Raises:
    ValueError: if the configuration has something that is not known, or an argument is missing.

  Example:
    >>> from posjax.scheme import places
    >>> places(rotary({'model_type': 'gptj', 'n_embd': 4096, 'n_head': 16}, None, None, None))
    ('query', 'key')
  """
  config = {**_DEFAULTS.get(config.get('model_type', ''), {}), **config}
  if any(not turns for turns in config.get('no_rope_layers') or ()):
    raise ValueError(
      "Some layers of the model have no positions (0 in its no_rope_layers): give those 'none', "
      'and leave the key out for the scheme of the others.'
    )
  if config.get('model_type') == 'cohere2' and layer_type != 'sliding_attention':
    if layer_type == 'full_attention':
      return none.scheme()
    raise ValueError("Only the 'sliding_attention' layers of cohere2 turn: give layer_type.")
  layout = _interleaved(config, interleaved)
  told = _parameters(config, layer_type)
  if told.get('mrope_section'):
    return _multimodal(told, config, layout)
  kind = told.get('rope_type', told.get('type', 'default'))
  if kind not in _MAKERS:
    raise ValueError(
      f'There is no scheme for the rope type {kind!r}. There are: {sorted(_MAKERS)}.'
    )
  maker, reads = _MAKERS[kind]
  known = {'rope_type', 'type', 'rope_theta', 'partial_rotary_factor', *reads}
  unknown = sorted(key for key, value in told.items() if key not in known and value is not None)
  if unknown:
    raise ValueError(f'The rope type {kind!r} is not known with {unknown}, but got {dict(told)}.')
  common = {'base': _base(config, told), 'interleaved': layout}
  if kind != 'proportional':
    common['fraction'] = _fraction(config, told)
  told = {key: value for key, value in told.items() if value is not None}
  return maker(told, config, length)(**common)


def _multimodal(told: Config, config: Config, interleaved: bool) -> Scheme:
  """M-RoPE, with three ids for each token, whatever the rope type is called."""
  known = {'rope_type', 'type', 'rope_theta', 'mrope_section', 'mrope_interleaved'}
  kind, unknown = told.get('rope_type', told.get('type')), sorted(set(told) - known)
  if unknown or interleaved or kind not in (None, 'default', 'mrope'):
    raise ValueError(
      f'M-RoPE is known with frequencies that are not scaled, and pairs half a head apart, but got '
      f'{dict(told)} of {config.get("model_type")!r}.'
    )
  sections = tuple(told['mrope_section'])
  return mrope.scheme(sections, _base(config, told), bool(told.get('mrope_interleaved', False)))


def _parameters(config: Config, layer_type: str | None) -> Config:
  """The parameters of RoPE for one type of layers, from the old or the new form of configurations.

  The old form has one key for each parameter; the new form has a dict, which may have one dict for
  each type of layers.
  """
  told = config.get('rope_parameters') or config.get('rope_scaling') or {}
  local = None if _layered(told) else first(config, 'rope_local_base_freq', 'local_rope_theta')
  if local is not None:
    whole = {'rope_theta': first(config, 'rope_theta', 'global_rope_theta'), **told}
    told = {'full_attention': whole, 'sliding_attention': {'rope_theta': local}}
  if not _layered(told):
    return told
  if layer_type not in told:
    raise ValueError(
      f'Layers differ: layer_type must be one of {list(told)}, but got {layer_type}.'
    )
  return told[layer_type]


def _layered(told: Config) -> bool:
  return any(isinstance(value, Mapping) for value in told.values())


def _base(config: Config, told: Config) -> float:
  found = first(told, 'rope_theta')
  found = first(config, 'rope_theta', 'rotary_emb_base') if found is None else found
  if found is None and config.get('model_type') not in _BASE_10000:
    raise ValueError(
      f'The configuration has no rope_theta, and that of {config.get("model_type")!r} is not known.'
    )
  return 10000.0 if found is None else float(found)


def _interleaved(config: Config, given: bool | None) -> bool:
  kind = config.get('model_type')
  if given is not None:
    return given
  if 'rope_interleave' in config:
    return config['rope_interleave']
  if kind not in _INTERLEAVED | _SPLIT:
    raise ValueError(
      f'No positions are known of the model_type {kind!r}. If it turns queries and keys, say which '
      'numbers together: interleaved=True, neighbours, or False, those half a head apart.'
    )
  return kind in _INTERLEAVED


def _fraction(config: Config, told: Config) -> float:
  """The share of a head that is rotated, rounded to whole dimensions as transformers does."""
  width = config.get('rotary_dim')
  share = first(told, 'partial_rotary_factor')
  share = first(config, 'partial_rotary_factor', 'rotary_pct') if share is None else share
  if width is None and share in (None, 1):
    return 1.0
  head_dim = first(config, 'qk_rope_head_dim', 'head_dim')
  if head_dim is None:
    sizes = first(config, 'hidden_size', 'n_embd'), first(config, 'num_attention_heads', 'n_head')
    if None in sizes:
      raise ValueError('A part of each head turns, but the configuration has no width of a head.')
    head_dim = sizes[0] // sizes[1]
  return (int(head_dim * share) if width is None else width) / head_dim


def _original(told: Config, config: Config) -> int:
  """The length in training, in tokens."""
  found = first(told, _LENGTH)
  found = first(config, _LENGTH) if found is None else found
  return _needed(config, 'max_position_embeddings') if found is None else found


def _factor(told: Config, config: Config) -> float:
  """The extension of the model: the `factor` of the configuration, or the ratio of its lengths."""
  if 'factor' in told:
    return float(told['factor'])
  return _needed(config, 'max_position_embeddings') / _original(told, config)


def _needed(told: Config, name: str) -> Any:
  if told.get(name) is None:
    raise ValueError(f'The configuration needs {name}, but got {dict(told)}.')
  return told[name]


def _declared(length: int | None, kind: str) -> int:
  if length is None:
    raise ValueError(f'{kind} depends on the length of the text: give length, in tokens.')
  return length


def _default(told, config, length):
  return rope.scheme


def _linear(told, config, length):
  return functools.partial(rope.scheme, factor=float(_needed(told, 'factor')))


def _dynamic(told, config, length):
  length = _declared(length, 'Dynamic NTK')
  original, factor = _needed(config, 'max_position_embeddings'), float(_needed(told, 'factor'))
  return functools.partial(dynamic_ntk.scheme, length, original, factor)


def _yarn(told, config, length):
  given = {name: float(told[name]) for name in ('beta_fast', 'beta_slow') if told.get(name)}
  if told.get('mscale') and told.get('mscale_all_dim'):
    given |= {name: float(told[name]) for name in ('mscale', 'mscale_all_dim')}
  if 'attention_factor' in told:
    given['attention_factor'] = float(told['attention_factor'])
  given['truncate'] = told.get('truncate', True)
  return functools.partial(yarn.scheme, _factor(told, config), _original(told, config), **given)


def _longrope(told, config, length):
  original, length = _original(told, config), _declared(length, 'LongRoPE')
  short, long = (tuple(map(float, _needed(told, f'{which}_factor'))) for which in ('short', 'long'))
  scale = first(told, 'attention_factor', 'long_mscale' if length > original else 'short_mscale')
  return functools.partial(
    longrope.scheme,
    *(length, original, short, long),
    extension=_factor(told, config),
    attention_factor=None if scale is None else float(scale),
  )


def _llama3(told, config, length):
  return functools.partial(
    llama3.scheme,
    factor=float(_needed(told, 'factor')),
    original_length=_original(told, config),
    low_frequency_factor=float(_needed(told, 'low_freq_factor')),
    high_frequency_factor=float(_needed(told, 'high_freq_factor')),
  )


def _proportional(told, config, length):
  share = float(told.get('partial_rotary_factor', 1.0))
  return functools.partial(partial.scheme, share, factor=float(told.get('factor', 1.0)))


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
