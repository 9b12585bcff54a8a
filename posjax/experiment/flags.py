"""The command line: a config file, changes to its keys, and a work folder."""

import sys
from pathlib import Path

from absl import app, flags
from ml_collections import config_flags


def parse(argv: list[str], default: Path) -> list[str]:
  """Defines and reads the flags of a run; whatever is wrong with them ends in one sentence.

  Args:
    argv: the command line.
    default: the config that is read where none is given.

  Returns:
    What is left of the command line.
  """
  flags.DEFINE_string('workdir', None, 'Folder of the run; by default one in runs/.')
  flags.DEFINE_boolean(
    'allow_changed_data', False, 'Goes on though the data changed since the run began.'
  )
  try:
    config_flags.DEFINE_config_file('config', str(default), lock_config=True)
    rest = app.parse_flags_with_usage(argv)
    flags.FLAGS.config.keys()  # a file that did not load is told at its first use
    return rest
  except (AttributeError, KeyError, TypeError, ValueError, OSError, flags.Error) as error:
    message = str(error).replace('\\n', ' ').replace("\\'", "'")
    sys.exit(f'{Path(argv[0]).name}: error: {" ".join(message.split())}')
