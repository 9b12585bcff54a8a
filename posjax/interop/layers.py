"""How the layers of a model differ in their types, and in whether they rotate queries and keys.

RoPE is one scheme for a whole model only where every layer rotates its queries and keys, and does
nothing else with positions. Of the others, a caller names the layer by its index, and gets what
transformers does in that layer; without an index they are refused. Models of which it is not known
how their layers differ are refused with an index, too.
"""

from collections.abc import Callable
from typing import Literal

from posjax.arguments import Whole, shown
from posjax.interop.family import Family, Options
from posjax.interop.fields import Fields
from posjax.scheme import Scheme

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
_NO_SOFTMAX = {'linear_attention', 'mamba', 'conv', 'recurrent'}


def type_of(family: Family, fields: Fields, layer: int) -> str | None:
  """The type of a layer, such as 'sliding_attention'; None for a model whose layers are of one.

  Raises:
    ValueError: if the configuration has no type for the layer, or the layer has no softmax.

  Example:
    >>> gemma2 = Family(layer_type=full_every('', 2))
    >>> type_of(gemma2, Fields({}), 0), type_of(gemma2, Fields({}), 1)
    ('sliding_attention', 'full_attention')
  """
  listed = fields.get('layer_types', list[str])
  if listed and layer >= len(listed):
    raise ValueError(
      f"The configuration's layer_types has {len(listed)} entries, but got layer {layer}."
    )
  if listed:
    found = listed[layer]
  else:
    found = None if family.layer_type is None else family.layer_type(fields, layer)
  if found in _NO_SOFTMAX:
    raise ValueError(
      f'Of the layers of {fields.values.get("model_type")}, those whose attention has a softmax '
      f'are supported, but layer {layer} is {found!r}.'
    )
  return found


# The type of a layer of a family, where the configuration has no `layer_types`.


def full_every(name: str, default: int) -> Callable[[Fields, int], str]:
  """The last of every so many layers sees everything, and the others have a window."""

  def read(fields: Fields, layer: int) -> str:
    return _SLIDING if (layer + 1) % (fields.size(name) or default) else _FULL

  return read


def full_first(fields: Fields, layer: int) -> str:
  """ModernBERT: the first of every so many layers sees everything."""
  return _SLIDING if layer % (fields.size('global_attn_every_n_layers') or 3) else _FULL


def softmax_every(fields: Fields, layer: int) -> str:
  """Qwen3-Next: the last of every so many layers has a softmax."""
  period = fields.size('full_attention_interval') or 4
  return 'linear_attention' if (layer + 1) % period else _FULL


def sliding_from(fields: Fields, layer: int) -> str:
  """Qwen: layers from `max_window_layers` on have the window."""
  if not fields.get('use_sliding_window', bool) or fields.size('sliding_window') is None:
    return _FULL
  first = fields.get('max_window_layers', int)
  if first is None:
    raise ValueError('The configuration needs max_window_layers or layer_types, but has neither.')
  return _SLIDING if layer >= first else _FULL


def full_where_listed(fields: Fields, layer: int) -> str:
  """LFM2: the layers that are attention, where not all are."""
  listed = fields.get('full_attn_idxs', list[Whole])
  return _FULL if listed is None or layer in listed else 'conv'


def needs_types(fields: Fields, layer: int) -> str:
  """Refuses a configuration without layer_types."""
  got = shown(fields.values.get('layer_types'))
  raise ValueError(
    f'The configuration needs layer_types, a list of a type per layer, but got {got}.'
  )


def exaone4_type(fields: Fields, layer: int) -> str:
  """Exaone 4 may have no window."""
  if fields.size('sliding_window') is None:
    return _FULL
  return full_every('sliding_window_pattern', 4)(fields, layer)


def llama4_type(fields: Fields, layer: int) -> str:
  """Llama 4: layers that rotate see their chunk alone."""
  return 'chunked_attention' if llama4_rotates(fields, layer) else _FULL


def smollm3_type(fields: Fields, layer: int) -> str:
  """SmolLM3: layers that do not rotate have the window, if any has."""
  slides = fields.get('use_sliding_window', bool) and fields.size('sliding_window') is not None
  return _SLIDING if slides and not smollm3_rotates(fields, layer) else _FULL


# Whether a layer of a family rotates its queries and keys.


def where_sliding_rotates(fields: Fields, layer: int | None, layer_type: str | None) -> bool:
  """Only the layers with a window rotate.

  Raises:
    ValueError: if the type of the layer is not given.
  """
  if layer_type in (_SLIDING, _FULL):
    return layer_type == _SLIDING
  kind = fields.values.get('model_type')
  raise ValueError(
    f"Only the 'sliding_attention' layers of {kind} rotate queries and keys: give layer, the "
    f'index of one, or its layer_type, but got {shown(layer_type)}.'
  )


def exaone4_rotates(fields: Fields, layer: int | None, layer_type: str | None) -> bool:
  """Without a window, all layers of Exaone 4 rotate."""
  if 'sliding_window' in fields.values and fields.size('sliding_window') is None:
    return True
  return where_sliding_rotates(fields, layer, layer_type)


def smollm3_rotates(fields: Fields, layer: int | None, layer_type: str | None = None) -> bool:
  """By `no_rope_layers`, or by a rule where it is left out.

  Raises:
    ValueError: if the layers differ and no index is given, or the list ends before it.

  Example:
    >>> [smollm3_rotates(Fields({}), layer) for layer in range(4)]
    [True, True, True, False]
  """
  listed = fields.get('no_rope_layers', list[bool | _ONE])
  if layer is None:
    if listed and all(listed):
      return True
    raise ValueError(
      f'Some layers of {fields.values.get("model_type")} do not rotate queries and keys: give '
      'layer, the index of one, but got None.'
    )
  if listed is None:
    return bool((layer + 1) % (fields.size('no_rope_layer_interval') or 4))
  if layer >= len(listed):
    raise ValueError(
      f"The configuration's no_rope_layers has {len(listed)} entries, but got layer {layer}."
    )
  return bool(listed[layer])


def llama4_rotates(fields: Fields, layer: int | None, layer_type: str | None = None) -> bool:
  """As `smollm3_rotates`, but an empty list counts as left out."""
  empty = fields.get('no_rope_layers', list[bool | _ONE]) in ([], ())
  values = {**fields.values, 'no_rope_layers': None} if empty else fields.values
  return smollm3_rotates(Fields(values), layer)


def differing(family: Family, fields: Fields, options: Options) -> Scheme:
  """Refuses a model whose layers differ in their positions in a way that is not supported."""
  raise ValueError(
    f'Some layers of {fields.values["model_type"]!r} do not rotate queries and keys, or scale '
    'them by their position, and which ones is not known here.'
  )


def check_alike(fields: Fields) -> None:
  """Refuses a model of an unknown type whose layers may differ in their positions.

  Raises:
    ValueError: if a field says that some layers have no RoPE, or not RoPE alone.

  Example:
    >>> check_alike(Fields({'model_type': 'new', 'no_rope_layers': [1, 1]}))
  """
  given = {name: fields.values[name] for name in _DIFFER if _says_more(fields, name)}
  if given:
    raise ValueError(
      f'The layers of the unknown model_type {fields.values.get("model_type")!r} may differ, but '
      f'got {shown(given)}: leave {" and ".join(given)} out if all of them rotate queries and keys '
      'alike.'
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
