"""Whether all layers of a model have the same positions, or the configuration leaves that open.

RoPE is one scheme for a whole model only where every layer turns its queries and keys, and does
nothing else with positions. Models in which some layers do not are refused here, by what the
configuration says and by what transformers does where it says nothing.
"""

from typing import Literal

from posjax.arguments import shown
from posjax.interop.fields import Fields

# In these models every fourth layer has no RoPE, unless `no_rope_layers` says otherwise.
_EVERY_FOURTH = {'llama4_text', 'smollm3'}
# Models that have layers without RoPE, or scale queries by their position, by default (transformers
# 5). Their layout is not known here, and it alone would not make them RoPE.
_NOT_ROPE_ALONE = {
  *('afmoe', 'cohere2_moe', 'cohere_compass_text', 'exaone4', 'exaone4_5', 'exaone_moe', 'flint'),
  *('glm5_next', 'granite_swa', 'granitemoe_swa', 'granitemoehybrid', 'jamba', 'kimi_linear'),
  *('kolibri1', 'ministral3', 'mistral4', 'mistral_large4_text', 'muse_glimmer_text'),
  *('muse_spark_text', 'nemotron_h', 'olmo_hybrid', 'zamba', 'zamba2'),
}
# Fields by which a model of an unknown type says that its layers differ, or that RoPE is not all.
_DIFFER = (
  *('alibi', 'attn_layer_period', 'attn_temperature_tuning', 'full_attention_interval'),
  *('global_attn_every_n_layers', 'layer_types', 'layers_block_type', 'llama_4_scaling'),
  *('no_rope_layer_interval', 'nope_layer_interval', 'position_embedding_type'),
  *('position_embeddings_type', 'relative_attention', 'sliding_window_pattern'),
)
_ROPE = {'rope', 'rotary'}  # values of `position_embedding_type`
_ONE = Literal[0, 1]


def check_layers(fields: Fields, kind: str | None, is_known: bool) -> None:
  """Refuses a model whose layers differ in their positions in a way that is not read.

  Args:
    fields: the configuration.
    kind: its model_type.
    is_known: whether its layout is known here, and so how its layers differ.

  Raises:
    ValueError: if some layers have no RoPE, or may have none.

  Example:
    >>> check_layers(Fields({'no_rope_layers': [1, 1]}), 'smollm3', is_known=True)
  """
  turning = fields.get('no_rope_layers', list[bool | _ONE])
  if turning and not all(turning):
    raise ValueError(
      'Some layers of the model have no positions (0 in its no_rope_layers): '
      f'{_others(kind)}, and set no_rope_layers to [1] for the scheme of the others.'
    )
  if kind in _EVERY_FOURTH and not turning:
    raise ValueError(
      f'Every fourth layer of {kind} has no RoPE where the configuration has no no_rope_layers: '
      f'{_others(kind)}, and set no_rope_layers to [1] for the scheme of the others.'
    )
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


def _others(kind: str | None) -> str:
  if kind == 'llama4_text':
    return 'there is no scheme for those, which scale queries by position (attn_temperature_tuning)'
  return "give those 'none'"


def _says_more(fields: Fields, name: str) -> bool:
  """Whether a field has a value with which not all layers have RoPE alone."""
  value = fields.values.get(name)
  if isinstance(value, str):
    return value not in _ROPE
  if isinstance(value, (list, tuple)):
    return any(value[0] != other for other in value[1:])
  return value is not None and value is not False
