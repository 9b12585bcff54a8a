"""One of two processes that share a mesh: a training step, and every evaluation.

python -m tests.experiment.support.one_of_two INDEX PORT FILE

It writes the loss of the step and the numbers of each evaluation of the untrained model as JSON.
"""

import json
import sys
from pathlib import Path

import jax
import optax
from flax import nnx

from posjax.experiment import evaluation, sharding, training
from posjax.experiment.run import make_task
from tests.experiment.support.runs import small

CHANGES = {'task.eval_factors': (1, 2), 'task.eval_window': True, 'batch_size': 6}


def numbers(mesh, folder: Path) -> dict[str, dict[str, float]]:
  """The numbers of each evaluation, of the model that the seed makes."""
  config = small(**CHANGES)
  task = make_task(config, folder)
  graph, state = training.create(task, optax.sgd(0.1), mesh, config.seed)
  both, key = nnx.merge_state(state.params, state.rest), jax.random.key(config.seed)
  scores = {e.name: evaluation.evaluate(e, graph, both, mesh, key) for e in task.evaluations}
  return {name: {**score.values, 'counted': score.counted} for name, score in scores.items()}


def step_loss(mesh, folder: Path) -> float:
  """The loss of the first step, over the rows of both processes."""
  config = small(**CHANGES)
  task = make_task(config, folder)
  graph, state = training.create(task, optax.sgd(0.1), mesh, config.seed)
  step = training.make_step(task, graph, optax.sgd(0.1), config.seed, mesh)
  batches = iter(task.train_batches(jax.process_index(), jax.process_count()))
  return float(step(state, sharding.put_batch(next(batches), mesh), 1)[1])


def main(index: str, port: str, file: str) -> None:
  jax.distributed.initialize(f'127.0.0.1:{port}', num_processes=2, process_id=int(index))
  mesh = sharding.make_mesh(data=jax.device_count())
  folder = Path(file).parent
  found = {'devices': jax.device_count(), 'loss': step_loss(mesh, folder)}
  Path(file).write_text(json.dumps({**found, 'numbers': numbers(mesh, folder)}))


if __name__ == '__main__':
  main(*sys.argv[1:])
