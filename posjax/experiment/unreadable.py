"""Checkpoints whose files are not those that were saved: how they are found, and set aside.

Each checkpoint holds a hash of each of its files, since a changed byte of an array would be read
without an error. One that cannot be read gets another name, and the run goes on from the one
before.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import jax

from posjax.experiment.workdir import is_first

HASHES = 'sha256.json'  # in the folder of a checkpoint: the hash of each of its files
UNREADABLE = '.unreadable'  # what the name of a checkpoint ends with that was set aside


def quarantine_corrupt(folder: Path, say: Callable[[str], None] = print) -> None:
  """Gives checkpoints another name whose files are not those that were saved.

  Call it before `checkpoint.manager`, which reads some of these files. The first process of a
  distributed run does it for all, which wait for it.
  """
  if is_first() and folder.is_dir():
    faults = {step: corruption_reason(folder / str(step)) for step in steps_of(folder)}
    broken = {step: why for step, why in faults.items() if why}
    if broken and len(broken) == len(faults):
      raise no_readable_checkpoint(folder, broken)
    quarantine(folder, broken, say)
  if jax.process_count() > 1:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices('checkpoints were set aside')


def corruption_reason(place: Path) -> str:
  """Why the files of one checkpoint are not those that were saved; '' where they are.

  Nothing is known of one that an earlier version wrote, which noted no hashes.
  """
  try:
    if not place.is_dir():
      return 'it is no folder'
    path = place / HASHES
    if not path.exists():
      return '' if any(place.iterdir()) else 'it is empty'
    noted = json.loads(path.read_bytes())
    for name, digest in noted.items():
      file = place / name
      if not file.is_file():
        return f'its file {name} is missing'
      if _hash(file) != digest:
        return f'its file {name} is not what was saved'
  except (ValueError, AttributeError, TypeError, RecursionError):
    return f'its file {HASHES} is not what was saved'
  except OSError as error:
    return str(error)
  return ''


def note_hashes(folder: Path) -> None:
  """Orbax calls it when all files of a checkpoint are written, and before that has its name."""
  if is_first():
    for place in folder.glob('*.orbax-checkpoint-tmp*'):
      # What lies in folders; Orbax still writes to files beside them, which no restoring reads.
      files = sorted(path for path in place.glob('*/**/*') if path.is_file())
      noted = {path.relative_to(place).as_posix(): _hash(path) for path in files}
      (place / HASHES).write_text(json.dumps(noted, indent=2) + '\n')


def _hash(path: Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def steps_of(folder: Path) -> list[int]:
  """The steps of the checkpoints in a folder, the newest first."""
  names = [one.name for one in folder.iterdir() if one.name.isdecimal()]
  return sorted((int(name) for name in names if name == str(int(name))), reverse=True)


def quarantine(folder: Path, why: Mapping[int, str], say: Callable[[str], None]) -> None:
  """Sets checkpoints aside, under names that no run looks for, and says so."""
  for step, reason in why.items():
    name = f'{step}{UNREADABLE}'
    while os.path.lexists(folder / name):
      name += '.again'
    if is_first():
      (folder / str(step)).rename(folder / name)
    say(
      f'the checkpoint after step {step} cannot be read ({reason}): it is set aside as '
      f'{folder / name}, and the run goes on from the one before'
    )


def no_readable_checkpoint(folder: Path, why: Mapping[int, str]) -> ValueError:
  """The error where there are checkpoints, and none of them can be read."""
  reasons = '; '.join(f'that after step {step}: {reason}' for step, reason in why.items())
  return ValueError(
    f'No checkpoint in {folder} can be read ({reasons}): put back their files, give another '
    '--workdir, or take that folder away to begin anew.'
  )


def reason_of(error: Exception) -> str:
  """An error of a library, short enough for a sentence."""
  return f'{type(error).__name__}: {" ".join(str(error).split())}'[:160]


def is_out_of_memory(error: BaseException) -> bool:
  """Whether memory, and not the disk, made a checkpoint impossible to read."""
  return isinstance(error, MemoryError) or 'RESOURCE_EXHAUSTED: Out of memory' in str(error)
