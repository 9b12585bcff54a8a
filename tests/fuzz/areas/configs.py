"""Keys and flags of a run: unusual ones, and ones that fit, in one process.

A config that is accepted is run to its end, which takes a second, and its losses must be finite.
"""

import functools
import json
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from ml_collections import ConfigDict

from tests.fuzz import commands, made, small
from tests.fuzz.case import Case, draw, line

NAN, INF = float('nan'), float('inf')

# Unusual values, of which each is refused, or trains.
ODD: dict[str, list[Any]] = {
  'seed': [2**31, 2**32, 2**32 - 1, -1, 10**12, True],
  'steps': [1, 5, True],
  'log_every': [100],
  'accumulate': [2, 3, 10**6],
  'skip_not_finite': [1, 10**9],
  'profile': [1, 10**6],
  'start_from': ['', 'nowhere', 'README.md', '\x00'],
  'mesh': [{'context': 2}, {'data': 10**9}, {}],
  'model.remat_policy': ['dots_saveable', 'dots', ''],
  'checkpoint_every': [3, 100],
  'task.prompt': ['', '$_$', '[/b]', '\x00', 'é', '\ud800', '[red]x[/red]', '\n', ' '],
  'task.sample_length': [1, 40],
  'scheme': [
    'none',
    'none|rope',
    't5|rope',
    'randomized(max_length=64)+rope',
    ' rope ',
    'sinusoidal',
  ],
  'model.num_heads': [1, 4],
  'model.window': [1, 3, 10**6, (2, 4)],
  'model.dropout_rate': [0.5, 0.999],
  'model.activation': ['relu', 'silu', 'tanh', 'identity'],
  'model.norm': ['RMSNorm', 'BatchNorm'],
  'task.memory': [0, 4, 8],
  'task.vocab_size': [5, 10**6],
  'optimizer.learning_rate': [0, 1e-30, 1.0, True],
  'optimizer.clip_norm': [INF, None, 1e-30],
  'optimizer.b1': [0, 0.0, 0.999999],
  'checkpoint.keep': [1, 100],
}
FLAGS = [
  *(
    '--config.schme=rope',
    '--config.steps=many',
    '--config.steps=',
    '--config.steps',
    '--config.steps=1.5',
  ),
  *(
    '--config.task.nothing=1',
    '--config.task=3',
    '--config.optimizer=adam',
    '--config.model.causal=no',
  ),
  *(
    '--config.model.causal=maybe',
    '--config.model.width=1e3',
    '--config.optimizer.learning_rate=x',
  ),
  *(
    '--config.optimizer.learning_rate=nan',
    '--config.optimizer.learning_rate=inf',
    '--config.seed=-1',
  ),
  *(
    '--config.task.eval_factors=(1,',
    '--config.task.eval_factors=1',
    '--config.task.eval_factors=1,2',
  ),
  *('--config.task.eval_factors=(1,2)', '--config.model.window=(1,2)', '--config.model.window=x'),
  *(
    '--config.model.window=None',
    '--config.model.num_kv_heads=None',
    '--config.optimizer.clip_norm=inf',
  ),
  *(
    '--config.optimizer.clip_norm=None',
    '--config.optimizer.clip_norm=0',
    '--config.optimizer.b1=2',
  ),
  *(
    '--config=nowhere.py',
    '--config=',
    '--config=tests',
    '--config=README.md',
    '--config=/dev/null',
  ),
  *(
    '--config=tests/fuzz/small.py:nope',
    '--config=tests/fuzz/small.py',
    '--workdir=',
    '--workdir=/dev/null',
  ),
  *(
    '--workdir=/dev/null/run',
    '--workdir=/proc/run',
    '--workdir=README.md',
    '--workdir=README.md/run',
  ),
  *('extra', '-x', '--', '--nothing', '--nothing=3', '--help', '--helpfull', '-h', '--confg=x', ''),
  *('--config.scheme=', '--config.scheme=rope|', '--config.scheme=$_$', '--config.scheme=[/b]'),
  *(
    '--config.seed=4294967296',
    '--config.seed=99999999999999999999',
    '--config.steps=4294967296000',
  ),
  *(
    '--config.checkpoint.use=best',
    '--config.checkpoint.use=mean',
    '--config.mesh.data=2',
    '--config.mesh=3',
  ),
  *('--config.task.prompt=$_$', '--config.task.prompt=[/b]', '--config.task.data=file:$_$'),
  *(
    '--flagfile=nowhere',
    '--flagfile=README.md',
    '--noconfig',
    '--config.log_every=0',
    '--undefok=x',
  ),
]


def cases() -> list[Case]:
  """All cases of this file."""
  return [*odd(), *drawn(), *flags()]


def config_of(kind: str, **changes: Any) -> ConfigDict:
  """A small config with other values, as a file of one's own may have them: of any type."""
  whole = small.get_config(kind).to_dict()
  whole['task']['data'] = made.data(kind)
  for key, value in changes.items():
    section, _, name = key.rpartition('.')
    (whole[section] if section else whole)[name] = value
  return ConfigDict(whole)


def train(kind: str, number: str, **changes: Any) -> Any:
  """The losses of the whole run; or a fault, if it is refused after something was written."""
  from posjax.experiment import run

  workdir = made.new(f'configs-{number}')
  try:
    prepared = run.setup(config_of(kind, **changes), workdir)
  except Exception:
    if workdir.exists():
      return f'refused, but {workdir.name} holds {sorted(p.name for p in workdir.iterdir())}'
    raise
  result = run.run(prepared)
  json.loads((workdir / 'results.json').read_text())
  missing = [name for name in ('report.png', 'config.json') if not (workdir / name).exists()]
  if result is None or missing:
    return f'the run ended without {missing}'
  return made.losses(workdir)


def trained(losses: Any) -> str:
  """Whether there is a finite loss for each row that a run writes."""
  if isinstance(losses, str):
    return losses
  values = list(losses.values())
  good = values and all(value is not None and math.isfinite(value) for value in values)
  return '' if good else f'the losses are {losses}'


def _case(kind: str, number: str, changes: dict[str, Any], check: Any) -> Case:
  title = line(f'setup {kind}', **changes)
  return Case(title, functools.partial(train, kind, number, **changes), check, seconds=90)


def odd() -> Iterator[Case]:
  """Unusual values, to the end of the run."""
  for key, values in ODD.items():
    for i, value in enumerate(values):
      yield _case('bytes', f'odd-{key}-{i}', {key: value}, trained)
  for kind in ('bytes', 'words', 'questions', 'labels'):
    yield _case(kind, f'plain-{kind}', {}, trained)._replace(valid=True)


@st.composite
def settings(found):
  """Keys that fit one another."""
  pick = lambda *values: found(st.sampled_from(values))
  scheme = pick('none', 'rope', 'alibi', 't5', 'rope+alibi', 'sinusoidal', 'none|rope', 'shaw')
  window = pick(None, 3)
  return {
    'scheme': scheme,
    'seed': pick(0, 1, 7),
    'steps': pick(2, 3),
    'model.num_layers': 2 if '|' in scheme else pick(1, 2),
    'model.num_kv_heads': pick(None, 1, 2),
    'model.window': window,
    'model.gated': pick(True, False),
    'model.tied': pick(True, False),
    'model.remat': pick(True, False),
    'model.pre_norm': pick(True, False),
    'optimizer.schedule': pick('cosine', 'linear', 'constant', 'vaswani'),
    'optimizer.clip_norm': pick(None, 1.0),
    'checkpoint.use': pick('last', 'best'),
    # Both are windows, of which a model has one.
    'task.eval_window': window is None and pick(True, False),
  }


def drawn() -> Iterator[Case]:
  """Configs that must train, with several keys at once."""
  for i, changes in enumerate(draw(settings(), 25)):
    yield _case('bytes', f'drawn-{i}', changes, trained)._replace(valid=True)


def flags() -> Iterator[Case]:
  """Flags of train.py, in this process."""
  for i, flag in enumerate(FLAGS):
    call = functools.partial(by_flags, i, flag)
    yield Case(f'train.py {flag}', call, seconds=90)


def by_flags(number: int, flag: str) -> commands.Ended:
  """The command with one more flag, which may take the place of an earlier one."""
  workdir = made.new(f'flags-{number}')
  return commands.in_process('train.py', made.flags('bytes', workdir, flag))
