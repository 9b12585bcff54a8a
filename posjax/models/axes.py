"""The axes of the mesh along which models cut their parameters: each layer names its own.

The names are in the metadata of each variable, where `posjax.nnx.Attention(sharding=...)` puts
them, and `posjax.experiment.sharding` reads them there. What has no names is whole on every device.
The sizes of the mesh come from `config.mesh`. Models are made without a mesh around them, so
nothing here is moved when it is made.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from posjax.attention.context import mesh
from posjax.layers import parameters as held
from posjax.nnx import Attention, Parameters
from posjax.scheme import Dims, PRNGKey, Scheme

AXES = ('data', 'fsdp', 'tensor', 'context')  # of the mesh
ROWS = mesh.ROWS  # of a batch
TOKENS = mesh.AXIS  # of a row
WIDTH = 'fsdp'  # M
HEADS = 'tensor'  # H, and K
HIDDEN = 'tensor'  # F
WORDS = 'tensor'  # V, and labels
TABLE = (WORDS, WIDTH)  # V and M
HEADED = (WIDTH, HEADS, None)  # M, H and D, as `posjax.nnx.Attention` takes them

AnyMesh = Mesh | AbstractMesh
Name = str | tuple[str, ...] | None
WHOLE: tuple[Name, Name] = (None, None)


def named(*names: Name) -> dict[str, Any]:
  """The metadata of a variable that is cut along these axes, one name for each dimension.

  Example:
    >>> named(WIDTH, None)
    {'out_sharding': ('fsdp', None), 'eager_sharding': False}
  """
  return {'out_sharding': names, 'eager_sharding': False}


def spec(name: str, shape: tuple[int, ...], names: tuple[Any, ...], mesh: AnyMesh) -> PartitionSpec:
  """The names of the LAST dimensions of an array; those of stacked layers come before them.

  Args:
    name: of the array, for messages.
    shape: of the array.
    names: of its last axes, as a variable has them in `out_sharding`.
    mesh: of devices.

  Raises:
    ValueError: if a name is no axis of the mesh, there are more names than dimensions, or a
      dimension cannot be divided over its axis.
  """
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


def _parts_of(name: str, axis: Name, mesh: AnyMesh) -> int:
  """The number of devices over which an axis of an array is cut."""
  names = (axis,) if isinstance(axis, str) else axis or ()
  for each in names:
    if each not in mesh.shape:
      raise ValueError(f'{name} must name axes of the mesh, {tuple(mesh.shape)}, but got {each!r}.')
  return math.prod(mesh.shape[each] for each in names)


def linear(
  width: int,
  out_width: int,
  *,
  names: tuple[Name, Name] = WHOLE,
  use_bias: bool = True,
  dtype: Any = None,
  param_dtype: Any = jnp.float32,
  rngs: nnx.Rngs,
) -> nnx.Linear:
  """A linear layer whose kernel is cut along two axes, and its bias along the second of them.

  It computes in `dtype`; by default in that of its input and weights, `param_dtype`.
  """
  metadata: dict[str, Any] = {
    'kernel_metadata': named(*names),
    'bias_metadata': named(names[1]),
  }
  metadata |= {'dtype': dtype, 'param_dtype': param_dtype}
  return nnx.Linear(width, out_width, use_bias=use_bias, rngs=rngs, **metadata)


def readout(width: int, answers: int, *, use_bias: bool = True, rngs: nnx.Rngs) -> nnx.Linear:
  """The last layer of a model: from its width to words, or to labels."""
  return linear(width, answers, names=(WIDTH, WORDS), use_bias=use_bias, rngs=rngs)


def attention(make: Callable[..., Attention], *args: Any, **options: Any) -> Attention:
  """A layer of attention whose weights, and those of its scheme, name their axes."""
  with nnx.use_eager_sharding(False):
    return make(*args, **options, sharding=HEADED)


def parameters(scheme: Scheme, field: str, key: PRNGKey, dims: Dims) -> Parameters:
  """The parameters that a scheme's `init` or `init_model` makes, with the names of their axes."""
  made = Parameters(scheme, getattr(scheme, field)(key, dims))
  letters = held.part(held.axes(scheme, field, dims), made.held)

  def renamed(variable, letters):
    return type(variable)(variable[...], **named(*held.names(HEADED, letters)))

  is_leaf = lambda leaf: isinstance(leaf, nnx.Variable)
  made.held = nnx.data(jax.tree.map(renamed, made.held, letters, is_leaf=is_leaf))
  return made
