"""Our decoder and our training step, as train.py runs them: NNX, optax, the old state donated.

`way` is '' for what attention takes by default; with 'jax.nn xla' or 'jax.nn cudnn', jax.nn
computes the attention of the same model, which then has no positions. On a CPU the layers of the
scan are compiled as one, as configs/default.py advises there. Where the dtype is bfloat16, the
parameters are float32, and are rounded for each step.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import posjax
from benchmarks.peers import compiled
from benchmarks.spec import LEARNING_RATE, Absent, Built, Step, Unable, tokens
from posjax.attention import IMPLEMENTATIONS
from posjax.experiment import sharding, training
from posjax.experiment.losses import mean_next_token
from posjax.experiment.task import Task, Unit
from posjax.models.transformer import Transformer


def inputs(spec: Step) -> dict[str, Any]:
  """A batch."""
  rows = tokens(spec)
  ids = np.broadcast_to(np.arange(spec.length, dtype=np.int32), rows[:, 1:].shape)
  return {
    'inputs': rows[:, :-1],
    'targets': rows[:, 1:],
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
    unroll=spec.layers if jax.default_backend() == 'cpu' else 1,
    rngs=rngs,
  )


def build(spec: Step, batch: dict[str, Any]) -> Built:
  """Compiles the step. `run` returns the loss before it.

  Raises:
    Absent: if jax.nn is to compute by cuDNN, and cannot.
    Unable: if jax.nn is to compute a scheme; or the machine's memory cannot hold the step.
  """
  mesh = sharding.make_mesh()
  optimizer = optax.adamw(LEARNING_RATE)
  task = _task(spec)
  graph, state = training.create(task, optimizer, mesh, seed=0)
  batch = sharding.put_batch(batch, mesh)
  with _attention(spec):
    step = training.compile_step(training.make_step(task, graph, optimizer, seed=0), state, batch)
  temporary = compiled.fits(step)

  def run():
    nonlocal state
    state, loss = jax.block_until_ready(step(state, batch, 0, seed=0))
    return loss

  count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
  return Built(run, temporary, compiled.device_peak, count)


@contextlib.contextmanager
def _attention(spec: Step) -> Iterator[None]:
  """While it lasts, models are compiled with the attention that the case asks for."""
  library, _, implementation = spec.way.partition(' ')
  if not library:
    yield
    return
  if spec.scheme != 'none':
    raise Unable('jax.nn has no positions')
  if implementation == 'cudnn' and (jax.default_backend() != 'gpu' or spec.dtype == 'float32'):
    raise Absent('cuDNN needs a GPU and 16 bits: --dtype=bfloat16')

  def attend(scheme, rules, x):
    return jax.nn.dot_product_attention(
      x.q.raw, x.k.raw, x.v, scale=rules.scale, is_causal=True, implementation=implementation
    )

  default = mock.patch.dict(os.environ, POSJAX_IMPLEMENTATION='dense')
  with mock.patch.dict(IMPLEMENTATIONS, dense=attend), default:
    yield


def _task(spec: Step) -> Task:
  """What a step needs of a task: a model and a loss; there are no other data."""
  return Task(
    facts={},
    model=lambda rngs: model(spec, rngs),
    train_batches=lambda index, count: (),
    loss=_loss(jnp.dtype(spec.dtype)),
    unit=Unit('nats per token'),
    evaluations=(),
  )


def _loss(dtype: Any) -> Any:
  """The mean loss of the next token, by a model whose parameters are rounded to a dtype."""
  if dtype == jnp.float32:
    return mean_next_token

  def loss(model, *rest):
    graph, params, others = nnx.split(model, nnx.Param, ...)
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    return mean_next_token(nnx.merge(graph, narrow, others), *rest)

  return loss
