"""The contract of a task: its records, and how a task is found by its name.

A task is everything that a run needs to know about one experiment: its data, its model, its loss,
how it is evaluated, and what a trained model can be asked. The records of this module are the whole
contract; nothing outside a task's own folder reads what its batches hold. CONTRIBUTING.md, "Adding
a task", goes through them with an example. This module imports no task.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from flax import nnx

from posjax.experiment import tasks
from posjax.foreign import check_import
from posjax.scheme import PRNGKey

if TYPE_CHECKING:
  from rich.text import Text

Batch = Mapping[str, Any]  # arrays whose first axis is the row, as [B, T] or [B]
Arrays = Mapping[str, np.ndarray]  # what a prediction returned, with the same rows
Role = Literal['trained', 'unseen', 'training rows', 'other']

TOKENS = 'tokens'  # the entry of a batch that says how many tokens each of its rows holds


class Metric(NamedTuple):
  """One number that an evaluation reports, or a small array for a picture.

  `update` sees one batch at a time, and `finish` sees what all batches add up to: a metric of the
  whole corpus returns lists of sentences from `update`, and scores them in `finish`.

  Attributes:
    update: `(arrays, batch) -> sums`, in NumPy on the host. Sums are anything that can be added
      with `+`: numbers, arrays, lists, Counters; tuples and dictionaries of them are added part by
      part.
    finish: `(sums) -> number`; or, where `array` is set, a NumPy array [N].
    unit: how the number is called in tables, in full, such as 'bits per byte' or '% of tags right'.
    higher: whether higher numbers are better.
    best: the best number there can be, as 1 for a share; None for a loss, which has no natural
      threshold from which on a model has learned.
    scale: what the number is multiplied by where it is shown, as 100 for a share in percent.
    digits: how many are shown behind the point.
    array: whether `finish` returns an array, which is drawn and not compared.
    error: `(sums) -> number`, the standard error of what `finish` returns, over the rows that were
      drawn to be judged, for the error bars of pictures; None where nobody knows it. Where `array`
      is set, it belongs to the means over `posjax.experiment.metrics.windows`.
    constant: `(sums) -> number`, what `finish` would return for the best answer that is the same
      for every token or row, as the entropy of their frequencies is of a mean cross-entropy; None
      where nobody knows it. A comparison sees by it whether a model has learned.
  """

  update: Callable[[Arrays, Batch], Any]
  finish: Callable[[Any], Any]
  unit: str
  higher: bool
  best: float | None = None
  scale: float = 1.0
  digits: int = 3
  array: bool = False
  error: Callable[[Any], Any] | None = None
  constant: Callable[[Any], float] | None = None


class Evaluation(NamedTuple):
  """One set of batches on which a model is judged, and how.

  `predict` runs on the devices and is compiled once for each shape of a batch; its arrays come to
  the host whole, without the rows that were added to fill up the devices. The metrics then read
  them beside the batch. Evaluations that share one `predict` function share its programs.

  Attributes:
    name: under which results are stored; no two evaluations of a task share one.
    batches: `() -> iterable` of batches, the same ones every time, whole on every host.
    predict: `(model, batch, state, key) -> (arrays, state)`, in JAX. Arrays have a row for each row
      of the batch; one that holds NaN says that the model has no answer, as beyond a table of its
      scheme, and the evaluation then has no numbers. `state` is what `start` returned for the first
      batch, and what the batch before left for the others; None where there is no `start`.
    metrics: by name; the first one is the number by which the evaluation is judged.
    counted: `(arrays, batch) ->` how many answers, or tokens, the first metric is a mean over.
    role: 'trained' for what resembles the training data, such as held-out rows of the training
      length; 'unseen' for what goes beyond it, such as longer rows; 'training rows' for rows of the
      training data itself, by which a comparison sees whether a model has learned them; 'other'
      for what is shown and enters no mean, such as another way to decode the same rows.
    length: of its rows, as the task counts it, for curves by length; None where that means nothing.
    series: the curve to which the length belongs; '' is the main one.
    during: whether it also runs every `eval_every` steps, and not at the end of a run alone.
    model: `(rngs) -> model`, another structure for the same parameters, such as one whose layers
      have a window; None is the model that was trained.
    start: `(rows) -> state` before the first batch, where a model remembers.
  """

  name: str
  batches: Callable[[], Iterable[Batch]]
  predict: Callable[[Any, Batch, Any, PRNGKey], tuple[Any, Any]]
  metrics: Mapping[str, Metric]
  counted: Callable[[Arrays, Batch], int]
  role: Role = 'trained'
  length: int | None = None
  series: str = ''
  during: bool = False
  model: Callable[[nnx.Rngs], nnx.Module] | None = None
  start: Callable[[int], Any] | None = None


class Unit(NamedTuple):
  """How a training loss is shown: `factor * loss`, with a name such as 'bits per byte'."""

  name: str
  factor: float = 1.0


class Answer(NamedTuple):
  """The answer of a trained model to one text.

  Attributes:
    plain: for a file or a pipe.
    styled: for a terminal; None shows `plain` there, too.
    pictures: by name, functions that draw on a `matplotlib.figure.Figure`, or on a part of one.
  """

  plain: str
  styled: 'Text | None' = None
  pictures: Mapping[str, Callable[[Any], None]] = MappingProxyType({})


class Example(NamedTuple):
  """A text that a run asks at its end, and the right answer, where there is one."""

  text: str
  correct: str | None = None


class Ask(NamedTuple):
  """How a trained model is asked, and examples of what.

  Attributes:
    answer: `(model, texts, key) -> answers`, one for each text, all texts in one batch. It raises
      ValueError for a text that it cannot read.
    examples: what a run asks at its end.
    empty: whether an empty text has an answer, as the translation of an empty line.
  """

  answer: Callable[[Any, Sequence[str], PRNGKey], list[Answer]]
  examples: tuple[Example, ...]
  empty: bool = False


class Memory(NamedTuple):
  """The state that goes from one training batch to the next; checkpoints hold it, too.

  Attributes:
    start: `() -> state` before the first training batch, of all hosts together.
    furthest: `(batch) ->` the same batch at the largest positions that training will reach: a run
      checks before its first step that the model takes them.
  """

  start: Callable[[], Any]
  furthest: Callable[[Batch], Batch]


class Task(NamedTuple):
  """One experiment.

  Attributes:
    facts: what a run reports about its data, by name. One called 'sha256' tells data apart: a run
      does not go on, and a comparison does not average, where it changed. It is the same for every
      seed.
    model: `(rngs) -> model`.
    train_batches: `(shard_index, shard_count) -> grain.IterDataset` of batches. Where a batch has
      an entry 'tokens' [B], a run's tokens per second are counted by it (see `count_tokens`).
    loss: `(model, batch, state, ids_key, train_key) -> (number, state)`: the number that training
      minimizes, and what the model remembers after the batch. `ids_key` is the random key of place
      0, `train_key` that of dropout, None where nothing is dropped.
    unit: how the loss is shown.
    evaluations: the first one is the headline of reports and comparisons.
    ask: what a trained model can be asked; None where it cannot be.
    vocabulary: what the tokens are, as JSON, where the task learned that from its data: the work
      folder keeps it, and a run that goes on there passes it as the argument `vocabulary`.
    memory: what the model remembers between training batches; None where it remembers nothing, and
      `state` is then None everywhere.
    weight: `(batch) -> number`, in JAX: how many tokens or rows `loss` is a mean over, so that the
      loss of a batch is the weighted mean of those of its parts. None where it is no such mean:
      gradients cannot be accumulated then.
    any_order: whether `loss` is the same where the tokens of all rows stand in another order, so
      that training may lay them out over devices in the way that is fastest. The arrays of a batch
      are [B, T] then.
    weights: `(folder) -> (leaves, may_be_new)`, as `posjax.models.filling.assemble` has them:
      the weights of a checkpoint of another library, where `config.start_from` may name one.
  """

  facts: Mapping[str, str]
  model: Callable[[nnx.Rngs], nnx.Module]
  train_batches: Callable[[int, int], Any]
  loss: Callable[[Any, Batch, Any, PRNGKey | None, PRNGKey | None], tuple[Any, Any]]
  unit: Unit
  evaluations: tuple[Evaluation, ...]
  ask: Ask | None = None
  vocabulary: Mapping[str, Any] | None = None
  memory: Memory | None = None
  weight: Callable[[Batch], Any] | None = None
  any_order: bool = False
  weights: Callable[[Path], tuple[Mapping[Any, Any], Callable[[Any], bool]]] | None = None


def count_tokens(batch: Batch) -> int:
  """How many tokens a batch holds, for speeds.

  Args:
    batch: with an entry 'tokens', whole numbers [B], where its arrays have several shapes and only
      their task can say. Without it, the tokens are as many as the largest array has numbers.
  """
  if TOKENS in batch:
    return int(np.sum(batch[TOKENS]))
  return max(int(np.size(array)) for array in batch.values())


def names() -> tuple[str, ...]:
  """The tasks that there are: the folders of `posjax.experiment.tasks`, sorted."""
  return tuple(sorted(module.name for module in pkgutil.iter_modules(tasks.__path__)))


def get_task(name: str) -> Callable[..., Task]:
  """The constructor of a task.

  Args:
    name: a folder of `posjax.experiment.tasks`; or the path of any module with a function `task`,
      such as 'my_project.tasks.parsing'.

  Raises:
    ValueError: if there is none of that name, or its module may not be imported, as the name comes
      from the config of a work folder.
  """
  if '.' in name:
    return _imported(name)
  if name not in names():
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else '.'
    raise ValueError(
      f"Unknown task '{name}'{hint} There are: {', '.join(names())}; a task of your own is named "
      "by the path of its module, as 'my_project.tasks.parsing'."
    )
  return importlib.import_module(f'{tasks.__name__}.{name}.task').task


def _imported(path: str) -> Callable[..., Task]:
  check_import(f"task '{path}'", path)
  try:
    module = importlib.import_module(path)
  except ModuleNotFoundError as error:
    if error.name is None or not f'{path}.'.startswith(f'{error.name}.'):
      raise  # the module is there, and what it imports is not
    raise ValueError(
      f"The task '{path}' should be a module that Python finds, but there is no '{error.name}'."
    ) from None
  except SystemExit as error:
    raise ValueError(
      f"The module '{path}' of the task could not be imported: it ended with SystemExit: {error}."
    ) from error
  if not callable(getattr(module, 'task', None)):
    raise ValueError(f"The module '{path}' should have a function `task`, but it has none.")
  return module.task
