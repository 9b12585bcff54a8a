"""A toy task that is trained in no time: a line through the points of a file.

For tests of what happens to a run, whatever it learns. A line of the file is `x y`.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

from posjax.experiment import losses
from posjax.experiment.data.corpus import fingerprint
from posjax.experiment.task import Evaluation, Metric, Task, Unit
from posjax.experiment.tasks.algorithmic.synthetic import batched


class Line(nnx.Module):
  def __init__(self):
    self.slope, self.height = nnx.Param(jnp.zeros(64)), nnx.Param(jnp.zeros(64))

  def __call__(self, x):
    return (jnp.outer(x, self.slope[...]) + self.height[...][None]).mean(1)


def squares(model, batch):
  return (model(batch['x']) - batch['y']) ** 2


def loss(model, batch, state, ids_key, train_key):
  return squares(model, batch).mean(), state


def predict(model, batch, state, key):
  return {'squares': squares(model, batch)}, state


SQUARES = Metric(
  lambda arrays, batch: (arrays['squares'].sum(dtype=np.float64), len(arrays['squares'])),
  lambda sums: float(sums[0] / sums[1]),
  'squared distance',
  higher=False,
)


def task(scheme, model, *, seed, batch_size, data):
  content = Path(data).read_bytes()
  points = np.array([line.split() for line in content.splitlines()], np.float32)

  def row(rng):
    x, y = points[rng.integers(len(points))]
    return {'x': x, 'y': y}

  return Task(
    facts={'data': data, 'sha256': fingerprint([content], [])},
    model=lambda rngs: Line(),
    train_batches=lambda index, count: batched(row, batch_size // count, seed, index, count),
    loss=loss,
    weight=losses.count_rows,
    unit=Unit('squared distance'),
    evaluations=(
      Evaluation(
        name='all points',
        batches=lambda: [dict(zip('xy', points.T, strict=True))],
        predict=predict,
        metrics={'loss': SQUARES},
        counted=lambda arrays, batch: len(batch['x']),
        during=True,
      ),
    ),
  )
