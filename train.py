"""Trains a Transformer with any positional scheme, and shows how far it extrapolates.

  python train.py
  python train.py --config.scheme='rope(base=5e5)' --config.steps=700 --workdir=runs/rope
  python train.py --config=configs/algorithmic.py --config.scheme='rope|none|none'
  python train.py --config=configs/classification.py --config.task.data=file:PATH
  python train.py --config=configs/default.py --config.mesh.data=2 --config.checkpoint.use=best
  python train.py --cluster --config.mesh.data=32   # on every host (docs/scaling.md)

The work folder gets config.json, metrics.jsonl, TensorBoard events, checkpoints, results.json and
report.png. The same command again resumes, to the same losses: bit for bit on as many processors;
on another number of them, attention adds up in another order, and losses differ by rounding.

The exit code is 0 where the run has ended, 143 after SIGTERM and 130 after Ctrl-C, 1 after an error
and 2 where the command line is wrong.
"""

import os
import re
import signal
import sys
from pathlib import Path
from typing import NoReturn

if __name__ == '__main__':  # a Ctrl-C while JAX is being loaded ends in no traceback either
  # No SystemExit, which a callback of JAX's would swallow.
  signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import jax
from absl import app, flags, logging

from posjax.experiment import cluster, interrupt
from posjax.experiment.flags import Command, find_packages_here, parse
from posjax.experiment.interrupt import leave_quietly
from posjax.experiment.plain import sentence
from posjax.experiment.run import Result, Setup, run, setup, train
from posjax.experiment.workdir import is_first

__all__ = ['Result', 'Setup', 'main', 'run', 'setup', 'train']

DEFAULT = Path(__file__).parent / 'configs' / 'default.py'
LONGEST = 200  # letters of a folder's name


def main(command: Command) -> None:
  leave_quietly()
  logging.set_verbosity(logging.WARNING)  # orbax tells every file otherwise
  try:
    given = {name: flags.FLAGS[name].value for name in ('coordinator', 'processes', 'process')}
    cluster.join(**given, cluster=flags.FLAGS.cluster)
    if not is_first():
      sys.stdout = open(os.devnull, 'w')  # noqa: SIM115, since it is open to the end
    workdir = flags.FLAGS.workdir or default_workdir(command)
    prepared = setup(command.config, workdir, allow_changed_data=flags.FLAGS.allow_changed_data)
  except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
    end(error)
  except RuntimeError as error:
    end_if_lost(error)
    raise
  try:
    result = run(prepared)
  except (FloatingPointError, ValueError, OSError) as error:
    end(error)
  except RuntimeError as error:
    end_if_lost(error)
    raise
  finally:  # all is saved: a Ctrl-C while Python ends changes nothing
    signal.signal(signal.SIGINT, signal.SIG_IGN)
  if result is None:
    sys.exit(interrupt.status())


def end_if_lost(error: Exception) -> None:
  if cluster.is_lost(error):
    end(cluster.lost(error))


def end(error: Exception) -> NoReturn:
  """Ends this process in one sentence; one of several at once, since JAX would wait for them."""
  print(f'train.py: error: {sentence(error)}', file=sys.stderr, flush=True)
  if jax.distributed.is_initialized():
    os._exit(1)
  sys.exit(1)


def read(argv: list[str]) -> Command:
  """Defines and reads the command line."""
  own = [
    flags.DEFINE_string('coordinator', None, 'HOST:PORT of the first of several processes.'),
    flags.DEFINE_integer('processes', None, 'How many processes train together.'),
    flags.DEFINE_integer('process', None, 'Which of them this one is, from 0.'),
    flags.DEFINE_boolean(
      'cluster', False, 'Reads these three from the environment of SLURM, Cloud TPU, GKE or MPI.'
    ),
  ]
  return parse(argv, DEFAULT, own)


def default_workdir(command: Command) -> Path:
  """A folder in runs/, named after the config file and the scheme."""
  scheme = re.sub(r'[^\w.=+-]+', '_', str(command.config.get('scheme')))  # what no shell must quote
  return Path('runs', f'{command.name}-{scheme.strip("_")}'[:LONGEST])


if __name__ == '__main__':
  find_packages_here()
  app.run(main, flags_parser=read)
