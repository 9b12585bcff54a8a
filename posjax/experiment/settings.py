"""The keys of a config, and their checks before a run is built.

The keys of a section are the arguments of the function that takes them, with their annotations
(`posjax/keys.py`). A task names who takes `config.model` by the annotation of its argument `model`.
The model also gets those keys of `config.attention` that are set.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from posjax.attention.dispatch import IMPLEMENTATIONS
from posjax.experiment import checkpoint, optimizer, sharding
from posjax.experiment.task import get_task
from posjax.keys import (
  Count,
  Key,
  Keys,
  OneOf,
  Range,
  Section,
  Seed,
  Whole,
  check_section,
  keys_of,
)

FROM_THE_RUN = (
  'seed',
  'batch_size',
  'vocabulary',
  'start_from',
)  # arguments of a task that are no keys of it

Portion = Annotated[float, Range(above=0, most=1)]
SectionOf = Mapping[str, Any]


class Rules(NamedTuple):
  """How runs are judged: the section `compare` of a config.

  Attributes:
    quality: the metric by which runs are compared, one of the headline evaluation; '' is its first.
    learned_by: the metric by which a run has learned, on rows of the training data where it is
      measured there, else on rows like them; '' is `quality`.
    learned: in (0, 1], the share of the way that a run must have gone to have learned: from 0 to
      the metric's best number; or, for a loss, from that of the best constant answer to 0. Where
      neither is known, every run counts as learned, and the tables say so.
    margin: the difference in `quality`, as it is shown, within which two schemes are equal; 0 is
      none, and nothing is then found equal.
  """

  quality: str
  learned_by: str
  learned: Portion
  margin: Annotated[float, Range(0)]


class Attention(NamedTuple):
  """The section `attention` of a config, for models that have some.

  Attributes:
    implementation: as `posjax.attend` takes it; None takes the one that `posjax.attention.chosen`
      names.
  """

  implementation: Annotated[str, OneOf(lambda: tuple(IMPLEMENTATIONS))] | None = None


class Run(NamedTuple):
  """A whole config.

  Attributes:
    scheme: as `posjax.get` reads it; '|' parts those of a pattern.
    seed: of everything random.
    steps: updates.
    batch_size: rows per update, all devices together.
    log_every: steps from one row of losses to the next.
    eval_every: steps from one evaluation to the next.
    checkpoint_every: steps from one checkpoint to the next.
    task: its `name`, and the arguments of its constructor.
    model: as the task has it.
    optimizer: of `optimizer.make`.
    checkpoint: of `checkpoint.read_section`.
    mesh: of `sharding.make_mesh`.
    attention: of `Attention`; a config without it leaves the choice to posjax.
    accumulate: parts of a batch whose gradients are added up, as of `training.make_step`.
    skip_not_finite: updates that may be skipped, as of `training.make_step`.
    profile: steps that `jax.profiler` traces, after the first two of a process; 0 traces none.
    start_from: the folder of a run whose weights this one begins with, or, for the task
      'checkpoint', that of a checkpoint of another library; None begins with new ones.
    compare: of comparisons alone, whose runs do not have it.
  """

  scheme: str
  seed: Seed
  steps: Count
  batch_size: Count
  log_every: Count
  eval_every: Count
  checkpoint_every: Count
  task: Annotated[SectionOf, Section(lambda: Keys({'name': Key(str)}, further=True))]
  model: SectionOf
  optimizer: Annotated[SectionOf, Section(lambda: keys_of(optimizer.make, ['steps']))]
  checkpoint: Annotated[SectionOf, Section(lambda: keys_of(checkpoint.read_section, FROM_ABOVE))]
  mesh: Annotated[SectionOf, Section(lambda: keys_of(sharding.make_mesh))]
  attention: Annotated[SectionOf, Section(lambda: keys_of(Attention))] = MappingProxyType({})
  accumulate: Count = 1
  skip_not_finite: Annotated[int, Range(0, 10**9)] = 0
  profile: Whole = 0
  start_from: str | None = None
  compare: Annotated[SectionOf, Section(lambda: keys_of(Rules))] = MappingProxyType({})


DEFAULTS = {
  name: value for name, value in Run._field_defaults.items() if not isinstance(value, Mapping)
}
FROM_ABOVE = ('steps', 'every', 'higher')  # arguments of `read_section` that other keys give


def with_defaults(config: ConfigDict) -> ConfigDict:
  """A config with the keys of `Run` that it lacks, as one of an earlier version may."""
  missing = {name: value for name, value in DEFAULTS.items() if name not in config}
  return ConfigDict({**config.copy_and_resolve_references(), **missing}) if missing else config


def check(config: ConfigDict) -> None:
  """Checks that a config has all keys, and no others, each with a value of its type and range.

  Raises:
    TypeError: if a value has another type.
    ValueError: if a key is unknown or missing, a value is out of range, or the task is unknown.
  """
  if not isinstance(config, ConfigDict):
    raise TypeError(f'A config must be a ConfigDict, but got {type(config).__name__}.')
  given = config.to_dict()
  check_section('', given, keys_of(Run))
  of_task, of_model = _task_keys(given['task']['name'])
  check_section('task', given['task'], of_task)
  check_section('model', given['model'], of_model)
  _check_attention(config, of_model)


def add_key(config: ConfigDict, name: str) -> bool:
  """Adds a key that the task, or its model, takes, and that the config does not list.

  So that a command can set it. Its value is None until then.

  Args:
    config: a config; changed in place.
    name: of the key, as 'model.query_key'.

  Returns:
    Whether it was added. Nothing is where the config has the key, or nobody takes it.
  """
  section, _, key = name.partition('.')
  try:
    known = dict(zip(('task', 'model'), _task_keys(config.task.name), strict=True))[section].known
    if key in config[section] or key not in known:
      return False
  except (AttributeError, KeyError, TypeError, ValueError):  # `check` says what is wrong
    return False
  with config.unlocked():
    config[section][key] = placeholder(_python_type(known[key].hint))
  return True


def _task_keys(name: str) -> tuple[Keys, Keys]:
  """The keys of `config.task` and of `config.model`, of the task of this name."""
  constructor = get_task(name)
  scheme, model, *_ = inspect.signature(constructor).parameters
  keys = keys_of(constructor, without=[scheme, *FROM_THE_RUN])
  own = {'name': Key(str), **keys.known}
  hint = own.pop(model, Key()).hint
  sections = [mark for mark in getattr(hint, '__metadata__', ()) if isinstance(mark, Section)]
  of_model = sections[0].keys() if sections else Keys({}, further=True)
  return keys._replace(known=own), of_model


def takes_lines(constructor: Callable[..., Any]) -> bool:
  """Whether a task takes the lines of its schemes, instead of schemes: its first argument says it.

  For models that have schemes of their own, by which a line is read.
  """
  return next(iter(inspect.signature(constructor).parameters)) == 'lines'


def _python_type(hint: Any) -> type:
  """The type that ml_collections reads a key as; `object` takes any literal."""
  if typing.get_origin(hint) is Annotated:
    return _python_type(hint.__origin__)
  if typing.get_origin(hint) is Literal:
    kinds = {type(value) for value in typing.get_args(hint)}
  elif typing.get_origin(hint) in (typing.Union, types.UnionType):
    kinds = {_python_type(each) for each in typing.get_args(hint) if each is not type(None)}
  else:
    kinds = {hint}
  kind = kinds.pop()
  return kind if not kinds and kind in (bool, int, float, str) else object


def attention_of(config: ConfigDict) -> dict[str, Any]:
  """The keys of `config.attention` that are set; none of a config without that section."""
  given = config.to_dict().get('attention', {})
  return {name: value for name, value in given.items() if value is not None}


def _check_attention(config: ConfigDict, keys: Keys) -> None:
  """Refuses keys of attention in `config.model`, and where the model of a task takes none."""
  for name in keys_of(Attention).known.keys() & config.model.keys():
    raise ValueError(f"The config has no key 'model.{name}'; did you mean 'attention.{name}'?")
  for name, value in attention_of(config).items():
    if name not in keys.known and not keys.further:
      raise ValueError(
        f'The model of the task {config.task.name!r} takes no attention.{name}, so it must be '
        f'None, but got {value!r}.'
      )
