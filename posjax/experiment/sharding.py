"""Where arrays live: a mesh of devices, and a rule for each parameter.

Data parallelism over `data`, parameters spread over `fsdp`, heads and hidden units over `tensor`.
Layers name the axes of their parameters (`posjax.nnx.Attention(sharding=...)`, and for all other
layers `models.axes`), which are cut along them; what has no names is replicated. XLA inserts the
communication (jax.jit with NamedSharding: what pjit became).
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from posjax.keys import Count
from posjax.models.axes import AXES, ROWS
from posjax.models.past import Past


def make_mesh(data: Count = 1, fsdp: Count = 1, tensor: Count = 1) -> Mesh:
  """A mesh of data x fsdp x tensor devices, the first that there are."""
  sizes = (data, fsdp, tensor)
  count = math.prod(sizes)
  if min(sizes) < 1 or count > jax.device_count():
    raise ValueError(
      f'The mesh {dict(zip(AXES, sizes, strict=True))} needs {count} devices, but there are '
      f'{jax.device_count()}.'
    )
  devices = jax.devices()[:count]
  return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def seen(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
  """Where traced functions see the mesh: attention takes no kernel that XLA would have to cut."""
  if mesh is None or mesh.size == 1:
    return contextlib.nullcontext()
  return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def of_state(state: Any, mesh: Mesh) -> Any:
  """A NamedSharding for each leaf of parameters, optimizer state or memory, by the names it has.

  Raises:
    ValueError: if a name is no axis of the mesh, an array has fewer dimensions than names, or a
      dimension cannot be divided over its axis.
  """

  def one(path, node):
    name = jax.tree_util.keystr(path)
    if isinstance(node, nnx.Variable):
      names = node.get_metadata().get('out_sharding') or ()
      return node.replace(NamedSharding(mesh, _spec(name, node.shape, tuple(names), mesh)))
    if isinstance(node, Past):  # its rows are where those of a batch are
      cut: Any = lambda array, *names: NamedSharding(mesh, _spec(name, array.shape, names, mesh))
      inputs = tuple(cut(layer, ROWS, None, None) for layer in node.inputs)
      return Past(inputs, cut(node.pos, ROWS, None), cut(node.segments, ROWS, None))
    return NamedSharding(mesh, PartitionSpec())

  is_leaf = lambda node: (
    isinstance(node, Past) or (isinstance(node, nnx.Variable) and hasattr(node, 'shape'))
  )
  return jax.tree_util.tree_map_with_path(one, state, is_leaf=is_leaf)


def put_state(make: Callable[[], Any], mesh: Mesh) -> Any:
  """Makes a tree of arrays where it will live."""
  return jax.jit(make, out_shardings=of_state(jax.eval_shape(make), mesh))()


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """This host's rows of a batch, as global arrays cut along the rows."""
  rows = NamedSharding(mesh, PartitionSpec(ROWS))
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


def check_batch(batch_size: int, mesh: Mesh, accumulate: int = 1) -> None:
  """Every device gets as many rows as every other, of each part of a batch, too."""
  parts = _parts(mesh)
  if batch_size < 1 or batch_size % (parts * accumulate):
    of_parts = '' if accumulate == 1 else f' times the {accumulate} parts of accumulate'
    raise ValueError(
      f'batch_size must be a multiple of {parts} devices{of_parts}, but got {batch_size}.'
    )


def _parts(mesh: Mesh) -> int:
  """Rows are cut over these devices, and over the hosts."""
  return math.lcm(mesh.shape['data'] * mesh.shape['fsdp'], jax.process_count())


def _spec(name: str, shape: tuple[int, ...], names: tuple[Any, ...], mesh: Mesh) -> PartitionSpec:
  """The names of the LAST dimensions of an array; those of stacked layers come before them."""
  if len(names) > len(shape):
    raise ValueError(f'{name} must have a dimension for each of its axes {names}, but got {shape}.')
  if not names:
    return PartitionSpec()
  names = (None,) * (len(shape) - len(names)) + names
  for size, axis in zip(shape, names, strict=True):
    parts = _parts_of(name, axis, mesh)
    if size % parts:
      raise ValueError(
        f'{name} has shape {shape}, of which {size} cannot be divided over {parts} devices of the '
        f'{axis} axis.'
      )
  return PartitionSpec(*names)


def _parts_of(name: str, axis: str | tuple[str, ...] | None, mesh: Mesh) -> int:
  """The number of devices over which an axis of an array is cut."""
  names = (axis,) if isinstance(axis, str) else axis or ()
  for each in names:
    if each not in mesh.shape:
      raise ValueError(f'{name} must name axes of the mesh, {tuple(mesh.shape)}, but got {each!r}.')
  return math.prod(mesh.shape[each] for each in names)
