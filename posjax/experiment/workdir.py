"""The folder of one run: what may lie in it, whose run it is, who works there, and on what data."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from posjax.experiment.locks import Busy, Gone, check_free, check_held, lock
from posjax.interop.folder import read_object

CONFIG = 'config.json'
VOCABULARY = 'vocabulary.json'
DATA = 'data.json'
METRICS = 'metrics.jsonl'
RESULTS = 'results.json'
CHECKPOINTS = 'checkpoints'
LOCK = '.lock'

FILES = (CONFIG, VOCABULARY, DATA, METRICS, RESULTS, 'report.png', LOCK)
NOT_FINITE = 'not_finite'
PROFILE = 'profile'
FOLDERS = (CHECKPOINTS, 'tensorboard', NOT_FINITE, PROFILE)

# Keys whose values a run may change when it goes on: `compare` is of the report of a grid, the mesh
# changes no number but by rounding, and a profile none.
FREE = {'compare', 'mesh', 'profile'}

# A run never leaves one of these before its config: without it, they are of something else.
OWNED = (DATA, METRICS, RESULTS)


class Unwritten(OSError):
  """The file system did not do what the run asked of it."""


def check_place(workdir: Path) -> None:
  """Refuses a folder in which no run can work, before anything is written."""
  for place in (workdir, *workdir.absolute().parents):
    if os.path.lexists(place):
      _check_folder(place, f'{workdir} should be the folder of a run')
      break
  for name in FOLDERS:
    if os.path.lexists(workdir / name):
      _check_folder(workdir / name, f'{workdir} should hold a folder {name}')
  for name in FILES:
    path = workdir / name
    if os.path.lexists(path):
      if not path.is_file():
        raise OSError(f'{path} should be a file of the run, but it is none.')
      if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(f'{path} should be a file to read and write, but it is protected.')
  if is_first():  # who holds the lock for the other processes of its run
    check_free(workdir / LOCK)


def _check_folder(place: Path, should: str) -> None:
  if not place.is_dir():
    raise NotADirectoryError(f'{should}, but {place} is no folder.')
  if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
    raise PermissionError(f'{should}, but {place} cannot be written to.')


@contextlib.contextmanager
def held(workdir: Path) -> Generator[Callable[[], None]]:
  """Makes the folder, and keeps every other run out of it.

  The first process of a distributed run holds the lock for all of them. Gives a function that
  raises `Gone` if the folder has been deleted, moved or replaced since: it is called before
  anything is written there.
  """
  error, file = None, None
  if is_first():
    try:
      workdir.mkdir(parents=True, exist_ok=True)
      file = lock(workdir / LOCK)
    except OSError as refusal:
      error = refusal
  if jax.process_count() > 1:
    from jax.experimental import multihost_utils

    free = multihost_utils.broadcast_one_to_all(np.int32(error is None))
    if not free and not is_first():
      error = Busy(f'{workdir} could not be taken by the first process of this run.')
  if error is not None:
    raise error
  try:
    yield lambda: None if file is None else check_held(file, workdir / LOCK)
  finally:
    if file is not None:
      file.close()


def is_first() -> bool:
  """Whether this is the process that writes what the processes of a run share."""
  return jax.process_index() == 0


@contextlib.contextmanager
def explained(workdir: Path, check_folder: Callable[[], None]) -> Generator[None]:
  """An error of the file system within it becomes one sentence that says what to do."""
  try:
    yield
  except Gone:
    raise
  except OSError as error:
    check_folder()
    if isinstance(error, Unwritten):
      raise
    raise Unwritten(
      f'The run in {workdir} could not go on ({error}); what was saved stays: mend that, and the '
      'same command goes on.'
    ) from error


def write_json(path: Path, value: Any) -> None:
  """Writes a file whole or not at all."""
  partial = path.with_name(path.name + '.partial')
  partial.write_text(json.dumps(value, indent=2) + '\n')
  os.replace(partial, path)


# Whose run it is.


def stored_config(workdir: Path) -> dict[str, Any] | None:
  """The config of the run in a folder; None if the folder holds no run."""
  path = workdir / CONFIG
  if path.exists():
    return read_object(path, 'the config of a run')
  steps = [one.name for one in workdir.glob(f'{CHECKPOINTS}/*') if one.name.isdigit()]
  left = [name for name in OWNED if (workdir / name).exists()] + [CHECKPOINTS] * bool(steps)
  if left:
    raise ValueError(
      f'{workdir} should hold {CONFIG} beside {", ".join(left)}, but has none, so whose they are '
      'is unknown: put it back, or give another --workdir.'
    )
  return None


def check_config(
  config: Mapping[str, Any],
  workdir: Path,
  defaults: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any] | None:
  """A folder holds one run: another config must not go on where this one stopped.

  The keys of `FREE` may differ, and more updates may be skipped, where some may. So may `steps`
  differ; whether they may is for the caller to say, who knows how far the run is.

  Args:
    config: of this run.
    workdir: the folder.
    defaults: values of keys that the config of an earlier version may lack.

  Returns:
    The config of the run in the folder; None if there is none.

  Raises:
    ValueError: if the folder holds a run with another config.
  """
  there = stored_config(workdir)
  if there is None:
    return None
  there = {**defaults, **there}
  keys = sorted({*there, *config} - FREE)
  differ = [key for key in keys if _given(there.get(key)) != _given(config.get(key))]
  if 0 < there.get('skip_not_finite', 0) < config.get('skip_not_finite', 0):
    differ = [key for key in differ if key != 'skip_not_finite']
  if differ and (differ != ['steps'] or type(there.get('steps')) is not int):
    raise another(workdir, differ)
  return there


def _given(value: Any) -> Any:
  """A section without the keys that are not set, which an earlier version may not have had."""
  if not isinstance(value, Mapping):
    return value
  return {name: each for name, each in value.items() if each is not None}


def another(workdir: Path, differ: Sequence[str]) -> ValueError:
  """The error that a folder holds a run with another config."""
  return ValueError(
    f'{workdir} holds a run with another {", ".join(differ)}; give another --workdir.'
  )


def stored_vocabulary(workdir: Path) -> dict[str, Any] | None:
  """The vocabulary that the run in a folder stored; None if there is no run, or it stored none."""
  path = workdir / VOCABULARY
  if not path.exists() or not (workdir / CONFIG).exists():
    return None
  return read_object(path, 'the vocabulary of a run')


def check_vocabulary(vocabulary: Mapping[str, Any] | None, workdir: Path) -> None:
  """Refuses a vocabulary in which the tokens of the folder's run have other numbers."""
  path = workdir / DATA
  noted = _read_data(path).get('vocabulary') if path.exists() else None
  if noted is not None and noted != vocabulary_hash(vocabulary):
    raise ValueError(
      f'{workdir} holds a run whose vocabulary has the sha256 {noted}, but it is now '
      f'{vocabulary_hash(vocabulary)}: put back the {VOCABULARY} of the run, or give another '
      '--workdir.'
    )


def vocabulary_hash(vocabulary: Mapping[str, Any] | None) -> str:
  """SHA-256 of what a vocabulary is as JSON, however that is laid out in a file."""
  text = json.dumps(json.loads(json.dumps(vocabulary)), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


# What data it was trained on.

DataHistory = list[dict[str, Any]]  # 'sha256' of the data, and 'from_step', after which it was read


def data_history(workdir: Path) -> DataHistory:
  """The data that the run in a folder was trained on, the last ones last; [] if none is noted."""
  path = workdir / DATA
  if not path.exists():
    return []
  seen = _read_data(path).get('seen')
  known = isinstance(seen, list) and all(
    isinstance(one, dict)
    and isinstance(one.get('sha256'), str)
    and isinstance(one.get('from_step'), int)
    for one in seen
  )
  if not known:
    raise ValueError(
      f'{path} should hold the hashes of the data of a run under "seen", but holds '
      f'{repr(seen)[:40]}.'
    )
  return seen


def _read_data(path: Path) -> dict[str, Any]:
  return read_object(path, 'the hashes of the data of a run')


def check_data(seen: DataHistory, sha256: str | None, workdir: Path) -> None:
  """Refuses to go on with other data than the run in the folder began with."""
  if seen and sha256 is not None and seen[-1]['sha256'] != sha256:
    raise ValueError(
      f'{workdir} holds a run on data with the sha256 {seen[-1]["sha256"]}, but the data now have '
      f'{sha256}: put the old data back, give another --workdir, or go on nevertheless with '
      '--allow_changed_data.'
    )


def note_data(
  workdir: Path,
  seen: DataHistory,
  sha256: str | None,
  step: int,
  vocabulary: Mapping[str, Any] | None,
) -> DataHistory:
  """Notes on which data the run goes on after a step, and with which vocabulary.

  Returns all data that it has seen.
  """
  if sha256 is not None:
    seen = [one for one in seen if one['from_step'] < step or one['sha256'] == sha256]
    if not seen or seen[-1]['sha256'] != sha256:
      seen = [*seen, {'sha256': sha256, 'from_step': step}]
  hashed = {} if vocabulary is None else {'vocabulary': vocabulary_hash(vocabulary)}
  if is_first() and (sha256 is not None or hashed):
    write_json(workdir / DATA, {'seen': seen, **hashed})
  return seen


def data_changes(seen: DataHistory) -> str:
  """A sentence about data that changed during a run; '' where they did not."""
  if len({one['sha256'] for one in seen}) < 2:
    return ''
  parts = [f'{one["sha256"]} after step {one["from_step"]}' for one in seen]
  return f'The data changed during this run; their sha256 was {", ".join(parts)}.'
