"""The command line: a config file, changes to its keys, and a work folder.

The flags are absl's, and those of the config's keys `ml_collections.config_flags`'. Errors end in
one line: with status 2 those of the command line, with status 1 those of the config file.
"""

import ast
import contextlib
import functools
import os
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from posjax.experiment import settings


class Command(NamedTuple):
  """A command line.

  Attributes:
    config: of its config file, with the keys set that it sets.
    name: of the config file, without folders and ending.
  """

  config: ConfigDict
  name: str


class BadFile(Exception):
  """A config file that does not make a config."""


def find_packages_here() -> None:
  """Lets Python find the packages of the current folder, as `python -m` does for other commands.

  `python FOLDER/train.py` looks in the folder of the script alone. That one stays first, since the
  configs of this repository import `configs`, and a project may well have a folder of that name.
  Whoever forbids it to Python (`-P`, `PYTHONSAFEPATH`) is obeyed.
  """
  here = os.getcwd()
  if not sys.flags.safe_path and here not in sys.path:
    sys.path.insert(1, here)


def parse(argv: list[str], default: Path, others: Sequence[flags.FlagHolder[Any]] = ()) -> Command:
  """Defines and reads the flags of a run; errors, and --help, end the process.

  Args:
    argv: the command line.
    default: the config that is read where none is given.
    others: the flags that the command has besides; `--help` lists them, too.
  """
  program = Path(argv[0]).name
  flags.DEFINE_string('workdir', None, 'Folder of the run; by default one in runs/.')
  flags.DEFINE_boolean(
    'allow_changed_data', False, 'Goes on though the data changed since the run began.'
  )
  if not {'-h', '-help', '--help', '-helpshort', '--helpshort', '-?'}.isdisjoint(argv[1:]):
    print(_help(default, ['workdir', 'allow_changed_data', *(holder.name for holder in others)]))
    sys.exit(0)
  # --config is read before the flags of its keys can be defined; of several, the last one counts.
  file = flags.FlagValues()
  file.set_gnu_getopt(True)
  flags.DEFINE_string('config', str(default), 'A config file.', flag_values=file)
  try:
    argv = file(argv, known_only=True)
    path = str(file['config'].value)
    config = load(path)
    for key in re.findall(r'^--?(?:no)?config\.([\w.]+)', '\n'.join(argv[1:]), re.MULTILINE):
      settings.add_key(config, key)
    config_flags.DEFINE_config_dict('config', config, sys_argv=argv)
    extra = flags.FLAGS(argv)[1:]
    if extra:
      raise flags.Error(
        f'after {program} come flags alone, as --workdir=FOLDER, but got {extra[0]!r}.'
      )
  except BadFile as error:
    _end(program, str(error), 1)
  except (AttributeError, KeyError) as error:
    key, _, hint = str(_text(error)).partition('\n')
    _end(program, f'The config has no such key: {key}{hint and f". {hint}"}', 2)
  except (flags.Error, TypeError, ValueError, OSError) as error:
    _end(program, str(error), 2)
  return Command(flags.FLAGS.config, Path(path.partition(':')[0]).stem)


def _help(default: Path, names: Sequence[str]) -> str:
  """The docstring of the command, and its flags with their defaults."""
  known = {
    '--config=FILE': f'A config: a Python file with a function get_config. Default: {default}.',
    '--config.KEY=VALUE': (
      'Sets a key of the config, as --config.steps=700 or --config.model.width=64. The files in '
      'configs/ have the keys with their meanings; others that the task or its model takes can be '
      'set, too.'
    ),
  }
  for name in names:
    flag = flags.FLAGS[name]
    value = '' if flag.boolean else f'={flag.flag_type().rpartition(" ")[2].upper()}'
    text = ' '.join(str(flag.help).split())
    known[f'--{name}{value}'] = text if not flag.default else f'{text} Default: {flag.default}.'
  known['--helpfull'] = 'Lists the flags of the libraries, too.'
  indent = {'initial_indent': ' ' * 6, 'subsequent_indent': ' ' * 6}
  wrapped = functools.partial(textwrap.fill, width=90, **indent)
  listed = (f'  {flag}\n{wrapped(text)}' for flag, text in known.items())
  about = (sys.modules['__main__'].__doc__ or '').strip()
  return '\n'.join([about, '', 'Flags:', *listed])


def load(path: str) -> ConfigDict:
  """Runs a config file.

  Args:
    path: of the file; what follows its first colon is handed to `get_config`.

  Raises:
    BadFile: with the file and the line, if there is none, or it does not make a config.
  """
  name, colon, argument = path.partition(':')
  if not Path(name).is_file():
    raise BadFile(f'--config must be a Python file with a function get_config, but got {name!r}.')
  try:
    module = types.ModuleType('config')
    module.__file__ = name
    SourceFileLoader('config', name).exec_module(module)
    config = module.get_config(*([argument] if colon else []))
  except (Exception, SystemExit) as error:
    kind = type(error).__name__
    raise BadFile(f'{_place(error, name)}: {kind}: {_text(error)}') from error
  if not isinstance(config, ConfigDict):
    got = type(config).__name__
    raise BadFile(f'{name}: get_config() must return a ConfigDict, but it returned {got}.')
  return config


def _place(error: BaseException, name: str) -> str:
  """The line of a config file at which an error was raised, where it was raised there."""
  if isinstance(error, SyntaxError) and error.filename:
    return f'{error.filename}, line {error.lineno}'
  frames = traceback.extract_tb(error.__traceback__)
  lines = [each.lineno for each in frames if each.filename == name]
  return f'{name}, line {lines[-1]}' if lines else name


def _text(error: BaseException) -> str:
  """The message of an error; those of ml_collections may hold another as Python prints it."""
  text = error.msg if isinstance(error, SyntaxError) else str(error)
  with contextlib.suppress(ValueError, SyntaxError):
    text = str(ast.literal_eval(text))
  return text


def _end(program: str, message: str, status: int) -> NoReturn:
  print(f'{program}: error: {" ".join(message.split())}', file=sys.stderr)
  sys.exit(status)
