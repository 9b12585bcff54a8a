"""Several processes of one run: how they find each other, agree, and tell that one is lost.

Whatever they share is written by the first of them. Where one ends without a word, the others find
out by an error of what they communicate with, or when its heartbeat is missing.
"""

import hashlib
from collections.abc import Mapping

import jax
import numpy as np

HEARTBEAT = 20  # seconds without a sign of life after which a process counts as lost


class Lost(RuntimeError):
  """Another process of the run cannot be reached any more."""


def join(
  coordinator: str | None = None,
  processes: int | None = None,
  process: int | None = None,
  *,
  cluster: bool = False,
) -> None:
  """Joins the processes of a run, before JAX computes anything; nothing without arguments.

  Args:
    coordinator: 'HOST:PORT' of the first process, which all can reach.
    processes: how many there are.
    process: which of them this one is, from 0.
    cluster: whether the environment says all that: that of SLURM, Cloud TPU, GKE or Open MPI.

  Raises:
    ValueError: if some of the first three are missing, both ways are given, or the environment
      says nothing.
    OSError: if the processes do not find each other within five minutes.
  """
  given = {'--coordinator': coordinator, '--processes': processes, '--process': process}
  missing = [name for name, value in given.items() if value is None]
  if cluster and len(missing) < 3:
    raise ValueError(
      f'--cluster reads from the environment what {", ".join(given)} say, so give one or the other.'
    )
  if not cluster and len(missing) == 3:
    return
  if not cluster and missing:
    raise ValueError(f'{", ".join(given)} go together, but got no {missing[0]}.')
  if processes is not None and process is not None and not 0 <= process < processes:
    raise ValueError(f'--process must be in [0, {processes}), but got {process}.')
  try:
    jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT)
  except ValueError as error:
    raise ValueError(
      '--cluster needs the environment of SLURM, Cloud TPU, GKE or Open MPI, but found none '
      f'({_line(error)}): give {", ".join(given)}.'
    ) from error
  except RuntimeError as error:
    raise OSError(f'The processes of the run did not find each other ({_line(error)}).') from error


def is_lost(error: BaseException) -> bool:
  """Whether an error says that another process cannot be reached."""
  if jax.process_count() == 1:
    return False
  causes = [error, error.__cause__, error.__context__]
  return any(
    isinstance(each, Lost)
    or (isinstance(each, jax.errors.JaxRuntimeError) and 'RESOURCE_EXHAUSTED' not in str(each))
    for each in causes
  )


def lost(error: BaseException) -> Lost:
  """The error of a run whose other process is lost, as one sentence."""
  return Lost(
    f'Another process of this run ended, or cannot be reached ({_line(error)}); what was saved '
    'stays: the same command, started for every process again, goes on.'
  )


def _line(error: BaseException) -> str:
  return ' '.join(str(error).split())[:200]


def check_alike(facts: Mapping[str, str]) -> None:
  """Refuses to train where processes know different things; all of them refuse, or none.

  Args:
    facts: what must be the same, by what it is called in a sentence.
  """
  if jax.process_count() == 1:
    return
  digests = [hashlib.sha256(value.encode()).digest() for value in facts.values()]
  everywhere = _gathered(np.frombuffer(b''.join(digests), np.uint8).reshape(len(facts), -1))
  for index, name in enumerate(facts):
    others = np.flatnonzero((everywhere[:, index] != everywhere[0, index]).any(-1))
    if len(others):
      raise ValueError(
        f'All processes of a run should have the same {name}, but process {others[0]} has another '
        'than process 0.'
      )


def all_agree(mine: bool) -> bool:
  """Whether something is true in every process; all of them must ask."""
  return mine if jax.process_count() == 1 else bool(_gathered(np.array([mine])).all())


def _gathered(array: np.ndarray) -> np.ndarray:
  """The arrays of all processes, along a new first axis."""
  from jax.experimental import multihost_utils

  return np.asarray(multihost_utils.process_allgather(array))


def reached_stop(step: int) -> bool:
  """Whether to stop after this step, the same in every process, since one of them is to end.

  A SIGTERM to one process is enough. It must be asked after every step.
  """
  if not jax.distributed.is_initialized():
    return False
  from jax.experimental import multihost_utils

  return multihost_utils.reached_preemption_sync_point(step)
