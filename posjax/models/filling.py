"""Models filled with given weights, each device with its part, and weights written out again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from posjax.models import axes


class Lazy(NamedTuple):
  """An array that is computed when it is needed.

  Attributes:
    shape: of the array.
    dtype: of the array.
    read: the array.
  """

  shape: tuple[int, ...]
  dtype: Any
  read: Callable[[], np.ndarray]


Leaf = np.ndarray | Lazy
Leaves = Mapping[tuple[Any, ...], Leaf | Sequence[Leaf]]  # by the path of a parameter


def assemble(
  make: Callable[[], Any],
  leaves: Leaves,
  dtype: Any,
  mesh: Mesh | None,
  may_be_new: Callable[[tuple[Any, ...]], bool],
) -> Any:
  """A model with given weights; each device reads its own part of them, and no other.

  Args:
    make: the constructor of the model. Nothing is made of what it would draw, but for what is not
      given.
    leaves: the weights by their paths; a sequence has one for each of the layers that are stacked.
    dtype: of the weights in the model.
    mesh: of devices, over which weights are cut by the names of their axes; None: one device.
    may_be_new: whether a trained parameter at a path may be drawn anew.

  Raises:
    ValueError: if a shape is another than the model's, or a trained parameter is missing.
  """
  graph, state = nnx.split(nnx.eval_shape(make))
  flat = dict(nnx.to_flat_state(state))
  missing = {path for path in flat if path not in leaves}
  lost = [path for path in missing if isinstance(flat[path], nnx.Param) and not may_be_new(path)]
  if lost:
    names = ', '.join(sorted('.'.join(map(str, path)) for path in lost))
    raise ValueError(f'The folder has no weights for the parameters {names} of the model.')

  def place(path, variable):
    if mesh is None:
      return None
    names = tuple(variable.get_metadata().get('out_sharding') or ())
    return NamedSharding(mesh, axes.spec('.'.join(map(str, path)), variable.shape, names, mesh))

  def new():
    made = dict(nnx.to_flat_state(nnx.state(make())))
    return {path: made[path][...] for path in missing}

  shardings = {path: place(path, flat[path]) for path in missing}
  drawn = jax.jit(new, out_shardings=None if mesh is None else shardings)() if missing else {}
  for path, variable in flat.items():
    if path in missing:
      flat[path] = variable.replace(drawn[path])
    else:
      flat[path] = variable.replace(
        on_devices(path, leaves[path], variable.shape, dtype, place(path, variable))
      )
  return nnx.merge(graph, nnx.from_flat_state(flat))


def on_devices(path, leaf, shape, dtype, sharding):
  """A weight of `Leaves`, as an array of JAX: cut as a sharding says, or on one device.

  Raises:
    ValueError: if it has another shape.
  """
  stacked = isinstance(leaf, list)
  one = leaf[0] if stacked else leaf
  got = (len(leaf), *one.shape) if stacked else tuple(one.shape)
  if got != shape:
    name = '.'.join(map(str, path))
    raise ValueError(f'The weight of {name} must have shape {shape}, but got {got}.')
  read = lambda leaf: leaf.read() if isinstance(leaf, Lazy) else leaf

  def part(index):
    if not stacked:
      return np.asarray(read(leaf)[index], dtype)
    layers, *rest = index
    return np.stack([np.asarray(read(each)[tuple(rest)], dtype) for each in leaf[layers]])

  if sharding is None:
    return jnp.asarray(part((slice(None),) * len(shape)))
  return jax.make_array_from_callback(shape, sharding, part)


def write(model: nnx.Module, leaves: Mapping[tuple[Any, ...], Any]) -> None:
  """Writes the weights of a model into arrays, which are views of those of a file.

  Raises:
    ValueError: if the model has a trained parameter for which there is no array.
  """
  for path, variable in nnx.to_flat_state(nnx.state(model)):
    if path not in leaves:
      if isinstance(variable, nnx.Param):
        name = '.'.join(map(str, path))
        raise ValueError(f'A checkpoint has no place for the parameter {name} of this model.')
      continue
    leaf, value = leaves[path], variable[...]
    if isinstance(leaf, list):
      for i, each in enumerate(leaf):  # arrays: what is written has no `Lazy`
        each[...] = np.asarray(value[i])
    else:
      leaf[...] = np.asarray(value)
