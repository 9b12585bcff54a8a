"""Batches of algorithmic questions, framed for a decoder or for an encoder.

The algorithms are in `algorithms`, `context_free` and `context_sensitive`, their names in
`catalogue`, the two frames in `framing`: `<bos> prompt <sep> answer <eos>` for a decoder, `prompt`
and empty places for an encoder. In a batch the four marks take the first token ids, and symbol `s`
of the algorithm's alphabet is token `s + 4`: `vocabulary(name)` names them all.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from posjax.experiment.tasks.algorithmic.catalogue import get, names
from posjax.experiment.tasks.algorithmic.framing import (
  BOS,
  DECODER,
  EOS,
  MARKS,
  PAD,
  SEP,
  Form,
  Row,
)

if TYPE_CHECKING:
  import grain

# Of what the algorithms generate: it goes up whenever the same arguments give other questions.
VERSION = 1

__all__ = ['BOS', 'EOS', 'MARKS', 'PAD', 'SEP', 'batched', 'examples', 'get', 'names']
__all__ += ['required_width', 'vocabulary']


def vocabulary(name: str) -> tuple[str, ...]:
  """The name of each token in the batches of an algorithm.

  Args:
    name: one of `names()`.

  Returns:
    The four marks, then the alphabet; as many as a model's vocabulary needs.
  """
  return MARKS + get(name).alphabet


def required_width(name: str, length: int, form: Form = DECODER) -> int:
  """The tokens of the longest framed question.

  Args:
    name: one of `names()`.
    length: as the algorithm counts it.
    form: how questions are framed.

  Returns:
    The smallest `width` that fits every question of this length.
  """
  algorithm = get(name)
  sizes = algorithm.prompt_symbols(length), algorithm.answer_symbols(length)
  return form.width(*sizes, algorithm.varies)


def examples(
  name: str,
  *,
  lengths: Sequence[int],
  batch_size: int,
  seed: int,
  width: int,
  form: Form = DECODER,
  shard_index: int = 0,
  shard_count: int = 1,
) -> 'grain.IterDataset':
  """Endless batches of questions with their answers.

  Row i is made from `(seed, i)` alone: its length, drawn uniformly from `lengths`, and its symbols.
  So shards are disjoint, and together they are the rows of a single one.

  Args:
    name: one of `names()`.
    lengths: lengths to draw from, as the algorithm counts them, none below its `shortest`; one that
      is given twice is twice as likely.
    batch_size: B, rows per batch of this shard, 1 or more.
    seed: 0 or more.
    width: W, tokens per row, at least `required_width` of the longest; the rest is padding.
    form: how questions are framed: `framing.DECODER` or `framing.ENCODER`.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of shards, usually `jax.process_count()`.

  Returns:
    An iterable of dictionaries: the arrays of `framing`, [B, W], and `lengths`, int32 [B].
    `weights` are 1 where the target belongs to the answer or is its `<eos>`, and 0 elsewhere.
    `get_state` and `set_state` of its iterator save and restore the place exactly.

  Raises:
    ValueError: the name is unknown, a number is out of its range, or a question may not fit.
  """
  algorithm = get(name)
  lengths = tuple(lengths)
  _check(name, lengths, width, form)
  _check_least('seed', seed, 0)
  # What the algorithm itself refuses should fail here, not at some later batch.
  for length in {min(lengths), max(lengths)}:
    algorithm.generate(np.random.default_rng(seed), length)

  def row(rng: np.random.Generator) -> Row:
    length = lengths[rng.integers(len(lengths))]
    places = algorithm.answer_symbols(length) + algorithm.varies
    framed = form.row(*algorithm.generate(rng, length), places, width)
    return {**framed, 'lengths': np.array(length, np.int32)}

  return batched(row, batch_size, seed, shard_index, shard_count)


def batched(
  row: Callable[[np.random.Generator], Row],
  batch_size: int,
  seed: int,
  shard_index: int = 0,
  shard_count: int = 1,
) -> 'grain.IterDataset':
  """Endless batches of rows, row i made from `(seed, i)` alone; arguments as in `examples`."""
  import grain

  _check_least('batch_size', batch_size, 1)
  if not 0 <= shard_index < shard_count:
    raise ValueError(f'shard_index should be in [0, {shard_count}), but is {shard_index}.')
  rows = grain.MapDataset.range(sys.maxsize)[shard_index::shard_count].map(
    lambda index: row(np.random.default_rng((seed, index)))
  )
  # A row takes less time than handing it over between threads.
  in_turn = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  return rows.to_iter_dataset(in_turn).batch(batch_size, drop_remainder=True)


def _check(name: str, lengths: tuple[int, ...], width: int, form: Form) -> None:
  shortest = get(name).shortest
  if not lengths or min(lengths) < shortest:
    raise ValueError(
      f'lengths of {name} should be one or more numbers from {shortest}, but is {lengths}.'
    )
  needed = required_width(name, max(lengths), form)
  if width < needed:
    raise ValueError(
      f'{name} of length {max(lengths)} needs rows of {needed} tokens, but width is {width}.'
    )


def _check_least(name: str, number: int, least: int) -> None:
  if number < least:
    raise ValueError(f'{name} should be at least {least}, but is {number}.')
