"""Config keys that earlier versions did not have, with values that stand for what those did.

A work folder keeps its config as config.json, and a cell of a comparison is named by a hash of its
config. Without this table, both would change whenever a key is added. Whoever adds a key to
configs/default.py, with the value that does what was done before, adds it here too.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

ADDED: Mapping[str, Any] = MappingProxyType(
  {
    'optimizer.name': 'adamw',
    'optimizer.schedule': 'cosine',
    'optimizer.momentum': None,
    'optimizer.clip_value': None,
    'checkpoint.keep': 2,
    'checkpoint.use': 'last',
    'checkpoint.metric': None,
    'checkpoint.mean_of': None,
  }
)


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
  """A config of an earlier version, as nested dicts, with the keys that it lacks.

  Example:
    >>> completed({'steps': 3})['checkpoint']['use']
    'last'
  """
  whole = {**config}
  for key, value in ADDED.items():
    section, _, name = key.partition('.')
    whole[section] = {name: value, **whole.get(section, {})}
  return whole


def reduced(config: Mapping[str, Any]) -> dict[str, Any]:
  """A config as an earlier version wrote it, where it does what that version did.

  Keys of the table are left out where they have the table's value, and sections that hold no key
  then.

  Example:
    >>> reduced({'steps': 3, 'checkpoint': {'keep': 2, 'use': 'best'}})
    {'steps': 3, 'checkpoint': {'use': 'best'}}
  """
  short = {**config}
  for key, value in ADDED.items():
    section, _, name = key.partition('.')
    if name in short.get(section, {}) and short[section][name] == value:
      short[section] = {key: kept for key, kept in short[section].items() if key != name}
      if not short[section]:
        del short[section]
  return short
