"""A grid of runs: schemes, times values of config keys, times seeds."""

import ast
import copy
import difflib
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import posjax
from posjax.experiment import settings
from posjax.interop.replacement import OWN

_OPEN, _CLOSE = '([{', ')]}'
Axis = tuple[str, Sequence[Any]]  # a config key, and its values


class Cell(NamedTuple):
  """One run of the grid.

  Attributes:
    id: its name, and its folder's: the same for the same config, whatever else is in the grid.
    scheme: as the command line had it.
    axes: value by config key, of the axes of the grid.
    seed: of everything random in it.
    config: as train.py takes it.
  """

  id: str
  scheme: str
  axes: dict[str, Any]
  seed: int
  config: ConfigDict


def split(text: str) -> tuple[str, ...]:
  """Cuts a line at its commas; those within brackets or quotes belong to arguments.

  Raises:
    ValueError: if a part is empty, or a bracket or quote stays open.

  Example:
    >>> split('alibi, randomized(max_length=2048)+rope')
    ('alibi', 'randomized(max_length=2048)+rope')
  """
  parts, depth, least, quote = [''], 0, 0, ''
  for letter in text:
    if quote:
      quote = '' if letter == quote else quote
    elif letter in '\'"':
      quote = letter
    depth += 0 if quote else (letter in _OPEN) - (letter in _CLOSE)
    least = min(least, depth)
    if letter == ',' and not depth and not quote:
      parts.append('')
    else:
      parts[-1] += letter
  parts = [part.strip() for part in parts]
  if depth or least or quote or not all(parts):
    raise ValueError(
      f'A list must read like "rope,t5(bidirectional=True)", with every bracket and quote '
      f'closed and no part empty, but got {text!r}.'
    )
  return tuple(parts)


def read_schemes(text: str) -> tuple[str, ...]:
  """The schemes of a command line, each of which can be made."""
  schemes = split(text)
  for scheme in schemes:
    for layer in scheme.split('|'):
      if layer.strip() != OWN:  # that of a checkpoint
        posjax.get(layer)
  return _distinct('schemes', schemes)


def read_axis(text: str, config: ConfigDict) -> Axis:
  """An axis `key=value,value`: the key, and values that the config takes.

  A key that the config does not list, and that its task or model takes, is added to it.
  """
  key, equals, values = text.partition('=')
  if not equals:
    raise ValueError(f'An axis must read like model.num_layers=2,4, but got {text!r}.')
  if key in ('scheme', 'seed') or key.startswith('compare.'):
    raise ValueError(f'{key} can be no axis: there are --schemes and --seeds, but got {text!r}.')
  known = list(flat(config.to_dict()))
  if key not in known and not settings.add_key(config, key):
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else '.'
    raise ValueError(f"The config has no key '{key}'{hint} There are: {', '.join(known)}.")
  return key, _distinct(key, tuple(_taken(config, key, value) for value in split(values)))


def cells(
  config: ConfigDict,
  schemes: Sequence[str],
  axes: Sequence[Axis],
  seeds: int,
  chosen: Mapping[tuple[str, str], Mapping[str, Any]] = MappingProxyType({}),
) -> list[Cell]:
  """All runs of a grid; seeds count up from the config's, and are outermost.

  So that a grid that is stopped half-way has something to say of every scheme.

  Args:
    config: of which the runs differ in scheme, axes and seed.
    schemes: lines of `posjax.get`.
    axes: config keys to vary.
    seeds: how many.
    chosen: by scheme and axes as text, values of further config keys, see `tuning`.
  """
  if seeds < 1:
    raise ValueError(f'--seeds must be at least 1, but got {seeds}.')
  _distinct('axes', tuple(key for key, _ in axes))
  keys = [key for key, _ in axes]
  every = itertools.product(*(values for _, values in axes))
  points = [dict(zip(keys, values, strict=True)) for values in every]
  return [
    _cell(config, scheme, axes, config.seed + seed, chosen.get((scheme, str(axes)), {}))
    for seed in range(seeds)
    for scheme in schemes
    for axes in points
  ]


def _cell(
  config: ConfigDict, scheme: str, axes: dict[str, Any], seed: int, values: Mapping[str, Any]
) -> Cell:
  mine = config.copy_and_resolve_references()
  mine.update_from_flattened_dict({**axes, **values, 'scheme': scheme, 'seed': seed})
  text = json.dumps(_identity(json.loads(mine.to_json_best_effort())), sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()[:10]
  words = [scheme, *(f'{key.rpartition(".")[2]}={value}' for key, value in axes.items())]
  plain = re.sub(r'[^\w.=+-]+', '_', '-'.join(words)).strip('_')  # what no shell must quote
  return Cell(f'{plain[:60]}-seed={seed}-{digest}', scheme, axes, seed, mine)


def _identity(config: dict[str, Any]) -> dict[str, Any]:
  """The config, without keys that are younger than published runs, where they change nothing."""
  config = copy.deepcopy(config)
  if config.get('model', {}).get('dtype') == 'float32':
    del config['model']['dtype']
  if config.get('attention') == {'implementation': None}:
    del config['attention']
  if not has_lstm(config):
    config.get('model', {}).pop('forget_bias', None)
  if config.get('model', {}).get('query_key') == 'free':
    del config['model']['query_key']
  if config.get('model', {}).get('remat_policy') is None:
    config.get('model', {}).pop('remat_policy', None)
  if config.get('mesh', {}).get('context') == 1:
    del config['mesh']['context']
  for name, value in settings.DEFAULTS.items():
    if config.get(name) == value:
      config.pop(name, None)
  return config


def has_lstm(config: Mapping[str, Any]) -> bool:
  """Whether the model of a config has LSTM cells."""
  model = config.get('model', {})
  kinds = [model.get(key) for key in ('encoder', 'cell', 'characters')]
  return 'lstm' in kinds or config.get('task', {}).get('architecture') == 'esim'


def flat(values: Mapping[str, Any], before: str = '') -> dict[str, Any]:
  """Every key that holds a value, as 'model.num_layers'."""
  found = {}
  for key, value in values.items():
    if isinstance(value, Mapping):
      found |= flat(value, f'{before}{key}.')
    else:
      found[before + key] = value
  return found


def _taken(config: ConfigDict, key: str, text: str) -> Any:
  """A value as the config holds it: a word where it holds a word, a literal elsewhere."""
  trial = config.copy_and_resolve_references()
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    value = text
  try:
    trial.update_from_flattened_dict({key: value})
  except (TypeError, ValueError):
    held = type(flat(config.to_dict())[key]).__name__
    raise ValueError(f'{key} must be of type {held}, but got {text!r}.') from None
  return flat(trial.to_dict())[key]


def _distinct(what: str, values: tuple) -> tuple:
  twice = [value for i, value in enumerate(values) if value in values[:i]]
  if twice:
    raise ValueError(f'Each of the {what} must be given once, but got {twice[0]!r} twice.')
  return values
