"""Our decoder and our training step, as train.py runs them: NNX, optax, the old state donated.

The layers of the scan are compiled as one, as configs/default.py advises for a CPU.
"""

from typing import Any

import jax
import numpy as np
import optax

import posjax
from benchmarks.peers import compiled
from benchmarks.spec import LEARNING_RATE, Built, Step, tokens
from posjax.experiment import sharding, training
from posjax.experiment.losses import mean_next_token
from posjax.experiment.task import Task, Unit
from posjax.models.transformer import Transformer


def inputs(spec: Step) -> dict[str, Any]:
  """A batch of one row."""
  row = tokens(spec)
  ids = np.arange(spec.length, dtype=np.int32)[None]
  return {
    'inputs': row[:, :-1],
    'targets': row[:, 1:],
    'positions': ids,
    'segments': np.ones_like(ids),
  }


def model(spec: Step, rngs) -> Transformer:
  """The decoder."""
  return Transformer(
    spec.vocab,
    posjax.get(spec.scheme),
    num_layers=spec.layers,
    width=spec.width,
    num_heads=spec.heads,
    ff_width=spec.ff_width,
    unroll=spec.layers,
    rngs=rngs,
  )


def build(spec: Step, batch: dict[str, Any]) -> Built:
  """Compiles the step. `run` returns the loss before it.

  Raises:
    Unable: if the machine's memory cannot hold it.
  """
  mesh = sharding.make_mesh()
  optimizer = optax.adamw(LEARNING_RATE)
  task = _task(spec)
  graph, state = training.create(task, optimizer, mesh, seed=0)
  batch = sharding.put_batch(batch, mesh)
  step = training.compile_step(training.make_step(task, graph, optimizer, seed=0), state, batch)
  temporary = compiled.fits(step)

  def run():
    nonlocal state
    state, loss = jax.block_until_ready(step(state, batch, 0, seed=0))
    return loss

  count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
  return Built(run, temporary, compiled.device_peak, count)


def _task(spec: Step) -> Task:
  """What a step needs of a task: a model and a loss; there are no other data."""
  return Task(
    facts={},
    model=lambda rngs: model(spec, rngs),
    train_batches=lambda index, count: (),
    loss=mean_next_token,
    unit=Unit('nats per token'),
    evaluations=(),
  )
