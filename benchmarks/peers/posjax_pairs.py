"""Our models of sentence pairs, trained as train.py does, or asked for logits.

ESIM is at its published size, 300 everywhere. The Gaussian Transformer has M = 3 encoding layers,
as published; the rest of its sizes is ours, as no account of the paper has them: N = 1 interaction
layer, 4 times the width in feed-forward layers, and either width 128 with 4 heads ('small'), or 272
with 8, which gives it as many parameters as ESIM ('equal'). It also reads 12 character n-grams of
each word, with vectors of 64 numbers. Neither trains vectors of words or of n-grams, so that their
layers are compared and not the update of a table; dropout is 0.5 for ESIM, and 0.1 for the others.
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import posjax
from benchmarks.peers import compiled
from benchmarks.spec import LEARNING_RATE, Built, Pairs
from posjax.experiment import sharding, training
from posjax.experiment.task import Task, Unit
from posjax.experiment.tasks import supervised
from posjax.experiment.tasks.sentence_pairs.esim import ESIM
from posjax.experiment.tasks.sentence_pairs.gaussian_transformer import GaussianTransformer
from posjax.experiment.tasks.sentence_pairs.task import logits_of, sides

NGRAMS = 12  # of each word, of the Gaussian Transformer
NGRAM_TYPES = 10_000
LAYERS = {'num_layers': 3, 'interaction_layers': 1, 'dropout_rate': 0.1}
SIZES: Mapping[str, dict[str, Any]] = MappingProxyType(
  {
    'esim': {'hidden_width': 300, 'dropout_rate': 0.5},
    'small': {'width': 128, 'num_heads': 4, **LAYERS},
    'equal': {'width': 272, 'num_heads': 8, **LAYERS},
  }
)


def inputs(spec: Pairs) -> dict[str, np.ndarray]:
  """A batch of whole rows, without padding."""
  rng = np.random.default_rng(0)
  shape = (spec.batch, spec.length)
  made = {name: rng.integers(1, spec.vocab, shape, np.int32) for name in ('premise', 'hypothesis')}
  if spec.way != 'esim':
    drawn = lambda: rng.integers(1, NGRAM_TYPES, (*shape, NGRAMS), np.int32)
    made |= {f'{name}_ngrams': drawn() for name in ('premise', 'hypothesis')}
  made['labels'] = rng.integers(0, spec.labels, (spec.batch, 1), np.int32)
  made['weights'] = np.ones((spec.batch, 1), np.float32)
  return made


def model(spec: Pairs, rngs: nnx.Rngs) -> nnx.Module:
  """The model."""
  make, ngrams = (ESIM, 0) if spec.way == 'esim' else (GaussianTransformer, NGRAM_TYPES)
  return make(
    spec.vocab,
    ngrams,
    spec.labels,
    posjax.get(spec.scheme),
    word_width=300,
    char_width=64,
    train_words=False,
    train_characters=False,
    rngs=rngs,
    **SIZES[spec.way],
  )


def build(spec: Pairs, batch: dict[str, np.ndarray]) -> Built:
  """Compiles a step, or a pass. `run` returns the loss before the step, or the logits.

  Raises:
    Unable: if the machine's memory cannot hold it.
  """
  mesh = sharding.make_mesh()
  optimizer = optax.adamw(LEARNING_RATE)
  task = _task(spec)
  graph, state = training.create(task, optimizer, mesh, seed=0)
  arrays = sharding.put_batch(batch, mesh)
  count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
  if not spec.training:
    both = nnx.merge_state(state.params, state.rest)
    ready = compiled.compiled(
      lambda state, batch: nnx.merge(graph, state)(*sides(batch)), both, arrays
    )
    return ready._replace(parameters=count)
  step = training.compile_step(training.make_step(task, graph, optimizer, seed=0), state, arrays)
  temporary = compiled.fits(step)

  def run():
    nonlocal state
    state, loss = jax.block_until_ready(step(state, arrays, 0, seed=0))
    return loss

  return Built(run, temporary, compiled.device_peak, count)


def _task(spec: Pairs) -> Task:
  """What a step needs of a task: a model and a loss; there are no other data."""
  return Task(
    facts={},
    model=lambda rngs: model(spec, rngs),
    train_batches=lambda index, count: (),
    loss=functools.partial(supervised.mean_label_loss, logits_of),
    unit=Unit('nats per pair'),
    evaluations=(),
  )
