"""Parameters of a scheme among the weights of a checkpoint, such as T5's table."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from posjax.layers.parameters import named
from posjax.scheme import Dims, Scheme

Shape = tuple[int, ...]


class Form(NamedTuple):
  """How a checkpoint holds a parameter.

  Attributes:
    shape: from the shape of the scheme's parameter to that of the weight.
    read: the parameter, from the weight and the shape of the parameter.
  """

  shape: Callable[[Shape], Shape]
  read: Callable[[Any, Shape], Any]


def _columns(weight: Array, shape: Shape) -> Array:
  """A projection [H D, M] of sines and cosines in turn, as [M, H, D], all sines first."""
  width = shape[0]
  order = np.arange(width).reshape(-1, 2).T.ravel()
  return jnp.moveaxis(weight[:, order].reshape(*shape[1:], width), -1, 0)


SAME = Form(lambda shape: shape, lambda weight, shape: weight)
TRANSPOSED = Form(lambda shape: shape[::-1], lambda weight, shape: weight.T)
FLAT = Form(  # the first two axes are one
  lambda shape: (shape[0] * shape[1], *shape[2:]), lambda weight, shape: weight.reshape(shape)
)
COLUMN = Form(lambda shape: (*shape, 1, 1), lambda weight, shape: weight.reshape(shape))
OF_CODES = Form(lambda shape: (shape[1] * shape[2], shape[0]), _columns)


class Table(NamedTuple):
  """A parameter of the scheme among the weights.

  Attributes:
    parameter: its name in the scheme, or as '1.table' in the second member of a chain.
    name: its name in the block.
    block: where it is after the prefix, if not in the block of the layer's own attention.
    form: how the checkpoint holds it.
  """

  parameter: str
  name: str
  block: str = ''
  form: Form = SAME

  def path(self, own: str, block: str) -> str:
    """The full name, from the place of the layer's attention after the prefix, and with it."""
    if not self.block or not block:
      return f'{block}{self.name}'
    return f'{block.removesuffix(own)}{self.block}.{self.name}'


class Tables:
  """The parameters of a layer's scheme that its checkpoint has.

  Example:
    >>> from posjax.schemes import t5
    >>> found = Tables(t5.scheme(num_buckets=8), Dims(8, 2, 4), (Table('table', 'bias.weight'),))
    >>> found.shapes('h.0.', 'h.0.')
    {'h.0.bias.weight': (8, 2)}
  """

  def __init__(self, scheme: Scheme, dims: Dims, tables: tuple[Table, ...]):
    self.tables = tables
    self._parts = {
      'model_params': _shapes(scheme.init_model, dims),
      'scheme_params': _shapes(scheme.init, dims),
    }

  def shapes(self, own: str, block: str) -> dict[str, Shape]:
    """The shapes of the weights by their full names; for the arguments see `Table.path`."""
    return {
      table.path(own, block): table.form.shape(self._found(table)[1]) for table in self.tables
    }

  def assembled(self, own: str, block: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """The collections of a layer that hold the scheme's parameters."""
    loaded: dict[str, Any] = {}
    for table in self.tables:
      part, shape = self._found(table)
      *member, name = table.parameter.split('.')
      held = loaded.setdefault(part, {})
      for each in member:
        held = held.setdefault(each, {})
      held[name] = table.form.read(arrays[table.path(own, block)], shape)
    return loaded

  def _found(self, table: Table) -> tuple[str, Shape]:
    part = next(part for part, shapes in self._parts.items() if table.parameter in shapes)
    return part, self._parts[part][table.parameter]


def _shapes(init: Callable[..., Any], dims: Dims) -> dict[str, Shape]:
  """The shapes of what is made, by its name, or as '1.table' in a chain."""
  made = named(jax.eval_shape(lambda: init(jax.random.key(0), dims)))
  leaves = jax.tree_util.tree_leaves_with_path(made)
  return {'.'.join(str(each.key) for each in path): leaf.shape for path, leaf in leaves}
