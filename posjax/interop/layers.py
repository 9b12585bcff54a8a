"""How the layers of a model differ in their positions.

RoPE is one scheme for a whole model only where every layer turns its queries and keys, and does
nothing else with positions. Of the others, a caller names the layer by its index, and gets what
transformers does in that layer; without an index they are refused. Models of which it is not known
how their layers differ are refused with an index, too.
"""

from collections.abc import Callable
from typing import Literal

from posjax.arguments import Whole, shown
from posjax.interop.fields import Fields

# Models that have layers without RoPE, or scale queries by their position, by default (transformers
# 5). Their layout is not known here, and it alone would not make them RoPE.
_NOT_ROPE_ALONE = {
  *('afmoe', 'cohere2_moe', 'cohere_compass_text', 'exaone4_5', 'flint'),
  *('glm5_next', 'granite_swa', 'granitemoe_swa', 'granitemoehybrid', 'jamba', 'kimi_linear'),
  *('mistral_large4_text', 'muse_glimmer_text'),
  *('muse_spark_text', 'nemotron_h', 'olmo_hybrid', 'zamba', 'zamba2'),
}
# Fields by which a model of an unknown type says that its layers differ, or that RoPE is not all.
_DIFFER = (
  *('alibi', 'attn_layer_period', 'attn_temperature_tuning', 'full_attention_interval'),
  *('global_attn_every_n_layers', 'layer_types', 'layers_block_type', 'llama_4_scaling'),
  *('no_rope_layer_interval', 'no_rope_layers', 'nope_layer_interval', 'position_embedding_type'),
  *('position_embeddings_type', 'relative_attention', 'sliding_window_pattern'),
)
_ROPE = {'rope', 'rotary'}  # values of `position_embedding_type`
_ONE = Literal[0, 1]
_FULL, _SLIDING = 'full_attention', 'sliding_attention'


def _every(name: str, default: int) -> Callable[[Fields, int], str]:
  """The last of every so many layers sees everything, the others have a window."""

  def read(fields: Fields, layer: int) -> str:
    period = fields.size(name) or default
    return _SLIDING if (layer + 1) % period else _FULL

  return read


def _full_of_every(fields: Fields, layer: int) -> str:
  """Qwen3-Next: the last of every so many layers has a softmax."""
  return (
    'linear_attention' if (layer + 1) % (fields.size('full_attention_interval') or 4) else _FULL
  )


def _from_layer(fields: Fields, layer: int) -> str:
  """Qwen: layers from `max_window_layers` on have the window."""
  if not fields.get('use_sliding_window', bool) or fields.size('sliding_window') is None:
    return _FULL
  first = fields.get('max_window_layers', int)
  if first is None:
    raise ValueError('The configuration needs max_window_layers or layer_types, but has neither.')
  return _SLIDING if layer >= first else _FULL


def _first_of_every(fields: Fields, layer: int) -> str:
  return _SLIDING if layer % (fields.size('global_attn_every_n_layers') or 3) else _FULL


def _of_indices(fields: Fields, layer: int) -> str:
  """LFM2: the layers that are attention, where not all are."""
  told = fields.get('full_attn_idxs', list[Whole])
  return _FULL if told is None or layer in told else 'conv'


def _told(fields: Fields, layer: int) -> str:
  got = shown(fields.values.get('layer_types'))
  raise ValueError(
    f'The configuration needs layer_types, a list of a type per layer, but got {got}.'
  )


def _exaone4(fields: Fields, layer: int) -> str:
  if fields.size('sliding_window') is None:
    return _FULL
  return _every('sliding_window_pattern', 4)(fields, layer)


def _llama4(fields: Fields, layer: int) -> str:
  return 'chunked_attention' if _by_list(fields, layer) else _FULL


def _smollm3(fields: Fields, layer: int) -> str:
  slides = fields.get('use_sliding_window', bool) and fields.size('sliding_window') is not None
  return _SLIDING if slides and not _by_list(fields, layer) else _FULL


_NO_SOFTMAX = {'linear_attention', 'mamba', 'conv', 'recurrent'}
# By model_type, the type of a layer where the configuration has no `layer_types`.
_TYPES: dict[str | None, Callable[[Fields, int], str]] = {
  **dict.fromkeys(('gemma2', 'vaultgemma'), _every('', 2)),
  'gemma3_text': _every('sliding_window_pattern', 6),
  **dict.fromkeys(('cohere2', 'exaone_moe'), _every('sliding_window_pattern', 4)),
  'gpt_oss': _every('', 2),
  'olmo3': _every('', 4),
  'exaone4': _exaone4,
  **dict.fromkeys(('modernbert', 'modernbert-decoder'), _first_of_every),
  'lfm2': _of_indices,
  **dict.fromkeys(('kolibri1', 'lfm2_moe', 'mellum'), _told),
  'llama4_text': _llama4,
  'smollm3': _smollm3,
  **dict.fromkeys(('qwen2', 'qwen2_moe', 'qwen3'), _from_layer),
  **dict.fromkeys(('qwen2_vl_text', 'qwen2_5_vl_text', 'qwen2_5_omni_text'), _from_layer),
  **dict.fromkeys(('qwen3_next', 'qwen3_5_text', 'qwen3_5_moe_text'), _full_of_every),
}


def type_of(fields: Fields, layer: int) -> str | None:
  """The type of a layer, such as 'sliding_attention'; None for a model whose layers are of one.

  Raises:
    ValueError: if the configuration has no type for the layer, or the layer has no softmax.

  Example:
    >>> type_of(Fields({'model_type': 'gemma2'}), 0), type_of(Fields({'model_type': 'gemma2'}), 1)
    ('sliding_attention', 'full_attention')
  """
  told, kind = fields.get('layer_types', list[str]), fields.get('model_type', str)
  if told and layer >= len(told):
    raise ValueError(
      f"The configuration's layer_types has {len(told)} entries, but got layer {layer}."
    )
  of_kind = _TYPES.get(kind)
  found = told[layer] if told else None if of_kind is None else of_kind(fields, layer)
  if found in _NO_SOFTMAX:
    raise ValueError(
      f'The layers of {kind} are read where they are attention with a softmax, but layer {layer} '
      f'is {found!r}.'
    )
  return found


def _by_list(fields: Fields, layer: int) -> bool:
  """Whether a layer turns, by `no_rope_layers`, or by the rule where it is left out."""
  turning = fields.get('no_rope_layers', list[bool | _ONE])
  if turning is None or (not turning and fields.values.get('model_type') == 'llama4_text'):
    return bool((layer + 1) % (fields.size('no_rope_layer_interval') or 4))
  if layer >= len(turning):
    raise ValueError(
      f"The configuration's no_rope_layers has {len(turning)} entries, but got layer {layer}."
    )
  return bool(turning[layer])


# Models in which a layer's type says whether it turns, and those in which its index does.
_BY_TYPE = {'cohere2', 'exaone4', 'exaone_moe', 'kolibri1'}
_BY_LIST = {'llama4_text', 'smollm3'}


def turns(fields: Fields, layer: int | None, layer_type: str | None) -> bool:
  """Whether a layer turns its queries and keys, in a model that is known to.

  Args:
    fields: the configuration.
    layer: the index of the layer, or None.
    layer_type: its type, or None.

  Raises:
    ValueError: if the layers differ, and what says which one is meant is None.

  Example:
    >>> [turns(Fields({'model_type': 'smollm3'}), layer, None) for layer in range(4)]
    [True, True, True, False]
  """
  kind = fields.get('model_type', str)
  if kind in _BY_LIST:
    return _turns_by_list(fields, layer)
  if kind not in _BY_TYPE or _has_no_window(fields):
    return True
  if layer_type in (_SLIDING, _FULL):
    return layer_type == _SLIDING
  raise ValueError(
    f"Only the 'sliding_attention' layers of {kind} turn: give layer, the index of one, or its "
    f'layer_type, but got {shown(layer_type)}.'
  )


def _turns_by_list(fields: Fields, layer: int | None) -> bool:
  if layer is not None:
    return _by_list(fields, layer)
  told = fields.get('no_rope_layers', list[bool | _ONE])
  if told and all(told):
    return True
  raise ValueError(
    f'Some layers of {fields.values["model_type"]} do not turn queries and keys: give layer, the '
    'index of one, but got None.'
  )


def _has_no_window(fields: Fields) -> bool:
  """Whether it is Exaone 4 without a window, all of whose layers turn."""
  told = fields.values
  if told['model_type'] != 'exaone4' or 'sliding_window' not in told:
    return False
  return fields.size('sliding_window') is None


def check_layers(fields: Fields, kind: str | None, is_known: bool) -> None:
  """Refuses a model whose layers differ in their positions in a way that is not read.

  Args:
    fields: the configuration.
    kind: its model_type.
    is_known: whether its layout is known here, and so how its layers differ.

  Raises:
    ValueError: if some layers have no RoPE, or may have none, and which ones is not known.

  Example:
    >>> check_layers(Fields({'no_rope_layers': [1, 1]}), 'smollm3', is_known=True)
  """
  if kind in _NOT_ROPE_ALONE:
    raise ValueError(
      f'Some layers of {kind!r} do not turn queries and keys, or scale them by their position; '
      'which ones is not read yet, whatever interleaved says.'
    )
  differ = [name for name in _DIFFER if not is_known and _says_more(fields, name)]
  if differ:
    given = {name: fields.values[name] for name in differ}
    raise ValueError(
      f'The layers of the unknown model_type {kind!r} may differ, but got {shown(given)}: leave '
      f'{" and ".join(differ)} out if all of them turn queries and keys alike.'
    )


def _says_more(fields: Fields, name: str) -> bool:
  """Whether a field has a value with which not all layers have RoPE alone."""
  value = fields.values.get(name)
  if isinstance(value, str):
    return value not in _ROPE
  if isinstance(value, (list, tuple)):
    return any(value[0] != other for other in value[1:]) or (
      name == 'no_rope_layers' and not all(value)
    )
  return value is not None and value is not False
