"""The weights of a layer's attention, from a checkpoint to the layout of posjax's layers."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from posjax.arguments import read, shown
from posjax.interop import latent
from posjax.interop.embeddings import Embedded
from posjax.interop.families import family_of
from posjax.interop.family import Attention, Names
from posjax.interop.fields import Config, Fields, read_config
from posjax.interop.settings import Part, Settings, layer, part_of
from posjax.interop.tables import Shape, Tables
from posjax.interop.weights import kernel
from posjax.scheme import Dims

AnyArray = jax.Array | np.ndarray
_FLOATS = ('float16', 'bfloat16', 'float32', 'float64')


def load_attention(
  config: Config, index: int, weights: Any, *, part: str | None = None, prefix: str | None = None
) -> dict[str, Any]:
  """The weights of a layer's attention, as the layers of posjax hold them.

  They are the collection 'params' of `posjax.linen.Attention(**layer(config, index).arguments())`;
  `nnx.update(attention, loaded)` puts them into `posjax.nnx.Attention`. Dtypes stay as they are.

  Args:
    config: see `layer`.
    index: see `layer`.
    weights: the checkpoint's names and arrays, of NumPy, JAX or torch: a mapping, or what
      `safetensors.safe_open` returns. Only what the layer needs is read. It may hold the attention
      of this layer alone, with names as in its own `state_dict()`.
    part: see `layer`.
    prefix: what is before 'layers.0' in the names, as 'model.', for checkpoints that have
      several such stacks of layers.

  Returns:
    The kernels of `query`, `key`, `value` and `out`, their biases, `sinks`, the norms, and the
    table of the scheme, where the layer has them.

  Raises:
    ValueError: as `layer`; and if a weight is missing, has another shape, or is unexpected.
    TypeError: if the weights are no mapping, or a weight is no array of floats.

  Example:
    >>> config = {'model_type': 'llama', 'hidden_size': 8, 'num_attention_heads': 2}
    >>> w = np.ones((8, 8), np.float32)
    >>> names = [f'model.layers.0.self_attn.{each}_proj.weight' for each in 'qkvo']
    >>> loaded = load_attention({**config, 'num_key_value_heads': 2}, 0, dict.fromkeys(names, w))
    >>> loaded['query']['kernel'].shape, loaded['out']['kernel'].shape
    ((8, 2, 4), (2, 4, 8))
  """
  found, settings = part_of(config, index, part), layer(config, index, part=part, length=1)
  prefix = read(prefix, str | None, 'prefix')
  names = _names_of(weights)
  take = lambda name, shape: _array(weights, name, shape)
  return jax.tree.map(jnp.asarray, attention_of(found, settings, names, take, prefix))


def attention_of(
  found: Part,
  settings: Settings,
  keys: list[str],
  take: Callable[[str, Shape], Any],
  prefix: str | None,
) -> dict[str, Any]:
  """The tree of `load_attention`, of arrays that `take` gives by their names and shapes.

  Arrays of NumPy stay so, and nothing is computed with them: of weights, the tree holds views.
  """
  attention, own = found.attention, found.block()
  names = attention.names
  block = _block(names, keys, own, prefix)
  fused = bool(names.fused) and f'{block}{names.weight(names.query)}' not in keys
  projected = _of_block(attention, settings, block, fused)
  tables = _tables(attention, settings)
  shapes = projected | tables.shapes(own, block)
  _check_names(shapes, keys, block, names)
  arrays = {name: take(name, shape) for name, shape in shapes.items()}
  inside = {name.removeprefix(block): arrays[name] for name in projected}
  return _assembled(inside, attention, settings, found.fields) | tables.assembled(
    own, block, arrays
  )


def _block(names: Names, keys: list[str], block: str, prefix: str | None) -> str:
  """The path before the names of the attention's weights, with what is before its `block`."""
  if prefix is not None:
    return prefix + block
  pattern = re.compile(rf'((?:.*\.)?){re.escape(block)}')
  found = sorted({match[1] for match in map(pattern.match, keys) if match})
  if len(found) > 1:
    raise ValueError(f'The checkpoint has {block} after several prefixes: give one of {found}.')
  if found:
    return found[0] + block
  first = names.fused or names.query
  if names.weight(first) in keys:
    return ''
  raise ValueError(f'The checkpoint has no weights whose names contain {block}, but {shown(keys)}.')


def load_positions(
  config: Config, weights: Any, *, part: str | None = None, prefix: str | None = None
) -> dict[str, Array]:
  """The parameters of the positions that a model adds to its embeddings.

  They are those of `from_hf(config)`, or, where that is a chain, of its member with an `embed`.

  Args:
    config: see `layer`.
    weights: see `load_attention`.
    part: 'encoder' or 'decoder' for models that have these parts, None for others.
    prefix: what is before the name of the table, where the checkpoint has several of that name.

  Returns:
    The table of `learned`, without the rows that no token has; nothing for sinusoids.

  Raises:
    ValueError: if no positions are known that the model adds to its embeddings, or the table is
      missing or has another shape.
    TypeError: if the weights are no mapping, or the table is no array of floats.

  Example:
    >>> config = {'model_type': 'opt', 'max_position_embeddings': 3}
    >>> weights = {'model.decoder.embed_positions.weight': np.ones((5, 8), np.float32)}
    >>> load_positions(config, weights)['table'].shape
    (3, 8)
  """
  fields = read_config(config)
  kind = fields.get('model_type', str) or ''
  part, prefix = read(part, str | None, 'part'), read(prefix, str | None, 'prefix')
  family = family_of(fields)
  if family.embedded is None:
    raise ValueError(
      f'The embeddings of the model_type {kind!r} have no positions that are supported.'
    )
  parts = [each for each in family.parts or (None,) if each != 'cross']
  if part not in parts:
    raise ValueError(f'part must be one of {parts} for {kind}, but got {shown(part)}.')
  embedded = family.embedded.of_part(encoder=part == 'encoder')
  if embedded.sinusoids is not None:
    return {}
  name = _named(embedded.name.format(part), _names_of(weights), prefix)
  return positions_of(embedded, fields, _array(weights, name, None), name)


def positions_of(embedded: Embedded, fields: Fields, table: Any, name: str) -> dict[str, Any]:
  """The parameters of `load_positions`, of the table of that name.

  Raises:
    ValueError: if the table has another number of rows.
  """
  table = table.reshape(table.shape[-2:])  # ViT's has an axis of one row of images
  rows, unused = embedded.rows(fields), embedded.unused(fields)
  if table.shape[0] != rows + unused:
    raise ValueError(
      f'The weight {name} must have {rows + unused} rows, as the configuration says, but got shape '
      f'{table.shape}.'
    )
  return {'table': table[unused:]}


def _names_of(weights: Any) -> list[str]:
  if not hasattr(weights, 'keys'):
    raise TypeError(f'Weights must be a mapping of names to arrays, but got {shown(weights)}.')
  keys = list(weights.keys())
  for key in keys:
    if not isinstance(key, str):
      raise TypeError(f'The names of weights must be strings, but got {shown(key)}.')
  return keys


def _named(name: str, keys: list[str], prefix: str | None) -> str:
  """The full name of a weight."""
  if prefix is not None:
    found = [prefix + name] if prefix + name in keys else []
  else:
    found = [key for key in keys if key == name or key.endswith(f'.{name}')]
  if len(found) > 1:
    raise ValueError(f'The checkpoint has {name} after several prefixes: give prefix, for {found}.')
  if not found:
    raise ValueError(f'The checkpoint must have {prefix or ""}{name}, but has none of that name.')
  return found[0]


def shapes_of(
  config: Config, index: int, *, part: str | None = None, prefix: str = 'model.'
) -> dict[str, Shape]:
  """The names and shapes of the weights that `load_attention` reads.

  Example:
    >>> config = {'model_type': 'gpt2', 'n_embd': 8, 'n_head': 2}
    >>> shapes_of(config, 0, prefix='')['h.0.attn.c_attn.weight']
    (8, 24)
  """
  found, settings = part_of(config, index, part), layer(config, index, part=part, length=1)
  attention, own = found.attention, found.block()
  block = f'{prefix}{own}'
  projected = _of_block(attention, settings, block, bool(attention.names.fused))
  return projected | _tables(attention, settings).shapes(own, block)


def _tables(attention: Attention, settings: Settings) -> Tables:
  """The scheme's parameters among the weights."""
  dims = Dims(settings.width, settings.num_heads, settings.head_dim, settings.num_kv_heads)
  return Tables(settings.scheme, dims, attention.tables)


def _of_block(
  attention: Attention, settings: Settings, block: str, fused: bool
) -> dict[str, Shape]:
  """The shapes of the weights of the block apart from the scheme's parameters, by full names."""
  found = _shapes(attention.names, settings, fused, attention.norm_has_weights)
  return {f'{block}{name}': shape for name, shape in found.items()}


def _shapes(
  names: Names, settings: Settings, fused: bool, norm_has_weights: bool
) -> dict[str, Shape]:
  """The shapes of the weights that the layer needs, as they are in the checkpoint."""
  width, wide = settings.width, settings.num_heads * settings.head_dim
  if settings.latent is not None:
    out = {
      f'{names.out}.weight': (width, settings.num_heads * (settings.value_dim or settings.head_dim))
    }
    out |= {f'{names.out}.bias': (width,)} if settings.out_bias else {}
    return latent.shapes(settings) | out
  narrow = settings.num_kv_heads * settings.head_dim
  rows = {names.query: (1 + settings.gated) * wide, names.key: narrow, names.value: narrow}
  if fused:
    rows = {names.fused: wide + 2 * narrow}
  maps: dict[str, tuple[Shape, bool | None]] = {
    name: ((rows, width), settings.use_bias) for name, rows in rows.items()
  }
  maps[names.out] = (width, wide), settings.out_bias
  shapes: dict[str, Shape] = {}
  for name, (shape, has_bias) in maps.items():
    shapes[names.weight(name)] = shape[::-1] if names.transposed else shape
    if has_bias and name != names.no_bias:
      shapes[f'{name}.bias'] = shape[:1]
  if names.no_weight_suffix:
    by_head = (width, settings.num_heads, settings.head_dim)
    shapes = dict.fromkeys((names.query, names.key, names.value, names.out), by_head)
  if settings.sinks:
    shapes[names.sinks] = (settings.num_heads,)
  return shapes | _norm_shapes(names, settings, norm_has_weights)


def _norm_shapes(names: Names, settings: Settings, norm_has_weights: bool) -> dict[str, Shape]:
  if settings.qk_norm is None or not norm_has_weights:
    return {}
  shapes: dict[str, Shape] = {}
  counts = {names.query_norm: settings.num_heads, names.key_norm: settings.num_kv_heads}
  for name, count in counts.items():
    many = {'alike': (), 'apart': (count,), 'together': (count * settings.head_dim,)}
    shape = many[settings.qk_norm.heads]
    shape = shape if settings.qk_norm.heads == 'together' else (*shape, settings.head_dim)
    shapes[f'{name}.weight'] = shape
    if settings.qk_norm.use_bias:
      shapes[f'{name}.bias'] = shape
  return shapes


def _check_names(shapes: dict[str, Shape], keys: list[str], block: str, names: Names) -> None:
  """Raises ValueError if a weight is missing, or the block has one that is not expected."""
  missing = sorted(set(shapes) - set(keys))
  if missing:
    raise ValueError(f'The checkpoint must have {", ".join(missing)}, but has none of that name.')
  inside = {name for name in keys if name.startswith(block)} - set(shapes)
  ignored = tuple(f'{block}{name}' for name in names.ignored)
  tables = (f'{block}relative_attention_bias.',)
  extra = sorted(name for name in inside if not name.startswith((*ignored, *tables)))
  if extra:
    raise ValueError(
      f'The attention of this layer must have the weights {sorted(shapes)} alone, but got also '
      f'{", ".join(extra)}.'
    )


def _array(weights: Any, name: str, shape: Shape | None) -> Array:
  """One weight as an array of JAX, of a shape that is known or not."""
  value = weights.get_tensor(name) if hasattr(weights, 'get_tensor') else weights[name]
  if hasattr(value, 'get_shape'):  # a slice of safetensors
    value = value[:]
  value, dtype = _of_torch(value) if hasattr(value, 'detach') else (value, None)
  if not hasattr(value, 'shape') or not hasattr(value, 'dtype'):
    raise TypeError(f'The weight {name} must be an array, but got {shown(value)}.')
  dtype = str(value.dtype) if dtype is None else dtype
  if dtype not in _FLOATS:
    raise TypeError(f'The weight {name} must be an array of floats, but got {dtype}.')
  if shape is not None and tuple(value.shape) != shape:
    raise ValueError(f'The weight {name} must have shape {shape}, but got {tuple(value.shape)}.')
  if dtype == 'float64' and jnp.result_type(float) != jnp.float64:
    raise TypeError(
      f'The weight {name} is float64, which JAX would round to float32: convert it to float32, or '
      'set jax_enable_x64.'
    )
  return jnp.asarray(value).astype(dtype)


def _of_torch(value: Any) -> tuple[np.ndarray, str]:
  """A tensor's numbers and its dtype; NumPy has no bfloat16, which float32 holds exactly."""
  value, dtype = value.detach().cpu(), str(value.dtype).removeprefix('torch.')
  return (value.float() if dtype == 'bfloat16' else value).numpy(), dtype


def _assembled(
  found: Mapping[str, AnyArray], attention: Attention, settings: Settings, fields: Fields
) -> dict[str, Any]:
  """The tree of a layer, from the weights by their names in the block."""
  names, heads, kv_heads = attention.names, settings.num_heads, settings.num_kv_heads
  counts = {} if settings.latent else {'query': heads, 'key': kv_heads, 'value': kv_heads}
  loaded: dict[str, Any] = {name: {} for name in (*counts, 'out')}
  if settings.gated:
    counts['gate'], loaded['gate'] = heads, {}
  for theirs, ours in (('weight', 'kernel'), ('bias', 'bias')):
    for name, array in _rows(found, names, settings, names.grouped(fields), theirs).items():
      if name in counts:
        loaded[name][ours] = kernel(array, counts[name])
      elif name == 'out':
        loaded[name][ours] = (
          array.T.reshape(heads, -1, settings.width) if array.ndim == 2 else array
        )
  if settings.use_bias and names.no_bias:
    missing = next(each for each in counts if getattr(names, each) == names.no_bias)
    loaded[missing]['bias'] = np.zeros_like(loaded['value']['bias'])
  if settings.sinks:
    loaded['sinks'] = found[names.sinks]
  if settings.latent is not None:
    return loaded | latent.assembled(found, settings)
  return loaded | _norms(found, attention, settings)


def _rows(
  found: Mapping[str, AnyArray], names: Names, settings: Settings, grouped: bool, theirs: str
) -> dict[str, AnyArray]:
  """The weights [outputs, inputs] of the four projections, or those of their biases there are."""
  own = {each: getattr(names, each) for each in ('query', 'key', 'value', 'out', 'fused')}
  if names.no_weight_suffix:
    there = _unnamed(found, own) if theirs == 'weight' else {}
  else:
    rows = {each: found.get(f'{name}.{theirs}') for each, name in own.items()}
    there = {each: array for each, array in rows.items() if array is not None}
  if names.transposed:
    there = {each: array.T for each, array in there.items()}
  if settings.gated and 'query' in there:
    both = there['query'].reshape(settings.num_heads, 2, settings.head_dim, -1)
    rest = there['query'].shape[1:]
    there['query'], there['gate'] = (both[:, i].reshape(-1, *rest) for i in range(2))
  fused = there.pop('fused', None)
  if fused is None:
    return there
  apart = _groups(fused, settings) if grouped else _shards(fused, settings, names)
  return there | apart


def _unnamed(found: Mapping[str, AnyArray], own: dict[str, str]) -> dict[str, AnyArray]:
  """The rows of weights [M, H, D]."""
  flat = lambda name: found[name].reshape(found[name].shape[0], -1)
  rows = {each: flat(own[each]).T for each in ('query', 'key', 'value')}
  return rows | {'out': flat(own['out'])}


def _groups(fused: AnyArray, settings: Settings) -> dict[str, AnyArray]:
  """The rows of a projection that has, for each key head, its queries, its key and its value."""
  each, rest = settings.num_heads // settings.num_kv_heads, fused.shape[1:]
  split = fused.reshape(settings.num_kv_heads, each + 2, settings.head_dim, *rest)
  parts = {'query': split[:, :each], 'key': split[:, each], 'value': split[:, each + 1]}
  return {name: part.reshape(-1, *rest) for name, part in parts.items()}


def grouped(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
  """The one projection of kernels [M, H, D], or biases [H, D], as `_groups` takes it apart."""
  heads, kv_heads, width = query.shape[-2], *key.shape[-2:]
  rows = lambda x: np.moveaxis(x, (-2, -1), (0, 1))
  split = lambda x: rows(x).reshape(kv_heads, -1, width, *x.shape[:-2])
  parts = [split(each) for each in (query, key, value)]
  whole = np.concatenate(parts, axis=1)
  return whole.reshape((heads + 2 * kv_heads) * width, *query.shape[:-2])


def _shards(fused: AnyArray, settings: Settings, names: Names) -> dict[str, AnyArray]:
  """The rows of a projection that has one kind after the other, perhaps in several parts."""
  counts, rest = dict.fromkeys(('key', 'value'), settings.num_kv_heads), fused.shape[1:]
  counts['query'] = settings.num_heads
  rows = [counts[name] * settings.head_dim // names.shards for name in names.order]
  whole, ends = fused.reshape(names.shards, -1, *rest), np.cumsum(rows)
  parts = [whole[:, end - count : end] for end, count in zip(ends, rows, strict=True)]
  pairs = zip(names.order, parts, strict=True)
  return {name: part.reshape(-1, *rest) for name, part in pairs}


def _norms(
  found: Mapping[str, AnyArray], attention: Attention, settings: Settings
) -> dict[str, Any]:
  """The norms of queries and keys."""
  if settings.qk_norm is None:
    return {}
  loaded: dict[str, Any] = {}
  for ours, theirs in (
    ('query_norm', attention.names.query_norm),
    ('key_norm', attention.names.key_norm),
  ):
    if not attention.norm_has_weights:
      loaded[ours] = {'scale': np.ones(settings.head_dim, np.float32)}
      continue
    own = {'scale': found[f'{theirs}.weight']}
    if settings.qk_norm.use_bias:
      own['bias'] = found[f'{theirs}.bias']
    if settings.qk_norm.heads == 'together':
      own = {name: array.reshape(-1, settings.head_dim) for name, array in own.items()}
    loaded[ours] = own
  return loaded
