"""Checkpoints of everything that a run is: parameters, optimizer, step, and the data's place."""

import contextlib
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp


@contextlib.contextmanager
def manager(folder: Path, keep: int = 2) -> Generator[ocp.CheckpointManager]:
  """Opens a folder of checkpoints, and waits for unfinished ones at the end.

  A checkpoint that was killed half-way is never picked up.
  """
  options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
  opened = ocp.CheckpointManager(folder.resolve(), options=options)
  try:
    yield opened
  finally:
    opened.close()


def save(checkpoints: ocp.CheckpointManager, step: int, state: Any, data: Any) -> None:
  """Saves a tree of arrays and a Grain iterator."""
  import grain

  if checkpoints.latest_step() == step:
    return
  checkpoints.save(
    step,
    args=ocp.args.Composite(
      state=ocp.args.StandardSave(state), data=grain.checkpoint.CheckpointSave(data)
    ),
  )


def restore(checkpoints: ocp.CheckpointManager, state: Any, data: Any) -> tuple[int, Any]:
  """The last step and its state; puts the data iterator back to its place. `(0, state)` if none.

  Args:
    checkpoints: as from `manager`.
    state: the tree's structure: arrays, or shapes with their shardings.
    data: the Grain iterator to put back.
  """
  import grain

  step = checkpoints.latest_step()
  if step is None:
    return 0, state
  restored = checkpoints.restore(
    step,
    args=ocp.args.Composite(
      state=ocp.args.StandardRestore(state), data=grain.checkpoint.CheckpointRestore(data)
    ),
  )
  return step, restored['state']


def last(folder: Path, state: Any) -> Any:
  """The state of the last checkpoint, read while another process may write there.

  Args:
    folder: of checkpoints.
    state: the tree's structure: arrays, or shapes with their shardings.

  Raises:
    FileNotFoundError: if there is none.
    ValueError: if it holds another tree.
  """
  if not folder.is_dir():
    raise FileNotFoundError(f'There is no checkpoint yet: {folder} is no folder.')
  options = ocp.CheckpointManagerOptions(read_only=True)
  handlers = {'state': ocp.StandardCheckpointHandler()}
  checkpoints = ocp.CheckpointManager(folder.resolve(), options=options, item_handlers=handlers)
  with contextlib.closing(checkpoints):
    step = checkpoints.latest_step()
    if step is None:
      raise FileNotFoundError(f'There is no checkpoint yet in {folder}.')
    there, here = map(_shapes, (checkpoints.item_metadata(step)['state'].tree, state))
    if there != here:
      odd = next(iter((there - here) + (here - there)))
      raise ValueError(
        f'{folder} holds another model than config.json makes: an array of shape {odd} is in one '
        'of them alone.'
      )
    target = ocp.args.Composite(state=ocp.args.StandardRestore(state))
    return checkpoints.restore(step, args=target)['state']


def _shapes(tree: Any) -> Counter[tuple[int, ...]]:
  return Counter(tuple(leaf.shape) for leaf in jax.tree.leaves(tree))
