"""The config and the last model that train.py left in a work folder."""

from pathlib import Path
from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from posjax.attention.choice import OVER_DEVICES
from posjax.experiment import checkpoint, optimizer, settings, sharding, training, warm_start
from posjax.experiment import workdir as workdirs
from posjax.experiment.evaluation import higher
from posjax.experiment.task import Task


def read_config(workdir: Path) -> ConfigDict:
  """The config of the run in a folder."""
  path = workdir / workdirs.CONFIG
  if not path.is_file():
    what = 'holds no run of train.py' if workdir.is_dir() else 'is no folder'
    raise FileNotFoundError(f'{workdir} {what}: there is no {path.name}.')
  stored = workdirs.stored_config(workdir) or {}
  try:
    config = ConfigDict(_tuples(stored))
    settings.check(config)
    config = settings.with_defaults(config)
    if settings.attention_of(config).get('implementation') in OVER_DEVICES:
      config.attention.implementation = None  # a text that is asked is on no mesh
  except (ValueError, TypeError) as error:
    raise ValueError(f'{path}: {error}') from error
  return config


def restore(
  workdir: Path, config: ConfigDict, task: Task, step: int | None = None
) -> tuple[Any, nnx.State]:
  """The structure and the state of the model to ask, which `nnx.merge` puts together.

  It is the one that `config.checkpoint` chooses, of the checkpoints that there are by now; or that
  after a step, where 0 is before training.

  Raises:
    FileNotFoundError: if there is no checkpoint yet, or none after the step.
    ValueError: if the checkpoint is of another model than the config's, or there is none yet, or
      there are too few, that can be chosen.
  """
  transform = optimizer.make(config.steps, **config.optimizer)
  mesh, skip = sharding.make_mesh(), config.skip_not_finite
  graph, state = training.create(task, transform, mesh, config.seed, skip)
  if step != 0:
    choice = checkpoint.choose(config, higher(task))
    state, _ = checkpoint.chosen(workdir / workdirs.CHECKPOINTS, state, choice, step)
  elif config.start_from is not None:
    state, _ = warm_start.begin(Path(config.start_from), state, task)
  return graph, nnx.merge_state(state.params, state.rest)


def check_data(task: Task, workdir: Path) -> None:
  """Refuses other data than the run's, where words and labels are numbered by them."""
  seen, now = workdirs.data_history(workdir), task.facts.get('sha256')
  if task.vocabulary is None and seen and now is not None and seen[-1]['sha256'] != now:
    raise ValueError(
      f'{workdir} holds a model of data with the sha256 {seen[-1]["sha256"]}, from which its words '
      f'and labels have their numbers, but the data now have {now}: put the old data back.'
    )


def _tuples(value: Any) -> Any:
  """JSON has lists where a config has tuples."""
  if isinstance(value, dict):
    return {name: _tuples(each) for name, each in value.items()}
  return tuple(map(_tuples, value)) if isinstance(value, list) else value
