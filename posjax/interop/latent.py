"""Latent attention, as DeepSeek V3 has it: its sizes, its scale, and its weights.

A checkpoint has the rotated part of each head last, and the layers of posjax have it first: the
product of queries and keys is the same.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from posjax.arguments import Size
from posjax.interop.family import Layer
from posjax.interop.fields import Fields
from posjax.layers.projections import Latent
from posjax.schemes import yarn

Shape = tuple[int, ...]
_NAMES = {'down': 'q_a_proj', 'norm': 'q_a_layernorm', 'up': 'q_b_proj', 'query': 'q_proj'}
_KV = {'down': 'kv_a_proj_with_mqa', 'norm': 'kv_a_layernorm', 'up': 'kv_b_proj'}


def read_latent(fields: Fields, layer: Layer) -> Latent:
  """The narrow vectors of a configuration."""
  rank, shared = (fields.needed(name, fields.size) for name in ('kv_lora_rank', 'qk_rope_head_dim'))
  return Latent(rank, shared, fields.get('q_lora_rank', Size))


def widths(fields: Fields) -> tuple[int, int]:
  """The width of a query, and that of a value."""
  names = 'qk_nope_head_dim', 'qk_rope_head_dim', 'v_head_dim'
  plain, rotated, value = (fields.needed(name, fields.size) for name in names)
  return plain + rotated, value


def of_whole_heads(fields: Fields) -> Fields:
  """The fields by which `from_hf` returns the scheme of whole heads, of which a part is rotated."""
  width, _ = widths(fields)
  rotated = fields.values['qk_rope_head_dim']
  rest = {name: x for name, x in fields.values.items() if name != 'qk_rope_head_dim'}
  return Fields({**rest, 'head_dim': width, 'rotary_dim': rotated})


def scale(fields: Fields, layer: Layer) -> float | None:
  """The factor of q . k, which grows with YaRN's extension."""
  parameters = fields.section('rope_parameters')
  parameters = parameters if parameters.values else fields.section('rope_scaling')
  kind = parameters.get('rope_type', str, parameters.get('type', str, 'default'))
  mscale, factor = parameters.get('mscale_all_dim', float), parameters.positive('factor')
  if kind == 'default' or not mscale or factor is None:
    return None
  return widths(fields)[0] ** -0.5 * yarn.magnitude(factor, mscale) ** 2


def shapes(settings: Any) -> dict[str, Shape]:
  """The shapes of the weights of a layer, but the output's."""
  latent, width, heads = settings.latent, settings.width, settings.num_heads
  rows = {_KV['down']: (latent.rank + latent.shared, width)}
  keys = settings.head_dim - latent.shared + settings.value_dim
  found: dict[str, Shape] = {
    f'{_KV["norm"]}.weight': (latent.rank,),
    f'{_KV["up"]}.weight': (heads * keys, latent.rank),
  }
  wide = heads * settings.head_dim
  if latent.query_rank is None:
    found[f'{_NAMES["query"]}.weight'] = (wide, width)
  else:
    rows[_NAMES['down']] = (latent.query_rank, width)
    found[f'{_NAMES["norm"]}.weight'] = (latent.query_rank,)
    found[f'{_NAMES["up"]}.weight'] = (wide, latent.query_rank)
  for name, shape in rows.items():
    found[f'{name}.weight'] = shape
    if settings.use_bias:
      found[f'{name}.bias'] = shape[:1]
  return found


def assembled(found: Mapping[str, Any], settings: Any) -> dict[str, Any]:
  """The tree of a layer, without its output, from the weights by their names in the block."""
  latent, heads = settings.latent, settings.num_heads
  plain = settings.head_dim - latent.shared
  by_head = lambda rows: jnp.moveaxis(rows.reshape(heads, -1, rows.shape[1]), 2, 0)
  name = _NAMES['query' if latent.query_rank is None else 'up']
  query = by_head(found[f'{name}.weight'])
  both = by_head(found[f'{_KV["up"]}.weight'])
  loaded: dict[str, Any] = {
    'query': {'kernel': jnp.concatenate([query[..., plain:], query[..., :plain]], -1)},
    'key': {'kernel': both[..., :plain]},
    'value': {'kernel': both[..., plain:]},
    'kv_down_norm': {'scale': found[f'{_KV["norm"]}.weight']},
    'kv_down': {},
    'shared_key': {},
  }
  for theirs, ours in (('weight', 'kernel'), ('bias', 'bias')):
    rows = found.get(f'{_KV["down"]}.{theirs}')
    if rows is not None:
      loaded['kv_down'][ours], loaded['shared_key'][ours] = (
        rows[: latent.rank].T,
        rows[latent.rank :].T,
      )
  if latent.query_rank is not None:
    down = {'kernel': found[f'{_NAMES["down"]}.weight'].T}
    if settings.use_bias:
      down['bias'] = found[f'{_NAMES["down"]}.bias']
    loaded |= {'query_down': down, 'query_down_norm': {'scale': found[f'{_NAMES["norm"]}.weight']}}
  return loaded
