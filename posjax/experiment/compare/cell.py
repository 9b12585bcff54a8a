"""One cell of a grid: the run of train.py, and what is measured of it."""

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

import posjax
from posjax.experiment import evaluation, record, training
from posjax.experiment.compare import results
from posjax.experiment.compare.origin import commit
from posjax.experiment.plain import sentence
from posjax.experiment.run import Result, Setup, run, setup
from posjax.experiment.sharding import put_batch
from posjax.experiment.shards import Rows
from posjax.experiment.task import Task
from posjax.experiment.workdir import METRICS, data_changes, vocabulary_hash

CURVE = 200  # points of a curve, at most


class Refused(ValueError):
  """A config that no run can begin with: all runs that differ in the seed alone end like this."""


def run_cell(
  config: ConfigDict,
  folder: Path,
  data: Mapping[str, str] = MappingProxyType({}),
  allow_changed_data: bool = False,
) -> dict[str, Any] | None:
  """Trains, or goes on training, as train.py does, and measures. None if it was interrupted.

  Args:
    config: as train.py takes it.
    folder: of this run.
    data: `results.hashes` of the runs that this one is compared with; none if there are none yet,
      or they may differ.
    allow_changed_data: whether a run goes on though its data changed since it began.

  Returns:
    What the line of results.jsonl holds, besides the cell's name. Only `tokens_per_second`,
    `seconds` and what names the machine differ when it is run again.

  Raises:
    Refused: if the run cannot begin; whatever else goes wrong is raised as it is.
  """
  begun = time.monotonic()
  try:
    prepared = setup(config, folder, allow_changed_data=allow_changed_data)
  except (ValueError, TypeError, OSError, ImportError) as error:
    raise Refused(sentence(error)) from error
  task = prepared.task
  facts = {name: str(value) for name, value in task.facts.items()}
  read = _read(task)
  other = results.other_data(data, results.hashes({'facts': facts, 'read': read}))
  if other:
    raise ValueError(
      f'This run would have {other}, by its sha256, as the runs to compare with: put the old data '
      'or packages back, give another --workdir, or go on nevertheless with --allow_changed_data.'
    )
  headline = task.evaluations[0]
  result = run(prepared)
  if result is None:
    return None
  changed = data_changes(result.data_history)
  return {
    **({'changed': changed} if changed else {}),
    'facts': facts,
    'unit': task.unit.name,
    **prepared.computing,
    'evaluations': evaluation.described(task),
    'scores': {name: evaluation.plain(score) for name, score in result.scores.items()},
    'curve': _curve(result.history, 'loss'),
    'held_out': _curve(result.history, f'eval_{next(iter(headline.metrics))}'),
    **_cost(prepared, result),
    'seconds': time.monotonic() - begun,
    'device': jax.devices()[0].device_kind,
    'commit': commit(),
    'versions': versions(),
    'read': read,
  }


# What shapes the examples of a run, or its numbers; those that are not installed shape neither.
_PACKAGES = (
  'jax', 'jaxlib', 'flax', 'optax', 'numpy', 'grain', 'sentencepiece', 'sacrebleu',
  'tensorflow-datasets',
)  # fmt: skip


def versions() -> dict[str, str]:
  """The version of each of these packages that is installed, and that of posjax."""
  found = {'posjax': posjax.__version__}
  for name in _PACKAGES:
    with contextlib.suppress(metadata.PackageNotFoundError):
      found[name] = metadata.version(name)
  return found


def _read(task: Task) -> dict[str, str]:
  """SHA-256 of what the model gets, as it is spelled: two runs of one seed should have the same.

  'examples' are the first training batch and all batches of the headline evaluation. Other files,
  or another version of a package that spells them, change it, and a shuffle of other training
  examples almost surely does.
  """
  digest = hashlib.sha256()
  for batch in (next(iter(task.train_batches(0, 1))), *task.evaluations[0].batches()):
    for path, leaf in jax.tree.leaves_with_path(batch):
      array = np.asarray(leaf)
      data = array.tobytes() if array.dtype.hasobject is False else repr(array.tolist()).encode()
      digest.update(f'{jax.tree_util.keystr(path)} {array.dtype} {array.shape} '.encode() + data)
  found = {'examples': digest.hexdigest()}
  return (
    found if task.vocabulary is None else {**found, 'vocabulary': vocabulary_hash(task.vocabulary)}
  )


def _cost(prepared: Setup, result: Result) -> dict[str, Any]:
  """Parameters, memory of a training step, and tokens per second."""
  speeds = [row['tokens_per_second'] for row in result.history if 'tokens_per_second' in row]
  if not speeds:
    raise ValueError(
      f'{result.workdir} should hold the speeds of its run in {METRICS}, but they are '
      'lost: take the folder away to have it run again.'
    )
  batch = put_batch(next(Rows(prepared.task.train_batches, prepared.mesh)), prepared.mesh)
  return {
    'parameters': sum(leaf.size for leaf in jax.tree.leaves(prepared.state.params)),
    'step_bytes': training.step_bytes(prepared.step, prepared.state, batch),
    'tokens_per_second': median(speeds),  # the first is slower by compiling
  }


def _curve(history: list[dict[str, Any]], name: str) -> list[tuple[int, float | None]]:
  """Points (step, value), thinned to CURVE: means of equally many neighbours."""
  points = [(row['step'], row[name]) for row in history if row.get(name) is not None]
  width = -(-len(points) // CURVE) or 1
  groups = [points[i : i + width] for i in range(0, len(points), width)]
  return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def remember_programs() -> None:
  """Keeps compiled programs, so that cells which differ in the seed alone share them.

  They lie in the user's cache folder, not in the work folder: that one may come from somebody else,
  and a compiled program is code.
  """
  folder = programs_folder()
  if folder is not None and 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    jax.config.update('jax_compilation_cache_dir', str(folder))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


def programs_folder() -> Path | None:
  """posjax/programs in the user's cache folder, by the XDG specification; None if there is none."""
  named = os.environ.get('XDG_CACHE_HOME', '')  # which counts only where it is absolute
  cache = named if os.path.isabs(named) else os.path.expanduser('~/.cache')
  return Path(cache, 'posjax', 'programs') if os.path.isabs(cache) else None


def steps_done(folder: Path) -> int:
  """How far the run in a folder has come, as its metrics file tells; 0 if it tells nothing."""
  try:
    rows = record.read(folder / METRICS)
  except (ValueError, OSError):  # the run says what is wrong with it
    return 0
  return rows[-1]['step'] if rows else 0
