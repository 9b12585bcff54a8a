"""The evaluations of a task, found by length, and scores of models by them."""

import jax
from flax import nnx

from posjax.experiment import sharding
from posjax.experiment.evaluation import evaluate


def of_length(task, length, series=''):
  """The one evaluation of a length and a series."""
  (found,) = [e for e in task.evaluations if (e.length, e.series) == (length, series)]
  return found


def batches(task, length):
  """What is judged at a length."""
  return list(of_length(task, length).batches())


def lengths(task):
  """The lengths that are judged, the trained one first."""
  return tuple(e.length for e in task.evaluations if e.role in ('trained', 'unseen'))


def score(evaluation, model, mesh=None):
  """A model's score; numbers by metric."""
  graph, state = nnx.split(model)
  return evaluate(evaluation, graph, state, mesh or sharding.make_mesh(), jax.random.key(0))


def scored(task, model, length, mesh=None, series=''):
  """A model's score at a length."""
  return score(of_length(task, length, series), model, mesh)


def unit(task):
  """What a nat is in the unit of the training loss."""
  return task.unit.factor
