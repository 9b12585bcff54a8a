"""A trained run as a notebook wants it: the model, and the schemes with what they have learned."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx
from ml_collections import ConfigDict

import posjax
from posjax.experiment import trained
from posjax.experiment.run import make_task
from posjax.experiment.task import Task
from posjax.foreign import imports
from posjax.layers import parameters
from posjax.models.blocks import Stack
from posjax.models.embedding import Positions
from posjax.models.partitioned import PartitionedAttention
from posjax.nnx import Attention, Parameters
from posjax.scheme import Params, Scheme


class Layer(NamedTuple):
  """A scheme where a model uses it, with its parameters as `posjax.attend` takes them.

  Attributes:
    name: of the layer within the model, as 'stack.0.attention' or 'decoder.stack.1.cross', where
      the number counts the layers of a stack; 'embed' for a model without attention.
    scheme: that of the layer.
    params: trained ones and constants; its own, and those that all layers share.
  """

  name: str
  scheme: Scheme
  params: Params

  def __repr__(self) -> str:
    """The line of the scheme, and the shapes of its parameters."""
    shapes = jax.tree.map(jax.typeof, self.params)
    return f'Layer(name={self.name!r}, scheme={self.scheme!r}, params={shapes!r})'


class Loaded(NamedTuple):
  """A run of train.py.

  Attributes:
    model: the one that `config.checkpoint` chooses, of the checkpoints that there are by now.
    layers: its layers with attention; of a model without attention, its embedding.
    config: the run's.
    task: the run's, with its data.
  """

  model: nnx.Module
  layers: tuple[Layer, ...]
  config: ConfigDict
  task: Task

  def __repr__(self) -> str:
    """The kind and size of the model, its layers, and the line of its config."""
    size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self.model, nnx.Param)))
    layers = ''.join(f'\n    {layer!r},' for layer in self.layers)
    return (
      f'Loaded(\n  model={type(self.model).__name__} with {size:,} parameters,\n'
      f'  layers=({layers}\n  ),\n  config of {self.config.task.name}, {self.config.scheme},\n)'
    )


def load(
  workdir: str | Path,
  schemes: Sequence[posjax.Scheme] = (),
  *,
  step: int | None = None,
  allow_imports: bool = False,
) -> Loaded:
  """The trained model of a work folder, the schemes of its layers, and its config.

  A work folder is data, and may come from somebody else: nothing that it names is imported, unless
  `allow_imports` says so.

  Args:
    workdir: a folder of train.py, which may still be training.
    schemes: those that were handed to `train`, if the config only has a name for them.
    step: takes the checkpoint after this step, instead of the one that `config.checkpoint` chooses;
      0 is the model before training.
    allow_imports: whether schemes and tasks of your own, which the config names by their modules,
      are imported. That runs their code.

  Raises:
    FileNotFoundError: if there is no run in the folder, no checkpoint yet, or none after `step`.
    ValueError: if the folder holds something else than a run, its data changed since, the
      checkpoint is of another model than its config, or the config names a module to import.
  """
  workdir = Path(workdir)
  with imports(allowed=allow_imports):
    config = trained.read_config(workdir)
    task = make_task(config, workdir, schemes)
    trained.check_data(task, workdir)
    model = nnx.merge(*trained.restore(workdir, config, task, step))
  return Loaded(model, layers_of(model), config, task)


def layers_of(model: nnx.Module) -> tuple[Layer, ...]:
  """The schemes of a model's layers with their parameters, in the order of the layers."""
  tables = [(path, each) for path, each in _modules(model) if isinstance(each, Positions)]
  found: list[Layer] = []
  for path, attention, repeat in _attentions(model):
    scheme = attention.layer.scheme
    own = _params(scheme, attention.scheme_params, repeat)
    held = attention.model_params
    shared = _shared(scheme, path, tables) if held is None else _params(scheme, held, repeat)
    name = '.'.join(map(str, path))
    found.append(Layer(name, scheme, parameters.merged(scheme, own, None, shared)))
  return tuple(found) or tuple(
    Layer('.'.join(map(str, path)), scheme, held())
    for path, each in tables
    for scheme, held in zip(each.schemes, each.shared, strict=True)
    if posjax.places(scheme)
  )


_Path = tuple[Any, ...]


def _modules(model: nnx.Module) -> list[tuple[_Path, Any]]:
  """All parts of a model by their paths, where layers of a list are in the order of the list."""
  parts = [(path, each) for path, each in nnx.iter_graph(model) if isinstance(each, nnx.Module)]
  return sorted(parts, key=lambda part: [(isinstance(p, str), p) for p in part[0]])


def _attentions(model: nnx.Module) -> Iterator[tuple[_Path, Any, int | None]]:
  """All attention layers: the path, the layer, and its number in what is stacked, if it is."""
  modules = _modules(model)
  stacks = {path: each for path, each in modules if isinstance(each, Stack)}
  for path, stack in stacks.items():
    for number in range(stack.repeats * len(stack.periods)):
      repeat, place = divmod(number, len(stack.periods))
      for name in ('attention', 'cross'):
        attention = getattr(stack.periods[place], name)
        if attention is not None:
          yield (*path, number, name), attention, repeat
  for path, each in modules:
    inside = any(path[: len(stack)] == stack for stack in stacks)
    if isinstance(each, Attention | PartitionedAttention) and not inside:
      yield path, each, None


def _params(scheme: Scheme, held: Any, repeat: int | None) -> Params:
  """Parameters as a scheme has them, of what a layer holds; of one layer, where it is stacked."""
  variables = held.held if isinstance(held, Parameters) else held
  is_leaf = lambda leaf: isinstance(leaf, nnx.Variable)
  array = lambda leaf: leaf[...] if repeat is None else leaf[...][repeat]
  return parameters.unnamed(scheme, jax.tree.map(array, variables, is_leaf=is_leaf))


def _shared(scheme: Scheme, path: _Path, tables: Sequence[tuple[_Path, Positions]]) -> Params:
  """Parameters that a layer shares: they lie in the nearest embedding that knows the scheme."""

  def together(other: _Path) -> int:
    pairs = zip(path, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

  near = [(where, each) for where, each in tables if scheme in each.schemes]
  if not near:
    return None
  _, table = max(near, key=lambda one: together(one[0]))
  return table.shared[table.schemes.index(scheme)]()
