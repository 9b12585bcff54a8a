"""Asks a trained model: a continuation, a label or an answer, as its task has it.

  python -m posjax.experiment.ask --workdir=runs/text8-rope 'the history of '
  echo 'the history of ' | python -m posjax.experiment.ask --workdir=runs/text8-rope -

The work folder is one of train.py: its config, its vocabulary and its last checkpoint are used.
"""

import argparse
import sys
from pathlib import Path

import jax
from absl import logging
from flax import nnx
from ml_collections import ConfigDict

from posjax.experiment import trained
from posjax.experiment.run import make_task


def ask(workdir: str | Path, text: str, *, seed: int = 0, length: int | None = None) -> str:
  """What the model of a work folder says to a text.

  Args:
    workdir: a folder of train.py, which may still be training.
    text: what to continue, to label or to answer, as the task takes it.
    seed: of what is sampled, and of random ids.
    length: tokens to say, for tasks that have a `sample_length`; by default that one.

  Raises:
    FileNotFoundError: if there is no run in the folder, or no checkpoint yet.
    ValueError: if the task cannot be asked, the text cannot be read, a number is out of range, or
      the checkpoint is of another model than the folder's config.
  """
  workdir = Path(workdir)
  config = trained.read_config(workdir)
  if not text:
    raise ValueError('The text to ask is empty.')
  if length is not None:
    _set_length(config, length)
  task = make_task(config, workdir)
  if task.ask is None:
    raise ValueError(f'{workdir}: this model of the task {config.task.name} cannot be asked.')
  model = nnx.merge(*trained.restore(workdir, config, task))
  return task.ask(model, text, jax.random.key(seed))


def _set_length(config: ConfigDict, length: int) -> None:
  if 'sample_length' not in config.task:
    raise ValueError(f'The task {config.task.name} says as much as it has to: it takes no length.')
  if length < 1:
    raise ValueError(f'length must be at least 1, but got {length}.')
  config.task.sample_length = length


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser('ask', description='Asks a model that train.py has trained.')
  parser.add_argument('--workdir', required=True, help='folder of the run')
  parser.add_argument('--length', type=int, help="tokens to say; by default the config's")
  parser.add_argument('--seed', type=int, default=0, help='of what is sampled')
  parser.add_argument('text', help="what to ask; '-' reads it from the standard input")
  given = parser.parse_args()
  logging.set_verbosity(logging.ERROR)  # orbax says at length that it only reads
  try:
    text = sys.stdin.read().removesuffix('\n') if given.text == '-' else given.text
    print(ask(given.workdir, text, seed=given.seed, length=given.length))
  except (ValueError, TypeError, OSError, ImportError) as error:
    sys.exit(f'ask: error: {error}')


if __name__ == '__main__':
  main()
