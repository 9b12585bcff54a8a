"""Every key of every config against values of other types, and keys that are unknown or missing."""

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest
from ml_collections import ConfigDict

import configs
from posjax.experiment import settings
from posjax.experiment.task import get_task

NAMES = [module.name for module in pkgutil.iter_modules(configs.__path__)]
FOREIGN = ({'a': 1}, b'x', ('a', 1), [None, 0.5, 'a'])  # no key of any config takes one of these


def loose(name: str) -> ConfigDict:
  """A config that takes any value, as one does that somebody else wrote."""
  made = importlib.import_module(f'configs.{name}').get_config()
  return ConfigDict(made.to_dict(), type_safe=False)


def keys(config: ConfigDict, prefix: str = '') -> list[tuple[ConfigDict, str, str]]:
  """The section of each key, its name there, and its full name."""
  found = []
  for name, value in config.items():
    found.append((config, name, prefix + name))
    if isinstance(value, ConfigDict):
      found += keys(value, f'{prefix}{name}.')
  return found


def refused(config: ConfigDict) -> str:
  """The message with which a config is refused."""
  with pytest.raises((ValueError, TypeError)) as caught:
    settings.check(config)
  message = str(caught.value)
  assert '\n' not in message
  assert message.endswith(('.', '?'))
  return message


@pytest.mark.parametrize('name', NAMES)
def test_every_config_passes_and_each_of_its_keys_refuses_values_of_other_types(name, unchecked):
  config = loose(name)
  settings.check(config)
  for section, key, whole in keys(config):
    before: Any = section[key]
    for value in FOREIGN:
      if not (isinstance(before, ConfigDict) and isinstance(value, dict)):
        section[key] = value
        message = refused(config)
        assert re.match(rf'(config\.)?{re.escape(whole)}(\[0\])? must be ', message), message
    section[key] = before


def test_an_unknown_key_is_told_with_the_one_that_was_probably_meant(unchecked):
  for key, meant in {
    'stepz': 'steps',
    'task.lenght': 'task.length',
    'model.num_layer': 'model.num_layers',
    'optimizer.learnin_rate': 'optimizer.learning_rate',
    'checkpoint.kep': 'checkpoint.keep',
    'mesh.dat': 'mesh.data',
    'compare.qualit': 'compare.quality',
  }.items():
    config = loose('default')
    *path, last = key.split('.')
    for part in path:
      config_part = config[part]
      config_part[last] = 1
    if not path:
      config[last] = 1
    assert refused(config) == f"The config has no key '{key}'; did you mean '{meant}'?"


def test_a_number_out_of_its_range_is_refused_by_the_name_of_its_key(unchecked):
  for name, section, key, value in (
    ('algorithmic', 'task', 'eval_examples', 0),
    ('default', 'task', 'length', 0),
    ('default', 'task', 'sample_length', -1),
    ('default', 'model', 'num_heads', 0),
    ('default', 'checkpoint', 'keep', 0),
    ('default', 'compare', 'learned', 90.0),
    ('default', 'compare', 'learned', 0.0),
    ('default', 'compare', 'margin', -0.5),
  ):
    config = loose(name)
    config[section][key] = value
    message = refused(config)
    assert message.startswith(f'{section}.{key} must be ')
    assert message.endswith(f'but got {value}.')


def test_a_missing_key_is_named(unchecked):
  for key in ('steps', 'mesh', 'task.length', 'model.width', 'optimizer.b1', 'task.name'):
    config = loose('default')
    *path, last = key.split('.')
    section = config[path[0]] if path else config
    del section[last]
    assert refused(config) == f"The config must have the key '{key}', but it is missing."


@pytest.mark.parametrize('name', NAMES)
def test_every_key_that_a_task_or_its_model_takes_can_be_added_to_its_config(name, unchecked):
  config = importlib.import_module(f'configs.{name}').get_config()
  before = config.copy_and_resolve_references()
  constructor = get_task(config.task.name)
  parameters = inspect.signature(constructor).parameters
  model = list(parameters)[1]
  of_model = parameters[model].annotation.__metadata__[0].keys().known
  of_task = set(parameters) - {*list(parameters)[:2], *settings.FROM_THE_RUN}
  for key in (*(f'task.{each}' for each in of_task), *(f'model.{each}' for each in of_model)):
    section, _, last = key.partition('.')
    assert settings.add_key(config, key) == (last not in before[section])
    assert last in config[section]
    assert not settings.add_key(config, key)


def test_a_key_that_nobody_takes_is_not_added(unchecked):
  config = importlib.import_module('configs.translation').get_config()
  before = config.to_dict()
  for key in ('model.normm', 'model', 'model.norm.x', 'task.seed', 'nothing.norm', 'seed', ''):
    assert not settings.add_key(config, key)
  assert config.to_dict() == before


def test_what_is_no_config_is_refused(unchecked):
  with pytest.raises(TypeError, match='A config must be a ConfigDict, but got dict'):
    settings.check({'steps': 3})
