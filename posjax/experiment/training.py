"""One training step, sharded, and everything that it changes."""

import functools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from posjax import positions
from posjax.experiment import sharding
from posjax.experiment.task import TOKENS, Task, count_tokens


class State(NamedTuple):
  """The arrays that a step changes; a checkpoint holds them beside the place in the data.

  Attributes:
    params: what the optimizer trains.
    rest: a scheme's constants, and BatchNorm's statistics.
    optimizer: optax's state; or `Counted`, where updates may be skipped.
    past: what the model remembers of the streams that it reads; None where it does not.
  """

  params: Any
  rest: Any
  optimizer: Any
  past: Any = None


class Counted(NamedTuple):
  """The state of an optimizer whose updates may be skipped.

  Attributes:
    state: optax's, which counts the updates that were made.
    skipped: int32 [2], how many updates were skipped since the loss or a gradient was not finite,
      and the step of the last of them.
  """

  state: Any
  skipped: jax.Array


def create(
  task: Task,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
  seed: int,
  skip_not_finite: int = 0,
) -> tuple[Any, State]:
  """The model's structure and a new state, made where it will live."""
  graph, shapes, make = planned(task, optimizer, skip_not_finite)
  _check_memory(shapes, mesh)
  return graph, jax.jit(make, out_shardings=sharding.of_state(shapes, mesh))(seed)


def planned(
  task: Task, optimizer: optax.GradientTransformation, skip_not_finite: int = 0
) -> tuple[Any, State, Callable[[Any], State]]:
  """The model's structure, the shapes of a state, and what makes one from a seed."""
  kept = {}  # the structure is no array, so no jitted function returns it

  def make(seed):
    rngs = nnx.Rngs(jax.random.key(seed))
    kept['graph'], params, rest = nnx.split(task.model(rngs), nnx.Param, ...)
    past = None if task.memory is None else task.memory.start()
    started: Any = optimizer.init(params)
    if skip_not_finite:
      started = Counted(started, jnp.zeros(2, jnp.int32))
    return State(params, rest, started, past)

  shapes = jax.eval_shape(make, 0)
  return kept['graph'], shapes, make


def _check_memory(shapes: State, mesh: Mesh) -> None:
  """Refuses what would end in a crash of XLA, or of the machine."""
  size = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
  needed, there = size(shapes) // mesh.size, _memory(mesh.devices.flat[0])
  if there is not None and needed > there:
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes.params))
    raise ValueError(
      f'The model should fit into the {there / 1e9:,.1f} GB of a device, but its {count:,} '
      f'parameters and the state of their optimizer need {needed / 1e9:,.1f} GB or more.'
    )


def check_batch(task: Task, batch_size: int, width: int, mesh: Mesh) -> None:
  """Refuses a batch that no memory holds, before its rows are made one by one."""
  there, row = _memory(mesh.devices.flat[0]), next(iter(task.train_batches(0, batch_size)))
  tokens = 1 if TOKENS in row else count_tokens(row)  # rows of several shapes have at least one
  needed = 4 * batch_size * tokens * width
  if there is not None and needed > there * mesh.size:
    raise ValueError(
      f'A batch should fit into the {there * mesh.size / 1e9:,.1f} GB of all devices, but the '
      f'embeddings of {batch_size:,} rows of {tokens:,} tokens alone need {needed / 1e9:,.1f} GB: '
      'give a smaller batch_size, or shorter rows.'
    )


def _memory(device: jax.Device) -> int | None:
  """The memory of a device in bytes; None if unknown."""
  if device.platform != 'cpu':
    return (device.memory_stats() or {}).get('bytes_limit')
  try:
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  except (AttributeError, ValueError, OSError):
    return None


def finite(loss: jax.Array, step: int) -> float:
  """The loss as a number."""
  value = float(loss)
  if not math.isfinite(value):
    raise FloatingPointError(
      f'The loss is {value} after step {step}: positions lie beyond a table of the scheme, or the '
      'learning rate is too high.'
    )
  return value


def check_accumulation(task: Task, state: State, accumulate: int) -> None:
  """Refuses to accumulate gradients where their sum would not be that of the whole batch."""
  if accumulate == 1:
    return
  is_variable = lambda leaf: isinstance(leaf, nnx.Variable)
  statistics = (
    isinstance(leaf, nnx.BatchStat) for leaf in jax.tree.leaves(state.rest, is_leaf=is_variable)
  )
  why = (
    'of this task, whose loss is no mean over tokens or rows (Task.weight)'
    if task.weight is None
    else 'of a model that remembers the batch before'
    if state.past is not None
    else "of a model with the norm 'BatchNorm', which is over a whole batch"
    if any(statistics)
    else ''
  )
  if why:
    raise ValueError(
      f'accumulate must be 1 for the gradients {why}, since those of parts of a batch do not add '
      f'up to them, but got {accumulate}.'
    )


def make_step(
  task: Task,
  graph: Any,
  optimizer: optax.GradientTransformation,
  seed: int,
  mesh: Mesh | None = None,
  accumulate: int = 1,
  skip_not_finite: int = 0,
  zigzag: int = 1,
):
  """`(state, batch, step) -> (state, loss)`, jitted; the old state's memory is used again.

  All randomness is a function of the seed and the step, so a resumed run draws what it would have.
  The seed is an argument of what is compiled: runs that differ in it alone share a program. With a
  mesh, what is remembered stays where it was: its rows with those of the batch.

  Args:
    task: whose loss is minimized.
    graph: the model's structure.
    optimizer: makes updates of gradients.
    seed: of everything random.
    mesh: of devices; None for one.
    accumulate: in how many parts, one after the other, the gradients of a batch are computed and
      added up, as the weights of their losses say. Each part has as many rows of every device.
    skip_not_finite: how many updates may be skipped in a run because the loss or a gradient is not
      finite; a state of `create` counts them. Once there are more, the state changes no more. 0: an
      update is made whatever its numbers are.
    zigzag: over how many devices tokens are laid out as `posjax.positions.zigzag` does, where twice
      as many divide them. 1: they stay where they are.
  """

  def laid_out(batch):
    if zigzag == 1 or any(array.shape[1] % (2 * zigzag) for array in batch.values()):
      return batch
    return positions.zigzag(batch, zigzag)

  def loss_of(params, rest, past, batch, key):
    batch = laid_out(batch)
    # Variables are made anew here: statistics may change only where they were made, by Flax's rule.
    model = nnx.merge(graph, params, jax.tree.map(lambda leaf: leaf, rest))
    ids_key, train_key = jax.random.split(key)
    loss, past = task.loss(model, batch, past, ids_key, train_key)
    return loss, (nnx.state(model, nnx.Not(nnx.Param)), past)

  gradient = jax.value_and_grad(loss_of, has_aux=True)
  if accumulate > 1:
    gradient = _accumulated(gradient, task.weight, accumulate)

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state: State, batch, index, seed):
    key = jax.random.fold_in(jax.random.key(seed), index)
    with sharding.seen(mesh):
      (loss, (rest, past)), grads = gradient(state.params, state.rest, state.past, batch, key)
    if mesh is not None and past is not None:
      places = sharding.of_state(past, mesh)
      past = jax.lax.with_sharding_constraint(past, places)
    before: Any = state.optimizer
    kept = before.state if skip_not_finite else before
    updates, after = optimizer.update(grads, kept, state.params)
    new = State(optax.apply_updates(state.params, updates), rest, after, past)
    if skip_not_finite:
      finite = jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), (loss, grads))
      finite = functools.reduce(jnp.logical_and, jax.tree.leaves(finite))
      new = _or_skipped(state, new, finite, index, skip_not_finite)
    return new, loss

  return functools.partial(step, seed=seed)


def _accumulated(gradient: Callable[..., Any], weigh: Any, accumulate: int) -> Callable[..., Any]:
  """The gradient of a batch as the weighted sum of those of its parts, one after the other."""

  def of_parts(params, rest, past, batch, key):
    total = weigh(batch)

    def add(sums, part):
      index, rows = part
      (loss, _), grads = gradient(params, rest, past, rows, jax.random.fold_in(key, index))
      weight = weigh(rows)
      # A part in which nothing counts has the loss 0 / 0.
      share = lambda new: jnp.where(weight > 0, new * (weight / total), 0)
      return jax.tree.map(lambda old, new: old + share(new), sums, (loss, grads)), None

    cut = jax.tree.map(lambda array: _parts(array, accumulate), batch)
    zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    (loss, grads), _ = jax.lax.scan(add, zeros, (jnp.arange(accumulate), cut))
    return (loss, (rest, past)), grads

  return of_parts


def _or_skipped(state: State, new: State, finite: Any, index: Any, limit: int) -> State:
  """The new state, or the old one with one more update that was skipped.

  Args:
    state: the old one.
    new: the new one, which does not count what is skipped.
    finite: whether the loss and all gradients are finite.
    index: of the step.
    limit: how many updates may be skipped; once there are more, the state changes no more.
  """
  counted: Counted = state.optimizer
  count, last = counted.skipped
  going = count <= limit
  old = state._replace(optimizer=counted.state)
  kept = jax.tree.map(lambda new, old: jnp.where(finite & going, new, old), new, old)
  bad = going & ~finite
  skipped = jnp.stack([count + bad, jnp.where(bad, index, last)])
  return kept._replace(optimizer=Counted(kept.optimizer, skipped))


def _parts(array: jax.Array, count: int) -> jax.Array:
  """Cuts the rows of an array [B, ..] into parts, [count, B / count, ..], of every count-th row.

  A device then has as many rows of each part, and none moves.
  """
  if array.shape[0] % count:
    raise ValueError(
      f'accumulate must divide the rows of every batch, but got {count} and {array.shape[0]} rows.'
    )
  return array.reshape(-1, count, *array.shape[1:]).swapaxes(0, 1)


def compile_step(step: Any, state: State, batch: Any) -> jax.stages.Compiled:
  """The program of a step for arrays of these shapes: `(state, batch, index, seed=...)` runs it."""
  like = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
  shapes = jax.tree.map(like, (state, batch))
  return step.func.lower(*shapes, 0, **step.keywords).compile()


def step_bytes(step: Any, state: State, batch: Any) -> int:
  """Memory that a training step holds at most on a device, as its compiled program states it."""
  used = compile_step(step, state, batch).memory_analysis()
  if used is None:  # CPU, GPU and TPU all state it
    raise RuntimeError(f'{jax.default_backend()} does not state what memory a program needs.')
  held = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
  return int(held + used.temp_size_in_bytes)
