"""Trains a Transformer with any positional scheme, and shows how far it extrapolates.

  python train.py
  python train.py --config.scheme='rope(base=5e5)' --config.steps=700 --workdir=runs/rope
  python train.py --config=configs/algorithmic.py --config.scheme='rope|none|none'
  python train.py --config=configs/classification.py --config.task.data=file:PATH
  python train.py --config=configs/default.py --config.mesh.data=2 --config.checkpoint.use=best

The work folder gets config.json, metrics.jsonl, TensorBoard events, checkpoints, results.json and
report.png. The same command again resumes, to the same losses: bit for bit on as many processors;
on another number of them, attention adds up in another order, and losses differ by rounding.
"""

import functools
import os
import re
import signal
import sys
from pathlib import Path

if __name__ == '__main__':  # a Ctrl-C while JAX is being loaded ends in no traceback either
  # No SystemExit, which a callback of JAX's would swallow.
  signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from absl import app, flags, logging

from posjax.experiment.flags import Command, find_packages_here, parse
from posjax.experiment.interrupt import leave_quietly
from posjax.experiment.plain import sentence
from posjax.experiment.run import Result, Setup, run, setup, train

__all__ = ['Result', 'Setup', 'main', 'run', 'setup', 'train']

DEFAULT = Path(__file__).parent / 'configs' / 'default.py'
LONGEST = 200  # letters of a folder's name


def main(command: Command) -> None:
  leave_quietly()
  logging.set_verbosity(logging.WARNING)  # orbax tells every file otherwise
  try:
    workdir = flags.FLAGS.workdir or default_workdir(command)
    prepared = setup(command.config, workdir, allow_changed_data=flags.FLAGS.allow_changed_data)
  except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
    sys.exit(f'train.py: error: {sentence(error)}')
  try:
    run(prepared)
  except (FloatingPointError, ValueError, OSError) as error:
    sys.exit(f'train.py: error: {sentence(error)}')
  finally:  # all is saved: a Ctrl-C while Python ends changes nothing
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def default_workdir(command: Command) -> Path:
  """A folder in runs/, named after the config file and the scheme."""
  scheme = re.sub(r'[^\w.=+-]+', '_', str(command.config.get('scheme')))  # what no shell must quote
  return Path('runs', f'{command.name}-{scheme.strip("_")}'[:LONGEST])


if __name__ == '__main__':
  find_packages_here()
  app.run(main, flags_parser=functools.partial(parse, default=DEFAULT))
