"""Models of checkpoints, written back into a folder that transformers reads."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from posjax.arguments import shown
from posjax.expression import arguments_of
from posjax.interop import planning, reading
from posjax.interop.checkpoint import grouped, shapes_of
from posjax.interop.families import family_of
from posjax.interop.folder import write_folder
from posjax.interop.layers import type_of
from posjax.interop.planning import Planned, Whole
from posjax.interop.settings import part_of
from posjax.models import filling
from posjax.models import pretrained as models
from posjax.models.plans import Plan, runs
from posjax.scheme import Scheme, places

_LENGTH = 'original_max_position_embeddings'
# Files of a tokenizer, which are copied as they are.
_TOKENIZER = (
  *('tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json', 'added_tokens.json'),
  *('tokenizer.model', 'vocab.json', 'merges.txt', 'vocab.txt', 'spiece.model'),
  *('chat_template.jinja', 'chat_template.json', 'generation_config.json'),
)


def save(model: Any, folder: str | Path, *, tokenizer: str | Path | None = None) -> None:
  """Writes a model that `posjax.interop.load` made into a folder that transformers reads.

  The weights are written in the dtype in which the model has them. Where schemes took the place of
  the model's own, the configuration gets their names in transformers: RoPE with another base or
  factor, YaRN, dynamic NTK, Llama 3's scaling, and SmolLM 3's layers without positions.

  Args:
    model: the model, such as a run of training has it.
    folder: a new folder, or one without a checkpoint.
    tokenizer: a folder whose tokenizer is copied.

  Raises:
    ValueError: if the model is none of `load`, a scheme has no name in a configuration of its
      family, or the folder holds a checkpoint.
    FileNotFoundError: if the folder of the tokenizer has none.
  """
  source = getattr(model, 'source', None)
  if source is None:
    raise ValueError(
      f'posjax.interop.save takes a model of posjax.interop.load, but got {type(model).__name__}.'
    )
  copied = [] if tokenizer is None else _tokenizer_files(Path(tokenizer))
  plans = _plans_of(model)
  config = _config(json.loads(source.config), plans, source.length)
  blocks = [block for made in plans.values() for block in made.blocks]
  length = _argument([block.scheme for block in blocks], 'length') or source.length
  planned = planning.planned_of(planning.whole_of(config), plans, length)
  dtype = _dtype_of(model)
  new = New(planned, dtype)
  leaves = reading.leaves_of(planned, new, new.names)
  filling.write(model, leaves)
  _group(planned, leaves, new)
  config['dtype'] = str(dtype)
  config.pop('torch_dtype', None)
  write_folder(folder, config, new.weights)
  for path in copied:
    shutil.copyfile(path, Path(folder) / path.name)


def _plans_of(model: Any) -> dict[str | None, Plan]:
  if isinstance(model, models.Pretrained):
    return {None: model.plan}
  return {'encoder': model.encoder.plan, 'decoder': model.decoder.plan}


def _dtype_of(model: Any) -> Any:
  part = model if isinstance(model, models.Pretrained) else model.decoder
  return part.embed.dtype


class New:
  """Empty weights, which are made as they are asked for."""

  def __init__(self, planned: Planned, dtype: Any):
    self.weights: dict[str, np.ndarray] = {}
    self.names: list[str] = []
    self._dtype = jnp.dtype(dtype)
    whole = planned.whole
    for part, made in planned.plans.items():
      body = whole.body(part)
      prefix = body.prefixes[0]
      self.names.append(f'{prefix}{body.embedding}.weight')
      for own in (part, *(['cross'] if part == 'decoder' else [])):
        for index in range(len(made.blocks)):
          self.names += shapes_of(whole.config, index, part=own, prefix=prefix)

  def take(self, name: str, shape: tuple[int, ...] | None) -> np.ndarray:
    """An array for a weight; the same one for the same name."""
    if name not in self.weights:
      if shape is None:
        raise ValueError(f'The shape of {name} is not known.')
      self.weights[name] = np.zeros(shape, self._dtype)
    return self.weights[name]


def _group(planned: Planned, leaves: Mapping[Any, Any], new: New) -> None:
  """Writes the projections that hold queries, keys and values by key heads.

  Of all other weights, the leaves are views, which the model has been written into.
  """
  whole = planned.whole
  for part, made in planned.plans.items():
    names = part_of(whole.config, 0, part).attention.names
    if not names.fused or not names.grouped(whole.fields):
      continue
    prefix, start = whole.body(part).prefixes[0], 0
    for stack, (pattern, count) in enumerate(runs(made.blocks)):
      for index in range(start, start + count):
        repeat, place = divmod(index - start, len(pattern))
        block = f'{prefix}{part_of(whole.config, index, part).block()}{names.fused}'
        at = ('stack', 'stacks', stack, 'periods', place, 'attention')
        for ours, theirs in (('kernel', 'weight'), ('bias', 'bias')):
          if f'{block}.{theirs}' in new.weights:
            held = [leaves[(*at, name, ours)][repeat] for name in ('query', 'key', 'value')]
            new.weights[f'{block}.{theirs}'][...] = grouped(*held)
      start += count


def _config(
  config: dict[str, Any], plans: Mapping[str | None, Plan], length: int | None
) -> dict[str, Any]:
  """The configuration of the text model, with the names of its schemes.

  Raises:
    ValueError: if a scheme has no name there.
  """
  if isinstance(config.get('text_config'), Mapping):
    config = {**config['text_config']}
  config.pop('quantization_config', None)  # weights are written as they are computed with
  for plan in plans.values():
    if plan.readout is not None and not plan.readout.tied:
      config['tie_word_embeddings'] = False
  whole = planning.whole_of(config)
  for part, plan in plans.items():
    if plan.readout is not None and plan.readout.scale != whole.body(part).head_scale:
      raise ValueError(
        f'A configuration of the type {whole.kind} must not scale the input of a readout of its '
        f'own, but got the scale {plan.readout.scale:.3g}.'
      )
  schemes = {part: [block.scheme for block in plan.blocks] for part, plan in plans.items()}
  if _own(whole, length) == schemes:
    return config
  listed = [each for part in schemes.values() for each in part]
  changed = _named_config(config, whole, schemes, length)
  if changed is None:
    lines = ', '.join(dict.fromkeys(map(repr, listed)))
    raise ValueError(
      f'The schemes of the model must have a name in a configuration of the type {whole.kind}, but '
      f'got {lines}.'
    )
  return changed


def _named_config(
  config: dict[str, Any],
  whole: Whole,
  schemes: Mapping[str | None, Sequence[Scheme]],
  length: int | None,
) -> dict[str, Any] | None:
  """A configuration that has these schemes, as it is read again; None where there is none."""
  listed = [each for part in schemes.values() for each in part]
  try:
    changed = _renamed(config, whole, listed)
    found = _own(planning.whole_of(changed), _argument(listed, 'length') or length)
  except ValueError:
    return None
  return changed if found == schemes else None


def _own(whole: Whole, length: int | None) -> dict[str | None, list[Scheme]]:
  return {part: planning.own_schemes(whole, part, length) for part in whole.parts}


def _renamed(config: dict[str, Any], whole: Whole, schemes: Sequence[Scheme]) -> dict[str, Any]:
  """The configuration with the parameters of RoPE of the schemes, by the types of layers."""
  family = family_of(whole.fields)
  by_type: dict[str | None, Scheme] = {}
  for index, scheme in enumerate(schemes):
    if places(scheme):
      by_type.setdefault(type_of(family, whole.fields, index), scheme)
  changed, lengths = dict(config), []
  for name in ('rope_scaling', 'rope_theta', 'rope_local_base_freq'):
    changed.pop(name, None)
  found = {}
  for kind, scheme in by_type.items():
    found[kind], longest = _parameters(scheme)
    lengths.append(longest)
  one = len({repr(each) for each in found.values()}) == 1
  changed['rope_parameters'] = next(iter(found.values())) if one else found
  if any(lengths):
    changed['max_position_embeddings'] = max(filter(None, lengths))
  if whole.kind == 'smollm3':
    changed['no_rope_layers'] = [int(bool(places(each))) for each in schemes]
  return changed


def _parameters(scheme: Scheme) -> tuple[dict[str, Any], int | None]:
  """The parameters of RoPE in a configuration, and the longest text that it then declares.

  Raises:
    ValueError: if the scheme has no name there.
  """
  name, given = arguments_of(scheme)
  if name not in _NAMED:
    raise ValueError(f'The scheme {shown(repr(scheme))} has no name in transformers.')
  parameters, longest = _NAMED[name](given)
  if given.get('fraction', 1.0) != 1.0:
    parameters['partial_rotary_factor'] = given['fraction']
  return {'rope_theta': given['base'], **parameters}, longest


def _argument(schemes: Sequence[Scheme], name: str) -> Any:
  return next(
    (got[name] for got in (arguments_of(each)[1] for each in schemes) if name in got), None
  )


def _rope(given: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
  if given['factor'] == 1:
    return {'rope_type': 'default'}, None
  return {'rope_type': 'linear', 'factor': given['factor']}, None


def _yarn(given: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
  original = given['original_length']
  found = {'rope_type': 'yarn', 'factor': given['factor'], _LENGTH: original}
  found |= {each: given[each] for each in ('beta_fast', 'beta_slow', 'truncate')}
  if given['attention_factor'] is not None:
    found['attention_factor'] = given['attention_factor']
  if given['mscale_all_dim']:
    found |= {each: given[each] for each in ('mscale', 'mscale_all_dim')}
  return found, int(given['factor'] * original)


def _dynamic(given: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
  return {'rope_type': 'dynamic', 'factor': given['factor']}, given['original_length']


def _llama3(given: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
  return {
    **{'rope_type': 'llama3', 'factor': given['factor'], _LENGTH: given['original_length']},
    'low_freq_factor': given['low_frequency_factor'],
    'high_freq_factor': given['high_frequency_factor'],
  }, int(given['factor'] * given['original_length'])


_NAMED: dict[str, Callable[[dict[str, Any]], tuple[dict[str, Any], int | None]]] = {
  **{'rope': _rope, 'yarn': _yarn, 'dynamic_ntk': _dynamic, 'llama3': _llama3}
}


def _tokenizer_files(folder: Path) -> list[Path]:
  found = [folder / name for name in _TOKENIZER if (folder / name).is_file()]
  if not found:
    raise FileNotFoundError(f'The folder {folder} should hold a tokenizer, but has none.')
  return found
