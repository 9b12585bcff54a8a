"""The three commands, in this process or in one of their own, and the judge of how they end."""

import contextlib
import functools
import importlib
import io
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.case import Case
from tests.fuzz.judge import ROOT, HangError, Verdict, place

COMMANDS = {
  'train.py': ['train.py'],
  'ask': ['-m', 'posjax.experiment.ask'],
  'compare': ['-m', 'posjax.experiment.compare'],
}


class Ended(NamedTuple):
  """How a command ended."""

  name: str
  code: int
  out: str
  error: str
  where: str = ''  # the place of an exception that left it


def in_process(name: str, arguments: Sequence[str], entered: str = '') -> Ended:
  """Runs a command here, which costs no start of a process. Flags are forgotten before."""
  out, error, where = io.StringIO(), io.StringIO(), ''
  argv, stdin = sys.argv, sys.stdin
  sys.argv, sys.stdin = [name, *arguments], io.StringIO(entered)
  try:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
      code = _code(functools.partial(_main, name), error)
  except HangError:
    raise
  except BaseException as failure:
    code, where = 1, place(failure)
    error.write('Traceback: ' + ''.join(traceback.format_exception_only(failure)))
  finally:
    sys.argv, sys.stdin = argv, stdin
  return Ended(name, code, out.getvalue(), error.getvalue(), where)


def _code(main, error: io.StringIO) -> int:
  try:
    main()
  except SystemExit as end:
    if isinstance(end.code, str):
      error.write(end.code + '\n')
      return 1
    return end.code or 0
  return 0


def _main(name: str) -> None:
  if name == 'ask':
    return importlib.import_module('posjax.experiment.ask').main()
  _forget_flags()
  if name == 'compare':
    module = importlib.import_module('posjax.experiment.compare.__main__')
    return module.main(module.read(sys.argv))
  module = importlib.import_module('train')
  flags = importlib.import_module('posjax.experiment.flags')
  return module.main(flags.parse(sys.argv, module.DEFAULT))


def _forget_flags() -> None:
  """Takes away the flags that the command before defined; absl has one set for the process."""
  from absl import flags

  own = ('workdir', 'schemes', 'seeds', 'axes', 'baseline', 'processes', 'hosts', 'host')
  for name in list(flags.FLAGS):
    if name.startswith('config') or name in own or name in _not_absl(flags.FLAGS):
      with contextlib.suppress(AttributeError):
        delattr(flags.FLAGS, name)


def _not_absl(values) -> set[str]:
  modules = values.flags_by_module_dict()
  return {flag.name for name, found in modules.items() if 'posjax' in name for flag in found}


def as_process(
  name: str, arguments: Sequence[str], entered: str = '', seconds: float = 240
) -> Ended:
  """Runs a command as its users do."""
  process = subprocess.run(
    [sys.executable, *COMMANDS[name], *arguments],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    input=entered,
    capture_output=True,
    text=True,
    errors='replace',
    timeout=seconds,
    check=False,
  )
  return Ended(name, process.returncode, process.stdout, process.stderr)


def judge(end: Ended, case: Case) -> Verdict:
  """The class of a command that ended."""
  told = [line for line in end.error.splitlines() if line.strip()]
  text = f'exit code {end.code}: {" ".join(told)[-300:]}'
  if end.where or 'Traceback' in end.error:
    return Verdict('raw', f'{text} ({end.where or last_place(end.error)})')
  if end.code == 0:
    fault = case.check(end)
    return Verdict('wrong', fault) if fault else Verdict('correct')
  if case.valid:
    return Verdict('wrong', f'refused, although it is right: {text}')
  if end.code not in (1, 2):
    return Verdict('raw', text)
  told = [line for line in told if not re.match(r'usage:|\s{3,}', line)]
  if len(told) != 1:
    return Verdict('raw', f'{text} ({len(told)} lines)')
  if not told[0].startswith(f'{end.name}: error: '):
    return Verdict('raw', f'{text} (not "{end.name}: error: ..")')
  return Verdict('refused', text)


def last_place(text: str) -> str:
  """The last line of the library in a traceback that was printed."""
  found = re.findall(r'File "([^"]+)", line (\d+)', text)
  own = [(path, number) for path, number in found if Path(path).is_relative_to(ROOT / 'posjax')]
  path, number = (own or found or [('?', '0')])[-1]
  path = Path(path)
  return f'{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}:{number}'
