"""Where arrays live: a mesh of devices, and a rule for each parameter.

Data parallelism over `data`, parameters spread over `fsdp`, heads and hidden units over `tensor`.
A weight whose layer names its axes (`posjax.nnx.Attention(sharding=...)`) is cut along these; for
others, rules are patterns over parameter names, and what no rule names is replicated. XLA inserts
the communication (jax.jit with NamedSharding: what pjit became).
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from posjax.experiment.checks import Count

AXES = ('data', 'fsdp', 'tensor')

_ROWS = ('data', 'fsdp')  # of a batch

# Name, and the axes of the LAST dimensions; stacked layers have one more in front.
_RULES = (
  (r"table'\]\['embedding'\]", ('tensor', 'fsdp')),
  (r"attention.*(query|key|value)'\].*kernel'\]", ('fsdp', 'tensor', None)),
  (r"cross.*(query|key|value)'\].*kernel'\]", ('fsdp', 'tensor', None)),
  (r"(attention|cross).*out'\].*kernel'\]", ('tensor', None, 'fsdp')),
  (r"(up|gate)'\].*kernel'\]", ('fsdp', 'tensor')),
  (r"down'\].*kernel'\]", ('tensor', 'fsdp')),
  (r"readout'\].*kernel'\]", ('fsdp', 'tensor')),
  (r'past\W+inputs', (_ROWS, None, None)),
  (r'past\W+(pos|segments)', (_ROWS, None)),
)


def make_mesh(data: Count = 1, fsdp: Count = 1, tensor: Count = 1) -> Mesh:
  """A mesh of data x fsdp x tensor devices, the first that there are.

  Raises:
    ValueError: if there are fewer devices.
  """
  sizes = (data, fsdp, tensor)
  count = math.prod(sizes)
  if min(sizes) < 1 or count > jax.device_count():
    raise ValueError(
      f'The mesh {dict(zip(AXES, sizes, strict=True))} needs {count} devices, but there are '
      f'{jax.device_count()}.'
    )
  devices = jax.devices()[:count]
  return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def of_state(state: Any, mesh: Mesh) -> Any:
  """A NamedSharding for each leaf of parameters or optimizer state, by its name.

  Raises:
    ValueError: if a dimension cannot be divided over its mesh axis.
  """

  def one(path, leaf):
    name = jax.tree_util.keystr(path)
    if not isinstance(leaf, nnx.Variable):
      return NamedSharding(mesh, _spec(name, leaf.shape, mesh))
    return leaf.replace(NamedSharding(mesh, _spec(name, leaf.shape, mesh, _names(leaf))))

  is_leaf = lambda leaf: isinstance(leaf, nnx.Variable) and hasattr(leaf, 'shape')
  return jax.tree_util.tree_map_with_path(one, state, is_leaf=is_leaf)


def put_state(make: Callable[[], Any], mesh: Mesh) -> Any:
  """Makes a tree of arrays where it will live; `past` is its name."""
  shardings = of_state({'past': jax.eval_shape(make)}, mesh)['past']
  return jax.jit(make, out_shardings=shardings)()


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """This host's rows of a batch, as global arrays cut along the rows."""
  rows = NamedSharding(mesh, PartitionSpec(_ROWS))
  return {
    name: jax.make_array_from_process_local_data(rows, value) for name, value in batch.items()
  }


def put_whole(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """A batch that every host has whole, cut along the rows; filled up with rows of zeros."""
  rows = len(next(iter(batch.values())))
  missing = -rows % _parts(mesh)
  share = (rows + missing) // jax.process_count()
  mine = slice(jax.process_index() * share, (jax.process_index() + 1) * share)
  filled = {
    name: np.pad(value, [(0, missing)] + [(0, 0)] * (value.ndim - 1))[mine]
    for name, value in batch.items()
  }
  return put_batch(filled, mesh)


def check_batch(batch_size: int, mesh: Mesh) -> None:
  """Every device gets as many rows as every other.

  Raises:
    ValueError: if it cannot be.
  """
  parts = _parts(mesh)
  if batch_size < 1 or batch_size % parts:
    raise ValueError(f'batch_size must be a multiple of {parts} devices, but got {batch_size}.')


def _parts(mesh: Mesh) -> int:
  """Rows are cut over these devices, and over the hosts."""
  return math.lcm(mesh.shape['data'] * mesh.shape['fsdp'], jax.process_count())


def _names(variable: nnx.Variable) -> tuple[Any, ...] | None:
  """The names of the axes that a layer gave to its weight; None where it gave none."""
  names = variable.get_metadata().get('out_sharding')
  return None if names is None else tuple(names)


def _parts_of(name: str, axis: str | tuple[str, ...] | None, mesh: Mesh) -> int:
  """The number of devices over which an axis of an array is cut.

  Raises:
    ValueError: if the mesh has no such axis.
  """
  names = (axis,) if isinstance(axis, str) else axis or ()
  for each in names:
    if each not in mesh.shape:
      raise ValueError(f'{name} must name axes of the mesh, {tuple(mesh.shape)}, but got {each!r}.')
  return math.prod(mesh.shape[each] for each in names)


def _spec(
  name: str, shape: tuple[int, ...], mesh: Mesh, names: tuple[Any, ...] | None = None
) -> PartitionSpec:
  rules = _RULES if names is None else (('', names),)
  for pattern, axes in rules:
    if re.search(pattern, name) and len(shape) >= len(axes):
      axes = (None,) * (len(shape) - len(axes)) + axes
      for size, axis in zip(shape, axes, strict=True):
        parts = _parts_of(name, axis, mesh)
        if size % parts:
          raise ValueError(
            f'{name} has shape {shape}, of which {size} cannot be divided over {parts} devices of '
            f'the {axis} axis.'
          )
      return PartitionSpec(*axes)
  return PartitionSpec()
