"""Where arrays live: a mesh of devices, and a rule for each parameter.

Data parallelism over `data`, parameters spread over `fsdp`, heads and hidden units over `tensor`,
the tokens of a row over `context`, for attention that is computed over it.
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

from posjax.attention.choice import OVER_DEVICES
from posjax.keys import Count
from posjax.models.axes import AXES, ROWS, TOKENS, spec
from posjax.models.past import Past
from posjax.nnx import Attention


def make_mesh(data: Count = 1, fsdp: Count = 1, tensor: Count = 1, context: Count = 1) -> Mesh:
  """A mesh of data x fsdp x tensor x context devices: the first that there are, of all processes.

  Raises:
    ValueError: if there are fewer; or more, where there are several processes, each of which must
      have a part in the mesh.
  """
  sizes = (data, fsdp, tensor, context)
  count = math.prod(sizes)
  if min(sizes) < 1 or count > jax.device_count():
    raise ValueError(
      f'The mesh {dict(zip(AXES, sizes, strict=True))} needs {count} devices, but there are '
      f'{jax.device_count()}.'
    )
  if jax.process_count() > 1 and count < jax.device_count():
    raise ValueError(
      f'The mesh of {jax.process_count()} processes must have all of their {jax.device_count()} '
      f'devices, but {dict(zip(AXES, sizes, strict=True))} has {count}.'
    )
  devices = jax.devices()[:count]
  return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 4, devices=devices)


def compute_attention_by(model: nnx.Module, implementation: str | None) -> None:
  """Has all layers of a model compute attention in another way, as `posjax.attend` takes it."""
  for _, part in nnx.iter_graph(model):
    if isinstance(part, Attention):
      part.layer = part.layer._replace(implementation=implementation)


def check_context(mesh: Mesh, implementation: str | None) -> None:
  """Refuses an axis `context` over which no attention is computed."""
  if mesh.shape['context'] > 1 and implementation not in OVER_DEVICES:
    raise ValueError(
      f'mesh.context must be 1 unless attention.implementation is one of {OVER_DEVICES}, which '
      f'cut the tokens of a row, but got {mesh.shape["context"]} with {implementation!r}.'
    )


def seen(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
  """Where traced functions see the mesh: attention cuts rows by it, and takes no kernel to be cut.

  Raises:
    ValueError: if the mesh has explicit axes, the default of `jax.make_mesh`.
  """
  if mesh is None:
    return contextlib.nullcontext()
  if set(mesh.axis_types) != {AxisType.Auto}:
    raise ValueError(
      'The axes of the mesh must be those that XLA cuts, axis_types=(AxisType.Auto, ..) of '
      f'jax.make_mesh, but got {mesh.axis_types}.'
    )
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
      return node.replace(NamedSharding(mesh, spec(name, node.shape, tuple(names), mesh)))
    if isinstance(node, Past):  # its rows are where those of a batch are
      cut: Any = lambda array, *names: NamedSharding(mesh, spec(name, array.shape, names, mesh))
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


def row_parts(mesh: Mesh) -> list[list[int]]:
  """For each part of the rows of a batch, in their order, the processes that have it."""
  parts = mesh.devices.reshape(_parts(mesh), -1)
  return [sorted({device.process_index for device in devices}) for devices in parts]


def own_parts(mesh: Mesh) -> list[int]:
  """The parts of the rows of a batch that this process has on its devices."""
  return [part for part, each in enumerate(row_parts(mesh)) if jax.process_index() in each]


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """This process's rows of a batch, as global arrays: cut along the rows, and along the tokens.

  Args:
    batch: arrays [b, ..] whose rows are those of the parts that the process has (`row_parts`). The
      second axis is cut over `context`, where it can be divided.
    mesh: of devices.
  """
  owners, mine = row_parts(mesh), own_parts(mesh)

  def put(value: np.ndarray) -> jax.Array:
    each = len(value) // len(mine)
    tokens = TOKENS if value.ndim > 1 and value.shape[1] % mesh.shape[TOKENS] == 0 else None
    cut = PartitionSpec(ROWS, *([tokens] if value.ndim > 1 else []))

    def part_of(index: Any) -> np.ndarray:
      rows, *rest = index
      at = mine.index((rows.start or 0) // each) * each
      return value[(slice(at, at + each), *rest)]

    shape = (each * len(owners), *value.shape[1:])
    return jax.make_array_from_callback(shape, NamedSharding(mesh, cut), part_of)

  return {name: put(np.asarray(value)) for name, value in batch.items()}


def put_whole(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """A batch of which every process holds all rows, cut as by `put_batch`.

  Rows of zeros are added until all parts have as many.
  """
  owners, mine = row_parts(mesh), own_parts(mesh)

  def rows_of(value: np.ndarray) -> np.ndarray:
    filled = np.pad(value, [(0, -len(value) % len(owners))] + [(0, 0)] * (value.ndim - 1))
    parts = np.split(filled, len(owners))
    return np.concatenate([parts[part] for part in mine])

  return put_batch({name: rows_of(value) for name, value in batch.items()}, mesh)


def check_batch(batch_size: int, mesh: Mesh, accumulate: int = 1) -> None:
  """Every device gets as many rows as every other, of each part of a batch, too."""
  parts = _parts(mesh)
  if batch_size < 1 or batch_size % (parts * accumulate):
    of_parts = '' if accumulate == 1 else f' times the {accumulate} parts of accumulate'
    raise ValueError(
      f'batch_size must be a multiple of {parts} devices{of_parts}, but got {batch_size}.'
    )


def _parts(mesh: Mesh) -> int:
  """The number of parts into which the rows of a batch are cut."""
  return math.prod(mesh.shape[axis] for axis in ROWS)
