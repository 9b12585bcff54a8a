"""Training on streams with a memory, and evaluation with memories of other lengths.

A length of evaluation is what each token sees in a layer, itself included: the memory holds as many
tokens less one, the layers have a window of it (the authors' same_length), and the text is read in
segments. Every token counts once, the same ones at each length, after a context of the longest.

Reference: Dai et al. 2019, Transformer-XL, https://arxiv.org/abs/1901.02860, sections 3.2 and 4.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from posjax.experiment.task import Batch, Memory
from posjax.experiment.tasks.language_modelling.streams import (
  held_out_streams,
  steps_per_epoch,
  streams,
)
from posjax.scheme import Scheme

Make = Callable[..., Any]  # `(arguments, rngs, scheme=None) -> RecurrentTransformer`


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


class Streams(NamedTuple):
  """A text to train on, and one to be judged on, as token ids [N]."""

  train: np.ndarray
  held_out: np.ndarray


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


def start(make: Make, model: Mapping[str, Any], tokens: int, rows: int) -> Any:
  """The state of a model before its first batch, which remembers nothing yet.

  Args:
    make: `(arguments, rngs, scheme=) -> model`, whose scheme is the trained one where None.
    model: arguments to train with.
    tokens: that each layer will remember; 0 keeps one, which nothing sees.
    rows: of a batch, all hosts together.
  """
  made = nnx.eval_shape(lambda: make(model, nnx.Rngs(0)))
  return made.init_past(rows, max(tokens, 1))


def memory_of(
  make: Make, model: Mapping[str, Any], tokens: int, text: Streams, length: int, rows: int
) -> Memory:
  """`Task.memory` of streams.

  Args:
    make: as of `start`.
    model: arguments to train with.
    tokens: that each layer remembers in training.
    text: token ids.
    length: tokens of a training segment.
    rows: streams to train on, all hosts together.
  """
  last = steps_per_epoch(len(text.train), length, rows) * length - 1

  def furthest(batch: Batch) -> Batch:
    pos = batch['positions']
    return {**batch, 'positions': pos + (last - pos.max())}

  return Memory(functools.partial(start, make, model, tokens, rows), furthest)


def at_length(
  make: Make, model: Mapping[str, Any], settings: Settings, length: int
) -> dict[str, Any]:
  """The fields `model` and `start` of an evaluation in which a token sees `length` tokens."""
  arguments = {**model, 'window': length}
  return {
    'model': lambda rngs: make(arguments, rngs, settings.scheme),
    'start': functools.partial(start, make, model, length - 1),
  }


def train_segments(text: Streams, length: int, batch_size: int) -> Callable[[int, int], Any]:
  """`Task.train_batches` of streams."""

  def batches(shard_index, shard_count):
    shard = {'shard_index': shard_index, 'shard_count': shard_count}
    return streams(text.train, length=length, batch_size=batch_size // shard_count, **shard)

  return batches


def segments(
  text: Streams, segment: int, rows: int, longest: int, eval_tokens: int
) -> list[dict[str, np.ndarray]]:
  """Batches that count `eval_tokens` tokens, or a little fewer, after a context of the longest.

  Raises:
    ValueError: if that is not a segment for each row, or the text is too short.
  """
  scored = eval_tokens // (rows * segment) * segment
  if scored < 1:
    raise ValueError(
      f'eval_tokens must hold a segment of {segment} tokens for each of {rows} rows, but got '
      f'{eval_tokens}.'
    )
  return held_out_streams(text.held_out, length=segment, rows=rows, context=longest, scored=scored)
