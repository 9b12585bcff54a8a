"""Tasks: one file each, with a function `task(...)` last. The folder is the registry.

A task names its data, its model, its loss, its metrics, and what a trained model can be asked.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from posjax.scheme import PRNGKey

Batch = Mapping[str, Any]  # arrays [B, T] or [B]


class Losses(NamedTuple):
  """What a batch says about a model, before any average.

  Where a row has one answer, T is 1.

  Attributes:
    loss: nats per token.
    weights: 1 where a token counts, 0 where it does not.
    correct: 1 where the most likely token is the right one.
    past: what the model remembers after the batch, where the batch has a `past`.
  """

  loss: Float[Array, 'B T']
  weights: Float[Array, 'B T']
  correct: Float[Array, 'B T']
  past: Any = None


class Recurrence(NamedTuple):
  """What a task adds whose model remembers: batches are then segments of streams, in order.

  The `losses` find in `batch['past']` what is remembered, and return what is after the batch.

  Attributes:
    start: `() -> past`: nothing remembered yet, of the streams to train on.
    start_at: `(rows, length) -> past`: the same for `eval_batches(length)` of so many rows.
    model_at: `(length) -> (rngs) -> model`, the model that is scored at an evaluation length, with
      the parameters of the trained one.
    furthest: the largest position in a stream to train on.
  """

  start: Callable[[], Any]
  start_at: Callable[[int, int], Any]
  model_at: Callable[[int], Callable[[nnx.Rngs], nnx.Module]]
  furthest: int


class Task(NamedTuple):
  """Data, model and judgement of one experiment.

  Attributes:
    facts: what the run should report about its data, by name.
    model: `(rngs) -> model`.
    train_batches: `(shard_index, shard_count) -> grain.IterDataset` of batches.
    losses: `(model, batch, ids_key, train_key) -> Losses`.
    lengths: evaluation lengths; the first is the training length.
    eval_batches: `(length) -> iterable` of batches of that length.
    unit: the name of the headline number, as 'bits per byte'.
    per_nat: what one nat per token is in that unit.
    exact: whether whole answers are scored: a row is right if all its weighted tokens are.
    sample: `(model, key) -> text`: something that a trained model says.
    continued: `(model, batch, key) -> tokens [B, T]`, what a decoder says by itself in place of the
      targets that count; None where that is not asked for.
    windowed: the same model, but every layer of it attends to the last tokens only, as many as a
      training row has; None where that is not asked for.
    learned_batches: `() -> iterable` of batches of training rows, whose right answers say whether a
      model has learned; None where those of the first length do.
    restated: the headline number in other units, by name: functions of it, such as perplexity.
    vocabulary: what its tokens are, as JSON, where the task learned that from its data: the work
      folder keeps it, and a run that goes on there gives it back as the argument `vocabulary`.
    ask: `(model, text, key) -> text`: what a trained model says to a text; None where it cannot be
      asked.
    recurrence: how its model remembers; None where it does not. The lengths are then how many
      tokens each one sees in a layer, itself included.
  """

  facts: Mapping[str, str]
  model: Callable[[nnx.Rngs], nnx.Module]
  train_batches: Callable[[int, int], Any]
  losses: Callable[[Any, Batch, PRNGKey | None, PRNGKey | None], Losses]
  lengths: tuple[int, ...]
  eval_batches: Callable[[int], Iterable[Batch]]
  unit: str
  per_nat: float
  exact: bool
  sample: Callable[[Any, PRNGKey], str]
  continued: Callable[[Any, Batch, PRNGKey], np.ndarray] | None = None
  windowed: Callable[[nnx.Rngs], nnx.Module] | None = None
  learned_batches: Callable[[], Iterable[Batch]] | None = None
  restated: Mapping[str, Callable[[float], float]] = MappingProxyType({})
  vocabulary: Mapping[str, Any] | None = None
  ask: Callable[[Any, str, PRNGKey], str] | None = None
  recurrence: Recurrence | None = None


def names() -> tuple[str, ...]:
  """The tasks that there are: the modules of this folder, sorted."""
  return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def get_task(name: str) -> Callable[..., Task]:
  """The constructor of a task.

  Raises:
    ValueError: if there is none of that name.
  """
  if name not in names():
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else '.'
    raise ValueError(f"Unknown task '{name}'{hint} There are: {', '.join(names())}.")
  return importlib.import_module(f'{__name__}.{name}').task
