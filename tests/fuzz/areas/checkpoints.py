"""Each file of a real checkpoint, deleted, cut, emptied or with a bit flipped; then resumed."""

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import made
from tests.fuzz.areas.files import as_uninterrupted, same_answer, spoilers
from tests.fuzz.case import Case
from tests.fuzz.commands import Ended, in_process

WAYS = ('deleted', 'empty', 'cut in half', 'a bit flipped')
FOLDERS = ('', 'state', 'data', 'state/d', 'state/ocdbt.process_0', 'state/ocdbt.process_0/d')


def cases() -> list[Case]:
  """All cases of this file."""
  return [*resumed(), *folders(), *foreign(), *asked()]


@functools.cache
def three() -> Path:
  """A stopped run with checkpoints after steps 1, 2 and 3 of 4."""
  path = made.run('bytes', '--config.checkpoint_every=1', '--config.checkpoint.keep=4')
  copy = made.scratch() / 'runs' / 'three'
  if not copy.exists():
    shutil.copytree(path, copy)
    made.stop(copy, '4')
  return copy


def files() -> list[str]:
  """The files of its newest checkpoint; their names hold random letters, their order is stable."""
  newest = three() / 'checkpoints' / '3'
  found = [path for path in newest.rglob('*') if path.is_file()]
  order = lambda path: (str(path.parent), path.stat().st_size, path.name)
  return [str(path.relative_to(newest)) for path in sorted(found, key=order)]


FLAGS = ('--config.checkpoint_every=1', '--config.checkpoint.keep=4')


def goes_on(name: str, spoil: Any) -> Ended:
  """Spoils the newest checkpoint, and resumes the run."""
  workdir = made.copy(three(), f'checkpoint-{name}'[:80])
  spoil(workdir / 'checkpoints' / '3')
  end = in_process('train.py', made.flags('bytes', workdir, *FLAGS))
  return end._replace(out=str(workdir))


def right(end: Ended) -> str:
  """Whether the run ended as one left alone."""
  return as_uninterrupted('bytes', end)


def resumed() -> Iterator[Case]:
  """One file of the newest checkpoint is spoiled; the one before it is whole."""
  for i, name in enumerate(files()):
    for how in WAYS:
      spoil = lambda folder, name=name, how=how: spoilers()[how](folder / name)
      shown = str(Path(name).parent / f'file {i}') if len(Path(name).name) > 30 else name
      call = functools.partial(goes_on, f'{i}-{how}', spoil)
      yield Case(f'train.py resumes, checkpoints/3/{shown}: {how}', call, right, seconds=120)


def folders() -> Iterator[Case]:
  """A part of the newest checkpoint is missing, or a file."""
  for part in FOLDERS:
    call = functools.partial(goes_on, f'no-{part.replace("/", "-")}', _without(part))
    yield Case(f'train.py resumes, checkpoints/3/{part} is missing', call, right, seconds=120)
  for i, how in enumerate(('all', 'an empty folder', 'a file', 'named x')):
    call = functools.partial(goes_on, f'odd-{i}', _odd(how))
    yield Case(f'train.py resumes, checkpoints: {how}', call, right, seconds=120)


def _without(part: str) -> Any:
  return lambda folder: shutil.rmtree(folder / part)


def _odd(how: str) -> Any:
  """Strange contents of the folder of checkpoints."""

  def spoil(folder: Path):
    parent = folder.parent
    if how == 'all':
      for path in parent.rglob('manifest.ocdbt'):
        path.write_bytes(b'')
    elif how == 'an empty folder':
      (parent / '9').mkdir()
    elif how == 'a file':
      (parent / '9').write_text('x')
    else:
      shutil.copytree(folder, parent / how.removeprefix('named '))

  return spoil


def foreign() -> Iterator[Case]:
  """The newest checkpoint is one of another model, or of another run."""
  others = {
    'a wider model': ('bytes', '--config.model.width=32'),
    'a deeper model': ('bytes', '--config.model.num_layers=2'),
    'another optimizer': ('bytes', '--config.optimizer.name=sgd'),
    'another task': ('labels',),
  }
  for how, (kind, *more) in others.items():
    call = functools.partial(goes_on, f'foreign-{how}', _swap(kind, *more))
    yield Case(f'train.py resumes, the checkpoint of {how}', call, right, seconds=120)


def _swap(kind: str, *more: str) -> Any:
  def spoil(folder: Path):
    shutil.rmtree(folder)
    shutil.copytree(made.run(kind, *more) / 'checkpoints' / '4', folder)

  return spoil


def asked() -> Iterator[Case]:
  """`ask` of a run whose only checkpoint, or whose newest one, is spoiled."""
  names = ('state/_METADATA', 'state/manifest.ocdbt', '_CHECKPOINT_METADATA')
  for name in (*names, 'state/ocdbt.process_0/manifest.ocdbt', 'state/_sharding'):
    for how in WAYS[:3]:
      call = functools.partial(answered, name, how)
      check = functools.partial(same_answer, 'bytes')
      yield Case(f'ask, checkpoints/4/{name}: {how}', call, check, seconds=120)


def answered(name: str, how: str) -> Ended:
  """Spoils the newest checkpoint of a run that is over, and asks its model."""
  workdir = made.copy(made.run('bytes'), f'ask-{name.replace("/", "-")}-{how}')
  spoilers()[how](workdir / 'checkpoints' / '4' / name)
  return in_process('ask', [f'--workdir={workdir}', 'the cat'])
