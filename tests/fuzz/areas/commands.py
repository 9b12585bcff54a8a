"""The commands as their users run them, each in a process of its own."""

import functools
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz import made
from tests.fuzz.areas.files import refused_command
from tests.fuzz.case import Case
from tests.fuzz.commands import Ended, as_process

SECONDS = 240


def cases() -> list[Case]:
  """All cases of this file."""
  return [*training(), *asking(), *comparing()]


def by_flags(name: str, number: int, *more: str) -> Ended:
  """train.py or compare with some flags more."""
  workdir = made.new(f'command-{name}-{number}')
  flags = (
    made.flags if name == 'train.py' else lambda kind, path, *more: made.compare_flags(path, *more)
  )
  return as_process(name, flags('bytes', workdir, *more))._replace(out=str(workdir))


def results_are_there(end: Ended) -> str:
  return '' if (Path(end.out) / 'results.json').exists() else 'there is no results.json'


def training() -> Iterator[Case]:
  """train.py: right once, and wrong."""
  yield Case(
    'train.py', functools.partial(by_flags, 'train.py', 0), results_are_there, True, SECONDS
  )
  wrong = [
    *('--config.schme=rope', '--config.steps=many', '--config.scheme=ropee', '--config=nowhere.py'),
    *('--config.steps=0', '--config.task.length=0', '--config.model.width=0', '--config.nothing=3'),
    *('--config.model.num_heads=0', '--config.optimizer.b1=2', '--config.task.sample_length=-1'),
    *('--config.task.data=file:/nowhere', '--config.model.causal=False', '--workdir=README.md/run'),
    *('--workdir=/dev/null', '--config=README.md', 'extra', '--config.optimizer.learning_rate=nan'),
    '--config.task.eval_factors=(1,',
  ]
  for i, flag in enumerate(wrong, start=1):
    call = functools.partial(by_flags, 'train.py', i, flag)
    yield Case(f'train.py {flag}', call, refused_command, seconds=SECONDS)
  for i, flag in enumerate(('--config.seed=4294967296', '--config.task.prompt=$_$'), start=50):
    call = functools.partial(by_flags, 'train.py', i, flag)
    yield Case(f'train.py {flag}', call, results_are_there, seconds=SECONDS)


def ask(*arguments: str, entered: str = '') -> Ended:
  return as_process('ask', [f'--workdir={made.run("bytes")}', *arguments], entered)


def asking() -> Iterator[Case]:
  """ask: right, and wrong."""
  says = lambda end: '' if end.out.startswith('the cat') else f'answered {end.out[:60]!r}'
  yield Case('ask "the cat"', functools.partial(ask, 'the cat'), says, True, SECONDS)
  wrong = [
    ('',), ('--length=0', 'a'), ('--length=-5', 'a'), ('--length=x', 'a'), ('--seed=x', 'a'),
    ('--nothing',), ('--workdir=/nowhere', 'a'), ('--workdir=README.md', 'a'),
    ('--plot=/nowhere/a.png', 'a'), ('--length=100000000000', 'a'),
  ]  # fmt: skip
  for arguments in wrong:
    call = functools.partial(ask, *arguments)
    yield Case(f'ask {" ".join(arguments)}', call, refused_command, seconds=SECONDS)
  for seed in (2**32, 2**70, -1):
    call = functools.partial(ask, f'--seed={seed}', 'the cat')
    yield Case(f'ask --seed={seed} "the cat"', call, says, seconds=SECONDS)
  yield Case('ask < nothing', functools.partial(ask), refused_command, seconds=SECONDS)
  empty = functools.partial(ask, entered='a\n\nb\n')
  yield Case('ask < an empty line', empty, refused_command, seconds=SECONDS)


def comparing() -> Iterator[Case]:
  """compare: wrong."""
  wrong = [
    *(
      '--schemes=',
      '--schemes=nope',
      '--schemes=rope,',
      '--schemes=rope(',
      '--seeds=0',
      '--seeds=-1',
    ),
    *('--seeds=x', '--axes=nothing=1', '--axes=model.width', '--axes=model.width=', '--hosts=0'),
    *(
      '--baseline=nope',
      '--processes=0',
      '--host=3',
      '--axes=model.width=x',
      '--config=nowhere.py',
    ),
    '--workdir=README.md',
  ]
  for i, flag in enumerate(wrong):
    call = functools.partial(by_flags, 'compare', i, flag)
    yield Case(f'compare {flag}', call, refused_command, seconds=SECONDS)
