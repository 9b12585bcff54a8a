"""The keys of a whole config: where each of them is read, and their checks before a run is built.

The keys of a section are the arguments of the function that reads it, with their annotations
(`checks.py`). A task names the reader of `config.model` by the annotation of its argument `model`.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from posjax.experiment import checkpoint, optimizer, sharding
from posjax.experiment.compare.summary import Rules
from posjax.experiment.task import get_task
from posjax.keys import Count, Key, Keys, Seed, check_section, check_value, keys_of

SECTIONS = ('task', 'model', 'optimizer', 'checkpoint', 'mesh')
FROM_ABOVE = ('steps', 'every', 'higher')  # arguments of a reader that other keys give
FROM_THE_RUN = ('seed', 'batch_size', 'vocabulary')  # arguments of a task that are no keys of it


class Run(NamedTuple):
  """The keys that stand in no section.

  Attributes:
    scheme: as `posjax.get` reads it; '|' parts those of a pattern.
    seed: of everything random.
    steps: updates.
    batch_size: rows per update, all devices together.
    log_every: steps from one row of losses to the next.
    eval_every: steps from one evaluation to the next.
    checkpoint_every: steps from one checkpoint to the next.
  """

  scheme: str
  seed: Seed
  steps: Count
  batch_size: Count
  log_every: Count
  eval_every: Count
  checkpoint_every: Count


def check(config: ConfigDict) -> None:
  """Checks that a config has all keys, and no others, each with a value of its type and range.

  Raises:
    TypeError: if a value has another type.
    ValueError: if a key is unknown or missing, a value is out of range, or the task is unknown.
  """
  if not isinstance(config, ConfigDict):
    raise TypeError(f'A config must be a ConfigDict, but got {type(config).__name__}.')
  given = config.to_dict()
  sections = {name: Key(Mapping[str, Any]) for name in SECTIONS}
  # `compare` is read by comparisons alone, whose runs do not have it.
  sections['compare'] = Key(Mapping[str, Any], required=False)
  check_section('', given, Keys({**keys_of(Run).known, **sections}))
  check_section('task', given['task'], Keys({'name': Key(str)}, further=True))
  check_section('optimizer', given['optimizer'], keys_of(optimizer.make, without=['steps']))
  check_section('checkpoint', given['checkpoint'], keys_of(checkpoint.read_section, FROM_ABOVE))
  check_section('mesh', given['mesh'], keys_of(sharding.make_mesh))
  if 'compare' in given:
    check_section('compare', given['compare'], keys_of(Rules))
  _check_task(given['task'], given['model'])


def _check_task(task: Mapping[str, Any], model: Mapping[str, Any]) -> None:
  constructor = get_task(task['name'])
  scheme, reader, *_ = inspect.signature(constructor).parameters
  keys = keys_of(constructor, without=[scheme, *FROM_THE_RUN])
  own = {'name': Key(str), **keys.known}
  hint = own.pop(reader, Key()).hint
  check_section('task', task, keys._replace(known=own))
  check_value('model', hint, model)
