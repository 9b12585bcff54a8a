"""Begins a run with the weights of another one, whose scheme or sizes may differ.

For context extension, where a scheme that reaches farther takes the place of another one, and for
leaving positions away after training with them (DroPE, Gelberg et al. 2025,
https://arxiv.org/abs/2512.12167).
"""

from pathlib import Path
from typing import Any

import jax
from flax import nnx

from posjax.experiment import checkpoint
from posjax.experiment import workdir as workdirs
from posjax.experiment.evaluation import higher
from posjax.experiment.task import Task
from posjax.experiment.training import State
from posjax.interop.folder import is_checkpoint
from posjax.models.filling import on_devices


def begin(source: Path, state: State, task: Task) -> tuple[State, str]:
  """A new state with every weight that another run has under the same name and in the same shape.

  Weights are what the optimizer trains, and the statistics of BatchNorm. The state of the optimizer
  and the constants of schemes are those of this run.

  Args:
    source: the work folder of the other run, whose model is the one that its `config.checkpoint`
      chooses. Nothing that it names is imported. Or the folder of a checkpoint of another library,
      for a task that takes those.
    state: of this run.
    task: of this run.

  Returns:
    The state, and a sentence that names the weights that were taken, made anew, and left.

  Raises:
    FileNotFoundError: if there is no run, or it has no checkpoint.
    ValueError: if its tokens have other numbers than the task's, or it has none of the weights.
  """
  if is_checkpoint(source):
    return _begin_with_checkpoint(source, state, task)
  there = workdirs.stored_config(source) if source.is_dir() else None
  if there is None:
    raise FileNotFoundError(f'start_from should be the folder of a run, but {source} holds none.')
  _check_vocabulary(source, task)
  choice = checkpoint.read_section(
    there['steps'], there['checkpoint_every'], higher(task), **there['checkpoint']
  )
  ours, seen = _weights(state), {}

  def wanted(path: str, shape: tuple[int, ...]) -> Any:
    if not path.startswith('params/') and path not in ours:
      return None
    seen[path] = shape
    leaf = ours.get(path)
    if leaf is None or tuple(leaf.shape) != shape:
      return None
    return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=leaf.sharding)

  taken, name = checkpoint.read_part(source / workdirs.CHECKPOINTS, choice, wanted)
  if not taken:
    raise ValueError(
      f'start_from should be a run with weights of the same names and shapes, but {source} has '
      f'{_listed(seen)}, and this one {_listed({path: x.shape for path, x in ours.items()})}.'
    )
  anew = {path: leaf.shape for path, leaf in ours.items() if path not in taken}
  left = {path: shape for path, shape in seen.items() if path not in taken}
  count = sum(leaf.size for leaf in taken.values())
  said = [f'{len(taken)} taken with {count:,} numbers: {_listed(dict.fromkeys(taken))}']
  said += [f'{len(anew)} made anew: {_listed(anew)}'] if anew else ['none made anew']
  said += [f'{len(left)} left there: {_listed(left)}'] if left else []
  started = f'weights of {source}, {name}: {"; ".join(said)}'
  return _with(state, taken), started


def _begin_with_checkpoint(source: Path, state: State, task: Task) -> tuple[State, str]:
  """As `begin`, with the weights of another library."""
  if task.weights is None:
    raise ValueError(
      f'start_from should be the folder of a run, but {source} is the checkpoint of another '
      "library, which the task 'checkpoint' takes."
    )
  leaves, may_be_new = task.weights(source)
  anew, taken = {}, 0

  def one(path, leaf):
    nonlocal taken
    held = isinstance(path[-1], jax.tree_util.GetAttrKey)  # in a variable, by its attribute
    names = tuple(_name(each) for each in path[1 : -1 if held else None])
    if names not in leaves:
      if not may_be_new(names):
        raise ValueError(f'{source} has no weights for {".".join(map(str, names))} of the model.')
      anew['/'.join(map(str, names))] = leaf.shape
      return leaf
    taken += 1
    return on_devices(names, leaves[names], leaf.shape, leaf.dtype, leaf.sharding)

  params = jax.tree.map_with_path(one, State(state.params, None, None)).params
  said = [f'{taken} taken', f'{len(anew)} made anew: {_listed(anew)}' if anew else 'none made anew']
  return state._replace(params=params), f'weights of the checkpoint {source}: {"; ".join(said)}'


def _name(key: Any) -> Any:
  """The name, or the index, of a key of a path."""
  return next(getattr(key, each) for each in ('key', 'idx', 'name') if hasattr(key, each))


def _check_vocabulary(source: Path, task: Task) -> None:
  stored = workdirs.stored_vocabulary(source)
  if (stored is None) != (task.vocabulary is None) or (
    stored is not None
    and workdirs.vocabulary_hash(stored) != workdirs.vocabulary_hash(task.vocabulary)
  ):
    raise ValueError(
      f'start_from should be a run whose tokens have the same numbers, but {source} has another '
      f'{workdirs.VOCABULARY}.'
    )


def _weights(state: State) -> dict[str, jax.Array]:
  """The arrays that a run can take from another one, by their paths in a checkpoint."""
  statistics = nnx.state(state.rest, nnx.BatchStat) if jax.tree.leaves(state.rest) else {}
  parts = State(state.params, statistics, None)
  path_of = lambda path: jax.tree_util.keystr(path, simple=True, separator='/')
  return {path_of(path): leaf for path, leaf in jax.tree.leaves_with_path(parts)}


def _with(state: State, taken: dict[str, jax.Array]) -> State:
  """The state with other weights at their paths."""

  def one(path, leaf):
    return taken.get(jax.tree_util.keystr(path, simple=True, separator='/'), leaf)

  parts = jax.tree.map_with_path(one, State(state.params, state.rest, None))
  return state._replace(params=parts.params, rest=parts.rest)


def _listed(shapes: dict[str, Any]) -> str:
  """Paths without what they all have, and the shapes that are known."""
  short = lambda path: path.removeprefix('params/').removesuffix('/value')
  with_shape = lambda shape: '' if shape is None else f' {tuple(shape)}'
  return ', '.join(f'{short(path)}{with_shape(shape)}' for path, shape in shapes.items()) or 'none'
