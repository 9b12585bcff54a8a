"""The command line: a config file, changes to its keys, and a work folder.

Whatever is wrong ends in one sentence: with status 2 where the command line itself is, with status
1 where the config file is.
"""

import difflib
import functools
import os
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from posjax.experiment.plain import sentence
from posjax.keys import unknown_key

FORMS = {
  'int': 'an integer',
  'float': 'a number',
  'bool': 'true or false',
  'string': 'a string',
}


class BadFlag(Exception):
  """A flag that there is not, or a value that it does not take."""


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


def parse(
  argv: list[str], default: Path, others: Sequence[flags.FlagHolder[Any]] = ()
) -> list[str]:
  """Defines and reads the flags of a run; whatever is wrong with them ends in one sentence.

  Args:
    argv: the command line.
    default: the config that is read where none is given.
    others: the flags that the command has besides; `--help` lists them, too.

  Returns:
    What is left of the command line: the name of the program.
  """
  program = Path(argv[0]).name
  flags.DEFINE_string('workdir', None, 'Folder of the run; by default one in runs/.')
  flags.DEFINE_boolean(
    'allow_changed_data', False, 'Goes on though the data changed since the run began.'
  )
  if _asks_for_help(argv[1:]):
    print(_help(default, ['workdir', 'allow_changed_data', *(holder.name for holder in others)]))
    sys.exit(0)
  try:
    path = _config_path(argv[1:])
    known = load(str(default) if path is None else path)
    _check_keys(argv[1:], known)
    argv = _last_config(argv)
    config_flags.DEFINE_config_file('config', str(default), lock_config=True, sys_argv=argv)
    rest = flags.FLAGS(argv)
    if len(rest) > 1:
      raise BadFlag(f'after {program} come flags alone, as --workdir=FOLDER, but got {rest[1]!r}.')
    return rest
  except BadFile as error:
    _end(program, sentence(error), 1)
  except BadFlag as error:
    _end(program, sentence(error), 2)
  except flags.UnrecognizedFlagError as error:
    near = difflib.get_close_matches(error.flagname, list(flags.FLAGS), n=1)
    told = f'; did you mean --{near[0]}?' if near else '; --help lists those that there are.'
    _end(program, f'There is no flag --{error.flagname}{told}', 2)
  except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
    _end(program, _told(sentence(error)), 2)


def _asks_for_help(given: Sequence[str]) -> bool:
  flags_alone = given[: given.index('--')] if '--' in given else given
  return not {'-h', '-help', '--help', '-helpshort', '--helpshort', '-?'}.isdisjoint(flags_alone)


def _help(default: Path, names: Sequence[str]) -> str:
  """The docstring of the command, and its flags with their defaults."""
  known = {
    '--config=FILE': f'A config: a Python file with a function get_config. Default: {default}.',
    '--config.KEY=VALUE': (
      'Sets a key of the config, as --config.steps=700 or --config.model.width=64; the files in '
      'configs/ have the keys with their meanings, configs/default.py all of them.'
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
  """The config that a file makes.

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
    if not callable(getattr(module, 'get_config', None)):
      raise BadFile(f'{name} must have a function get_config, but has none.')
    config = module.get_config(*([argument] if colon else []))
  except BadFile:
    raise
  except (Exception, SystemExit) as error:
    raise BadFile(_stopped(f'{_place(error, name)}: {_reason(error)}')) from error
  if not isinstance(config, ConfigDict):
    got = type(config).__name__
    raise BadFile(f'{name}: get_config() must return a ConfigDict, but it returned {got}.')
  return config


def _reason(error: BaseException) -> str:
  """The kind of an error, and what it says."""
  kind = type(error).__name__
  message = error.msg if isinstance(error, SyntaxError) else str(error)
  # Some errors of ml_collections hold others as Python would print them, with their quotes.
  message = ' '.join(message.replace('\\n', ' ').replace("\\'", "'").split())
  return f'{kind}: {message}' if message else kind


def _place(error: BaseException, name: str) -> str:
  """The file and the line of an error: within that file, if any of it was at work."""
  if isinstance(error, SyntaxError) and error.filename:
    return f'{error.filename}, line {error.lineno}'
  frames = traceback.extract_tb(error.__traceback__)
  mine = [frame for frame in frames if frame.filename == name]
  return f'{name}, line {mine[-1].lineno}' if mine else name


def _config_path(argv: list[str]) -> str | None:
  """The value of the last --config, as of any flag; None where it is not given."""
  given = [argv[place] for place in _configs(argv)]
  if not given:
    return None
  flag, *value = given[-1]
  return value[0] if value else flag.partition('=')[2]


def _last_config(argv: list[str]) -> list[str]:
  """A command line with the last --config alone, before the keys of it that are set."""
  program, *given = argv
  places = _configs(given)
  last = [word for place in places[-1:] for word in given[place]]
  for place in reversed(places):
    del given[place]
  return [program, *last, *given]


def _configs(argv: list[str]) -> list[slice]:
  """Where each --config stands in a command line, with its value."""
  end = argv.index('--') if '--' in argv else len(argv)
  whole = [i for i in range(end) if re.match(r'--?config=', argv[i])]
  parted = [i for i in range(end) if argv[i] in ('-config', '--config')]
  places = {**{i: slice(i, i + 1) for i in whole}, **{i: slice(i, i + 2) for i in parted}}
  return [places[i] for i in sorted(places)]


def _overridden(argv: list[str]) -> Iterator[str]:
  """The keys of a config that a command line sets."""
  for argument in argv:
    if argument == '--':
      return
    if match := re.match(r'--?(?:no)?config\.([^=]*)', argument):
      yield match[1]


def _check_keys(argv: list[str], config: ConfigDict) -> None:
  known = list(_keys(config))
  for key in _overridden(argv):
    if key not in known:
      below = [each for each in known if each.startswith(f'{key}.')]
      if below:
        raise BadFlag(
          f'config.{key} is a section: its keys are set one by one, as --config.{below[0]}.'
        )
      raise BadFlag(unknown_key(key, known))


def _keys(config: ConfigDict, prefix: str = '') -> Iterator[str]:
  """Every key that holds a value, as 'model.num_layers'."""
  for key, value in config.items(preserve_field_references=True):
    if isinstance(value, ConfigDict):
      yield from _keys(value, f'{prefix}{key}.')
    else:
      yield f'{prefix}{key}'


def _told(message: str) -> str:
  """A message of absl about a value, as a sentence."""
  match = re.match(r'flag --([\w.]+)=(.*?): ', message, re.DOTALL)
  if match and match[1] in flags.FLAGS:
    form = FORMS.get(flags.FLAGS[match[1]].flag_type(), 'a tuple, such as (1, 2)')
    return f'--{match[1]} must be {form}, but got {match[2]!r}.'
  return _stopped(message.removeprefix('ERROR:: '))


def _stopped(message: str) -> str:
  """A sentence with its full stop."""
  return message if message.endswith(('.', '?', '!')) else f'{message}.'


def _end(program: str, message: str, status: int) -> NoReturn:
  print(f'{program}: error: {message}', file=sys.stderr)
  sys.exit(status)
