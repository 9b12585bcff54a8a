"""Checkpoints of everything that a run is: parameters, optimizer, step, and the data's place.

A run saves a checkpoint every `checkpoint_every` steps and after its last step: these are its
*regular* checkpoints. A run that is interrupted saves one more, to resume from; which steps it was
interrupted after must not change what the run ends with, so that one is never chosen as the best
and never averaged.

One whose files are not those that were saved is set aside (`unreadable.py`), and the run goes on
from the one before.
"""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import logging as standard_logging
import math
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from ml_collections import ConfigDict
from orbax.checkpoint.checkpoint_managers import PreservationPolicy

from posjax.arguments import check_known
from posjax.experiment import cluster, unreadable
from posjax.experiment.shards import Rows
from posjax.experiment.workdir import Unwritten
from posjax.keys import Count


class Choice(NamedTuple):
  """Which checkpoints stay on the disk, and which model is scored at the end and asked.

  Attributes:
    keep: how many of the last regular checkpoints stay. The newest one of all always stays, to
      resume from, and so does the best one where it is used.
    every: steps between two regular checkpoints.
    steps: of the whole run; after the last one there is a regular checkpoint, too.
    use: 'last': the model after the last step; 'best': that of the regular checkpoint with the best
      `metric`, the earliest where several are equal; 'mean': the mean of the last `mean_of`.
    metric: of 'best': the name of a metric on held-out data; '' for other uses.
    higher: of 'best': whether a higher metric is better.
    mean_of: of 'mean': how many regular checkpoints are averaged; 0 for other uses.
  """

  keep: int = 2
  every: int = 1
  steps: int = 0
  use: str = 'last'
  metric: str = ''
  higher: bool = False
  mean_of: int = 0

  def is_regular(self, step: int) -> bool:
    """Whether a run that is never interrupted saves a checkpoint after this step."""
    return step % self.every == 0 or step == self.steps

  def needs_metrics(self, step: int) -> bool:
    """Whether the model after this step must be judged before it is saved."""
    return self.use == 'best' and self.is_regular(step)


class Chosen(NamedTuple):
  """The state that is scored and asked.

  Attributes:
    state: a `training.State`.
    name: which one it is, in words: 'the best checkpoint by loss, after step 10'.
  """

  state: Any
  name: str


def choose(config: ConfigDict, higher: Mapping[str, bool]) -> Choice:
  """Reads `config.checkpoint`."""
  return read_section(config.steps, config.checkpoint_every, higher, **config.checkpoint)


def read_section(
  steps: int,
  every: int,
  higher: Mapping[str, bool],
  *,
  keep: Count,
  use: Literal['last', 'best', 'mean'],
  metric: str | None,
  mean_of: Count | None,
) -> Choice:
  """Reads the keys of `config.checkpoint`; arguments and errors as of `choose`."""
  for name, value, reader in (('metric', metric, 'best'), ('mean_of', mean_of, 'mean')):
    if value is not None and use != reader:
      raise ValueError(
        f"checkpoint.{name} is for checkpoint.use='{reader}', but got {value!r} with '{use}'."
      )
  choice = Choice(keep, every, steps, use)
  if use == 'best':
    if not higher:
      raise ValueError(
        "checkpoint.use='best' needs a task with an evaluation that runs during training, but got "
        'one whose evaluations all run at the end.'
      )
    metric = next(iter(higher)) if metric is None else metric
    check_known('checkpoint.metric', metric, higher)
    return choice._replace(metric=metric, higher=higher[metric])
  if use == 'mean':
    return choice._replace(mean_of=_checked_mean_of(mean_of, keep, steps, every))
  return choice


def _checked_mean_of(mean_of: int | None, keep: int, steps: int, every: int) -> int:
  if mean_of is None:
    raise ValueError(
      "checkpoint.use='mean' needs checkpoint.mean_of, how many of the last checkpoints are "
      'averaged, but got None.'
    )
  if mean_of > keep:
    raise ValueError(
      f'checkpoint.keep must be at least checkpoint.mean_of, {mean_of}, since only checkpoints on '
      f'the disk can be averaged, but got {keep}.'
    )
  count = -(-steps // every)
  if mean_of > count:
    raise ValueError(
      f'checkpoint.mean_of must be at most {count}, the number of checkpoints that {steps} steps '
      f'make with one every {every}, but got {mean_of}.'
    )
  return mean_of


@contextlib.contextmanager
def manager(folder: Path, choice: Choice) -> Generator[ocp.CheckpointManager]:
  """Opens a folder of checkpoints, and waits for unfinished ones at the end.

  A checkpoint that was killed half-way is never picked up.
  """
  options = ocp.CheckpointManagerOptions(
    preservation_policy=_Kept(choice),
    # Orbax writes metrics only where it has a function that ranks them.
    best_fn=(lambda metrics: metrics[choice.metric]) if choice.use == 'best' else None,
    cleanup_tmp_directories=True,
    async_options=ocp.AsyncOptions(
      post_finalization_callback=functools.partial(unreadable.note_hashes, folder.resolve()),
      # In a thread, Orbax waits without end for a folder that could not be made.
      create_directories_asynchronously=False,
    ),
  )
  with _no_tracebacks():
    opened = ocp.CheckpointManager(folder.resolve(), options=options)
    try:
      yield opened
    except BaseException as error:
      if not cluster.is_lost(error):  # without the others, it would wait for them in vain
        with _written(folder):
          opened.close()
      raise
    with _written(folder):
      opened.close()


# What libraries name, somewhere in long messages, where they cannot write.
_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
_FAILURES = (*_FAILURES, errno.ENOTDIR, errno.ENOENT, errno.EIO, errno.ESTALE)


@contextlib.contextmanager
def _written(folder: Path) -> Generator[None]:
  """Whatever Orbax and its libraries raise where a checkpoint cannot be written, as one error."""
  try:
    yield
  except Exception as error:
    if cluster.is_lost(error):
      raise
    text = ' '.join(str(error).split())
    known = [os.strerror(number) for number in _FAILURES if os.strerror(number) in text]
    why = known[0] if known else text[:200] or type(error).__name__
    raise Unwritten(
      f'A checkpoint could not be written to {folder} ({why}); what was saved before stays: mend '
      'that, and the same command goes on.'
    ) from error


@contextlib.contextmanager
def _no_tracebacks() -> Generator[None]:
  """Keeps back the tracebacks that Orbax and TensorStore print of an error which they raise, too.

  After an error this stays as it is, since their threads may still print some.
  """

  def is_news(record: standard_logging.LogRecord) -> bool:
    return not record.exc_info or (record.name == 'absl' and 'orbax' not in record.pathname)

  def unraisable(given: Any) -> None:
    # TensorStore tells asyncio of failed writes after Orbax has closed its event loop.
    if not isinstance(given.exc_value, RuntimeError):
      before(given)

  loggers = [standard_logging.getLogger(name) for name in ('absl', 'asyncio', 'concurrent.futures')]
  before, sys.unraisablehook = sys.unraisablehook, unraisable
  for logger in loggers:
    logger.addFilter(is_news)
  failed = False
  try:
    yield
  except Unwritten:
    failed = True
    raise
  finally:
    if not failed:
      sys.unraisablehook = before
      for logger in loggers:
        logger.removeFilter(is_news)


class _Kept(PreservationPolicy):
  """Orbax asks it, after each checkpoint, which ones stay."""

  def __init__(self, choice: Choice):
    self.choice = choice

  def should_preserve(self, checkpoints, *, context) -> Sequence[bool]:
    steps = [info.step for info in checkpoints]
    regular = [step for step in steps if self.choice.is_regular(step)]
    kept = {*steps[-1:], *regular[-self.choice.keep :]}
    if self.choice.use == 'best':
      metrics = {info.step: info.metrics for info in checkpoints if info.step in regular}
      kept.add(_best(metrics, self.choice))
    return [step in kept for step in steps]


class _Places(ocp.CheckpointHandler):
  """Saves where the shards of the data stand, a file for each: the names are those of Grain."""

  def save(self, directory: Any, args: Any) -> None:  # pyrefly: ignore[bad-override]
    for shard, state in args.rows.states().items():
      path = Path(directory) / f'process_{shard}-of-{args.rows.count}.json'
      path.write_text(json.dumps(state, indent=4))

  def restore(self, directory: Any, args: Any) -> Any:  # pyrefly: ignore[bad-override]
    names = [path.name for path in Path(directory).glob('process_*')]
    expected = [f'process_{shard}-of-{len(names)}.json' for shard in range(len(names))]
    if not names or sorted(names) != sorted(expected):
      raise ValueError(f'{directory} should have a file for each shard of the data.')
    states = [json.loads((Path(directory) / name).read_text()) for name in expected]
    args.rows.set_states(dict(enumerate(states)))
    return args.rows

  def finalize(self, directory: Any) -> None:
    pass

  def close(self) -> None:
    pass


@ocp.args.register_with_handler(_Places, for_save=True, for_restore=True)
@dataclasses.dataclass
class _Place(ocp.args.CheckpointArgs):
  rows: Rows


def save(
  checkpoints: ocp.CheckpointManager,
  step: int,
  state: Any,
  data: Rows,
  metrics: Mapping[str, float] | None = None,
) -> None:
  """Saves a tree of arrays, and the place in the data."""
  if checkpoints.latest_step() == step:
    return
  with _written(Path(checkpoints.directory)):
    checkpoints.save(
      step,
      metrics={} if metrics is None else dict(metrics),
      args=ocp.args.Composite(state=ocp.args.StandardSave(state), data=_Place(data)),
    )


def save_to_look_into(place: Path, state: Any, batch: Mapping[str, np.ndarray]) -> None:
  """Saves a state beside the checkpoints of a run, and the rows of a batch that this process has.

  `ocp.StandardCheckpointer().restore(place / 'state')` reads the state, and `np.load` the batch.
  """
  with _written(place), ocp.StandardCheckpointer() as writer:
    writer.save((place / 'state').resolve(), state, force=True)
    writer.wait_until_finished()
    arrays: dict[str, Any] = dict(batch)
    np.savez(place / f'batch-{jax.process_index()}.npz', **arrays)


def batch_hash(batch: Mapping[str, np.ndarray]) -> str:
  """SHA-256 of the arrays of a batch in the order of their names, of this process."""
  digest = hashlib.sha256()
  for name in sorted(batch):
    digest.update(f'{name} {batch[name].dtype} {batch[name].shape} '.encode())
    digest.update(np.ascontiguousarray(batch[name]).tobytes())
  return digest.hexdigest()


def check_saved(checkpoints: ocp.CheckpointManager) -> None:
  """Tells at once, and not at the next checkpoint, that the last one could not be written."""
  with _written(Path(checkpoints.directory)):
    checkpoints.check_for_errors()


def wait(checkpoints: ocp.CheckpointManager) -> None:
  """Waits until the last checkpoint is on the disk."""
  with _written(Path(checkpoints.directory)):
    checkpoints.wait_until_finished()


def restore(
  checkpoints: ocp.CheckpointManager, state: Any, data: Rows, say: Callable[[str], None] = print
) -> tuple[int, Any]:
  """The last step that every process can read, and its state; puts the data back to their place.

  `(0, state)` if there is no checkpoint. Newer ones that cannot be read are set aside.

  Raises:
    ValueError: if there are checkpoints, and none of them can be read.
  """
  folder, broken = Path(checkpoints.directory), {}
  for step in sorted(checkpoints.all_steps(), reverse=True):
    target = ocp.args.Composite(state=ocp.args.StandardRestore(state), data=_Place(data))
    restored, why = None, 'another process cannot read it'
    try:
      with _no_tracebacks():
        restored = checkpoints.restore(step, args=target)['state']
    except Exception as error:
      if unreadable.is_out_of_memory(error) or cluster.is_lost(error):
        raise
      why = unreadable.reason_of(error)
    if not cluster.all_agree(restored is not None):
      broken[step] = why
      continue
    unreadable.quarantine(folder, broken, say)
    cluster.all_agree(True)  # the others wait for the first, which renames
    if broken:
      checkpoints.reload()
    return step, restored
  if broken:
    raise unreadable.no_readable_checkpoint(folder, broken)
  return 0, state


def chosen(folder: Path, state: Any, choice: Choice, step: int | None = None) -> Chosen:
  """The state that is scored and asked, read while another process may write there.

  For 'mean', the parameters are averaged in float32; all else is that of the newest of the averaged
  checkpoints.

  Args:
    folder: of the checkpoints.
    state: of the same tree.
    choice: of the config.
    step: takes the checkpoint after this step instead.

  Raises:
    FileNotFoundError: if there is no checkpoint, or none after the step.
    ValueError: if the checkpoints hold another tree, none of them has the metric of 'best', or
      there are fewer than 'mean' averages.
  """
  if not folder.is_dir():
    raise FileNotFoundError(f'There is no checkpoint yet: {folder} is no folder.')
  with _reader(folder) as checkpoints:
    steps = sorted(checkpoints.all_steps())
    if not steps:
      raise FileNotFoundError(f'There is no checkpoint yet in {folder}.')
    if step is not None and step not in steps:
      there = ', '.join(map(str, steps))
      raise FileNotFoundError(
        f'{folder} has no checkpoint after step {step}: there are those after {there}.'
      )
    if step is not None:
      return Chosen(_read(checkpoints, step, state, folder), f'the checkpoint after step {step}')
    wanted = _wanted(checkpoints, steps, choice, folder)
    states = (_read(checkpoints, step, state, folder) for step in wanted)
    return Chosen(_mean(states, len(wanted)), _name(choice, wanted))


def read_part(
  folder: Path, choice: Choice, wanted: Callable[[str, tuple[int, ...]], Any]
) -> tuple[dict[str, Any], str]:
  """Some of the arrays of the chosen state of another run, whatever its model.

  Args:
    folder: of its checkpoints.
    choice: of its config.
    wanted: `(path, shape) ->` the array as it should be read, a `jax.ShapeDtypeStruct` with its
      sharding; None for one that is left where it is.

  Returns:
    The arrays by their paths, as 'params/embed/table/embedding/value', and the name of the state.

  Raises:
    FileNotFoundError, ValueError: as `chosen`.
  """
  if not folder.is_dir():
    raise FileNotFoundError(f'There is no checkpoint yet: {folder} is no folder.')
  path_of = functools.partial(jax.tree_util.keystr, simple=True, separator='/')
  with _reader(folder, ocp.PyTreeCheckpointHandler()) as checkpoints:
    steps = sorted(checkpoints.all_steps())
    if not steps:
      raise FileNotFoundError(f'There is no checkpoint yet in {folder}.')
    chosen_steps = _wanted(checkpoints, steps, choice, folder)
    total: dict[str, Any] = {}
    dtypes: dict[str, Any] = {}
    for step in chosen_steps:
      why = unreadable.corruption_reason(folder / str(step))
      if why:
        raise ValueError(f'The checkpoint {folder / str(step)} cannot be read ({why}).')
      tree = checkpoints.item_metadata(step)['state'].tree
      asked = jax.tree.map_with_path(
        lambda path, leaf: wanted(path_of(path), tuple(leaf.shape)) or ocp.PLACEHOLDER, tree
      )
      kinds = ocp.checkpoint_utils.construct_restore_args(asked)
      target = ocp.args.Composite(state=ocp.args.PyTreeRestore(asked, restore_args=kinds))
      read = checkpoints.restore(step, args=target)['state']
      found = {path_of(path): leaf for path, leaf in jax.tree.leaves_with_path(read)}
      found = {path: leaf for path, leaf in found.items() if isinstance(leaf, jax.Array)}
      total = _sum(total, found) if total else _wide(found)
      dtypes = {path: leaf.dtype for path, leaf in found.items()}
  mean = {path: (leaf / len(chosen_steps)).astype(dtypes[path]) for path, leaf in total.items()}
  return mean, _name(choice, chosen_steps)


@contextlib.contextmanager
def _reader(folder: Path, handler: Any = None) -> Generator[ocp.CheckpointManager]:
  """Opens a folder of checkpoints that another process may write to."""
  handlers = {'state': handler or ocp.StandardCheckpointHandler()}
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)  # Orbax warns at length that it only reads, and not all
  try:
    options = ocp.CheckpointManagerOptions(read_only=True)
    opened = ocp.CheckpointManager(folder.resolve(), options=options, item_handlers=handlers)
    with contextlib.closing(opened):
      yield opened
  finally:
    logging.set_verbosity(verbosity)


def _wanted(
  checkpoints: ocp.CheckpointManager, steps: Sequence[int], choice: Choice, folder: Path
) -> tuple[int, ...]:
  """The steps whose states make the chosen one."""
  if choice.use == 'last':
    return (steps[-1],)
  regular = tuple(step for step in steps if choice.is_regular(step))
  if choice.use == 'mean':
    if len(regular) < choice.mean_of:
      raise ValueError(
        f'The mean of {choice.mean_of} checkpoints was asked for, but {folder} holds '
        f'{len(regular)}, after steps {", ".join(map(str, regular)) or "none"}.'
      )
    return regular[-choice.mean_of :]
  best = _best({step: checkpoints.metrics(step) for step in regular}, choice)
  if best is None:
    raise ValueError(
      f'The checkpoint with the best {choice.metric} was asked for, but no checkpoint in {folder} '
      f'has a {choice.metric} that is a number.'
    )
  return (best,)


def _name(choice: Choice, steps: Sequence[int]) -> str:
  after = ', '.join(map(str, steps))
  if choice.use == 'mean':
    return f'the mean of the checkpoints after steps {after}'
  by = f' by {choice.metric}' if choice.use == 'best' else ''
  return f'the {choice.use} checkpoint{by}, after step {after}'


def _best(metrics: Mapping[int, Mapping[str, Any] | None], choice: Choice) -> int | None:
  """The step with the best metric, the earliest of equals; None where no step has a finite one."""
  found = {step: (each or {}).get(choice.metric) for step, each in metrics.items()}
  finite = {step: value for step, value in found.items() if value is not None}
  finite = {step: value for step, value in finite.items() if math.isfinite(value)}
  sign = -1 if choice.higher else 1
  return min(finite, key=lambda step: (sign * finite[step], step), default=None)


def _read(checkpoints: ocp.CheckpointManager, step: int, state: Any, folder: Path) -> Any:
  why = unreadable.corruption_reason(folder / str(step))
  if not why:
    try:
      difference = _difference(checkpoints, step, state, folder)
      if not difference:
        target = ocp.args.Composite(state=ocp.args.StandardRestore(state))
        return checkpoints.restore(step, args=target)['state']
    except Exception as error:
      if unreadable.is_out_of_memory(error):
        raise
      why = unreadable.reason_of(error)
    else:
      raise ValueError(difference)
  raise ValueError(
    f'The checkpoint {folder / str(step)} cannot be read ({why}): the command that trains sets it '
    'aside, and goes on from the one before.'
  )


def _mean(states: Generator[Any], count: int) -> Any:
  """The last state, with the mean of the parameters of all; two states are in memory at once."""
  newest = next(states)
  if count == 1:
    return newest
  total = _wide(newest.params)
  for newest in states:
    total = _sum(total, newest.params)
  return newest._replace(params=_divided(total, newest.params, count))


@jax.jit  # arrays that are spread over processes are computed with in jitted functions alone
def _wide(params: Any) -> Any:
  """At least float32."""
  return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), params)


@jax.jit
def _sum(total: Any, params: Any) -> Any:
  return jax.tree.map(jnp.add, total, _wide(params))


@functools.partial(jax.jit, static_argnames='count')
def _divided(total: Any, like: Any, count: int) -> Any:
  return jax.tree.map(lambda leaf, old: (leaf / count).astype(old.dtype), total, like)


def check(folder: Path, state: Any) -> int:
  """Refuses to go on from checkpoints of another model, before anything is trained.

  Returns:
    The step of the newest checkpoint that can be read; 0 if there is none.

  Raises:
    ValueError: if that checkpoint holds another tree than `state`, or there are checkpoints and
      none of them can be read.
  """
  if not folder.is_dir():
    return 0
  broken = {}
  with _reader(folder) as checkpoints:
    for step in unreadable.steps_of(folder):
      why, difference = unreadable.corruption_reason(folder / str(step)), ''
      try:
        difference = '' if why else _difference(checkpoints, step, state, folder)
      except Exception as error:
        why = unreadable.reason_of(error)
      if difference:
        raise ValueError(difference)
      if not why:
        return step
      broken[step] = why
  if broken:
    raise unreadable.no_readable_checkpoint(folder, broken)
  return 0


def _difference(checkpoints: ocp.CheckpointManager, step: int, state: Any, folder: Path) -> str:
  """A sentence that a checkpoint is of another model; '' where it is of this one."""
  there, here = map(_shapes, (checkpoints.item_metadata(step)['state'].tree, state))
  for name in sorted({*there, *here}):
    if there.get(name) != here.get(name):
      return (
        f'{folder} holds another model than config.json makes, or one of an earlier version: '
        f'{name} should have shape {here.get(name, "none")}, but has {there.get(name, "none")}.'
      )
  return ''


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  """The shape of each array, by its path."""
  path = functools.partial(jax.tree_util.keystr, simple=True, separator='/')
  return {path(keys): tuple(leaf.shape) for keys, leaf in jax.tree.leaves_with_path(tree)}
