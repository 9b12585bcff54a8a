"""Training on streams with a memory, and evaluation with memories of other lengths.

A length of evaluation is what each token sees in a layer, itself included: the memory holds as many
tokens less one, the layers have a window of it (the authors' same_length), and the text is read in
segments. Every token counts once, the same ones at each length, after a context of the longest.

Reference: Dai et al. 2019, Transformer-XL, https://arxiv.org/abs/1901.02860, sections 3.2 and 4.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flax import nnx

from posjax.experiment.task import Batch, Memory
from posjax.experiment.tasks.language_modelling.corpus import Corpus, named
from posjax.experiment.tasks.language_modelling.streams import (
  held_out_streams,
  join,
  steps_per_epoch,
  streams,
)
from posjax.scheme import Scheme

Make = Callable[..., Any]  # `(arguments, rngs, scheme=None) -> model`


class Settings(NamedTuple):
  """The keys of a config that are about a memory.

  Attributes:
    tokens: that each layer remembers in training; 0 is no memory.
    segment: tokens that evaluation reads at once; None is the training length.
    scheme: for evaluation, one with the parameters of the trained one, such as with a clamp on
      distances; None is the trained one.
  """

  tokens: int = 0
  segment: int | None = None
  scheme: Scheme | Sequence[Scheme] | None = None


class Rows(NamedTuple):
  """How a text is read: in packed rows, or in streams with a memory.

  Attributes:
    train_batches: of the task.
    counted: batches with all targets that count, of the longest evaluation.
    at_length: for each length, the fields of its `Evaluation` that depend on how a text is read.
    memory: of the task.
  """

  train_batches: Callable[[int, int], Any]
  counted: Sequence[Batch]
  at_length: Callable[[int], Mapping[str, Any]]
  memory: Memory | None = None


def streams_of(
  corpus: Corpus,
  settings: Settings,
  make: Make,
  model: Mapping[str, Any],
  *,
  length: int,
  batch_size: int,
  longest: int,
  eval_tokens: int,
) -> Rows:
  """A text as streams, read segment by segment by a model with a memory.

  Args:
    corpus: the text as token ids.
    settings: of the memory.
    make: makes a model, of the trained scheme where it gets none.
    model: arguments to train with.
    length: tokens of a training segment.
    batch_size: streams to train on, all hosts together.
    longest: tokens that a token sees in the longest evaluation.
    eval_tokens: that count, at most.

  Raises:
    ValueError: if that is not a segment for each row, or the text is too short.
  """
  gap = corpus.vocabulary.encode(corpus.vocabulary.separator)
  train, held_out = join(corpus.train, gap), join(corpus.held_out, gap)
  segment = settings.segment or length
  scored = eval_tokens // (batch_size * segment) * segment
  with named(corpus.text.name):
    if scored < 1:
      raise ValueError(
        f'eval_tokens must hold a segment of {segment} tokens for each of {batch_size} rows, but '
        f'got {eval_tokens}.'
      )
    sizes = {'length': segment, 'rows': batch_size, 'context': longest}
    counted = held_out_streams(held_out, **sizes, scored=scored)
    last = steps_per_epoch(len(train), length, batch_size) * length - 1

  def start(remembered: int, rows: int) -> Any:
    """The state before the first batch. A memory of no token keeps one, which nothing sees."""
    made = nnx.eval_shape(lambda: make(model, nnx.Rngs(0)))
    return made.init_past(rows, max(remembered, 1))

  def furthest(batch: Batch) -> Batch:
    pos = batch['positions']
    return {**batch, 'positions': pos + (last - pos.max())}

  def at_length(seen: int) -> dict[str, Any]:
    return {
      'batches': lambda: counted,
      'model': lambda rngs: make({**model, 'window': seen}, rngs, settings.scheme),
      'start': functools.partial(start, seen - 1),
    }

  def train_batches(shard_index: int, shard_count: int) -> Any:
    shard = {'shard_index': shard_index, 'shard_count': shard_count}
    return streams(train, length=length, batch_size=batch_size // shard_count, **shard)

  memory = Memory(functools.partial(start, settings.tokens, batch_size), furthest)
  return Rows(train_batches, counted, at_length, memory)


def check(
  memory: Settings, model: Mapping[str, Any], eval_window: bool, lengths: Sequence[int]
) -> None:
  """Raises ValueError if the memory is no number of tokens, or other keys contradict it."""
  if memory.tokens < 0:
    raise ValueError(f'task.memory must be 0 or more tokens, but got {memory.tokens}.')
  if not memory.tokens:
    if memory.segment is not None or memory.scheme is not None or lengths:
      raise ValueError(
        'eval_lengths, eval_segment and eval_scheme need a task.memory of 1 or more, but got 0.'
      )
    return
  if lengths and (min(lengths) < 1 or list(lengths) != sorted(set(lengths))):
    raise ValueError(f'eval_lengths must be positive and rise, but got {lengths}.')
  if memory.segment is not None and memory.segment < 1:
    raise ValueError(f'eval_segment must be at least 1 token, but got {memory.segment}.')
  if eval_window:
    raise ValueError('With a task.memory, every evaluation has a window, so eval_window is False.')
  if not isinstance(model.get('window'), int | None):
    raise ValueError(
      f'With a task.memory, model.window must be None or one number, but got {model["window"]}.'
    )
