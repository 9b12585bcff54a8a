"""Checkpoints of everything that a run is: parameters, optimizer, step, and the data's place."""

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

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
