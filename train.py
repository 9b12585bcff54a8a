"""Trains a Transformer with any positional scheme, and shows how far it extrapolates.

  python train.py --config=configs/default.py --config.scheme='rope(base=5e5)'

The work folder gets config.json, metrics.jsonl, TensorBoard events, checkpoints, results.json and
report.png. The same command again resumes, to the same losses: bit for bit on as many processors;
on another number of them, attention adds up in another order, and losses differ by rounding.
"""

import functools
import re
import sys
from pathlib import Path

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from posjax.experiment.flags import parse
from posjax.experiment.plain import sentence
from posjax.experiment.run import Result, Setup, run, setup, train

__all__ = ['Result', 'Setup', 'main', 'run', 'setup', 'train']

DEFAULT = Path(__file__).parent / 'configs' / 'default.py'
LONGEST = 200  # letters of a folder's name


def main(argv: list[str]) -> None:
  del argv  # every argument is a flag
  logging.set_verbosity(logging.WARNING)  # orbax tells every file otherwise
  config = flags.FLAGS.config
  try:
    prepared = setup(config, flags.FLAGS.workdir or default_workdir(config))
  except (ValueError, TypeError, OSError, ImportError) as error:
    sys.exit(f'train.py: error: {sentence(error)}')
  try:
    run(prepared)
  except FloatingPointError as error:
    sys.exit(f'train.py: error: {error}')


def default_workdir(config: ConfigDict) -> Path:
  """A folder in runs/, named after the config file and the scheme."""
  name = Path(config_flags.get_config_filename(flags.FLAGS['config'])).stem
  scheme = re.sub(r'[^\w.=+-]+', '_', str(config.get('scheme'))).strip(
    '_'
  )  # what no shell must quote
  return Path('runs', f'{name}-{scheme}'[:LONGEST])


if __name__ == '__main__':
  app.run(main, flags_parser=functools.partial(parse, default=DEFAULT))
