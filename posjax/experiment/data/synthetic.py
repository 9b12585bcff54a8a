"""Batches of algorithmic questions, framed for a decoder: `<bos> prompt <sep> answer <eos>`.

The algorithms themselves are in `algorithms`. In a batch the four marks take the first token ids,
and symbol `s` of the algorithm's alphabet is token `s + 4`: `vocabulary(name)` names them all.
"""

import difflib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posjax.experiment.data import algorithms

if TYPE_CHECKING:
  import grain

MARKS = ('<pad>', '<bos>', '<sep>', '<eos>')
PAD, BOS, SEP, EOS = range(len(MARKS))


class Algorithm(NamedTuple):
  """An algorithm, and what is needed to frame and print its questions.

  Attributes:
    generate: `(rng, length) -> (prompt, answer)`, lists of symbols.
    alphabet: the name of each symbol, for printing.
    most_symbols: `length ->` the largest number of symbols in prompt and answer together.
  """

  generate: Callable[[np.random.Generator, int], tuple[list[int], list[int]]]
  alphabet: tuple[str, ...]
  most_symbols: Callable[[int], int]


_ALGORITHMS = {
  'addition': Algorithm(
    algorithms.addition, (*algorithms.DIGITS, '+'), lambda length: 3 * length + 2
  ),
  'associative_recall': Algorithm(
    algorithms.associative_recall,
    (*algorithms.KEYS, *algorithms.VALUES),
    lambda length: 2 * length + 2,
  ),
  'copy': Algorithm(algorithms.copy, algorithms.LETTERS, lambda length: 2 * length),
  'dyck': Algorithm(algorithms.dyck, algorithms.BRACKETS, lambda length: 2 * length),
  'parity': Algorithm(algorithms.parity, algorithms.DIGITS[:2], lambda length: length + 1),
  'reverse': Algorithm(algorithms.reverse, algorithms.LETTERS, lambda length: 2 * length),
  'sort': Algorithm(algorithms.sort, algorithms.LETTERS, lambda length: 2 * length),
}


def names() -> tuple[str, ...]:
  """The names of all algorithms.

  Returns:
    Sorted names.
  """
  return tuple(sorted(_ALGORITHMS))


def get(name: str) -> Algorithm:
  """The algorithm of this name.

  Args:
    name: one of `names()`.

  Returns:
    An `Algorithm`.

  Raises:
    ValueError: there is none of this name.
  """
  if name not in _ALGORITHMS:
    close = difflib.get_close_matches(name, _ALGORITHMS, n=1)
    hint = f' did you mean {close[0]!r}?' if close else ''
    raise ValueError(f'Unknown algorithm {name!r};{hint} There are: {", ".join(names())}.')
  return _ALGORITHMS[name]


def vocabulary(name: str) -> tuple[str, ...]:
  """The name of each token in the batches of an algorithm.

  Args:
    name: one of `names()`.

  Returns:
    The four marks, then the alphabet; as many as a model's vocabulary needs.
  """
  return MARKS + get(name).alphabet


def required_width(name: str, length: int) -> int:
  """The tokens of the longest framed question, its last target aside.

  Args:
    name: one of `names()`.
    length: as the algorithm counts it, 1 or more.

  Returns:
    The smallest `width` that fits every question of this length.
  """
  # <bos> prompt <sep> answer are inputs; <eos> is a target only.
  return get(name).most_symbols(length) + 2


def examples(
  name: str,
  *,
  lengths: Sequence[int],
  batch_size: int,
  seed: int,
  width: int,
  shard_index: int = 0,
  shard_count: int = 1,
) -> 'grain.IterDataset':
  """Endless batches of questions with their answers.

  Row i is made from `(seed, i)` alone: its length, drawn uniformly from `lengths`, and its symbols.
  So shards are disjoint, and together they are the rows of a single one.

  Args:
    name: one of `names()`.
    lengths: lengths to draw from, each 1 or more, as the algorithm counts them; one that is given
      twice is twice as likely.
    batch_size: B, rows per batch of this shard, 1 or more.
    seed: 0 or more.
    width: W, tokens per row, at least `required_width` of the longest; the rest is padding.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of shards, usually `jax.process_count()`.

  Returns:
    An iterable of dictionaries: `inputs`, `targets` (the token after each input),
    `segments` (1, or 0 for padding) and `positions` (0, 1, ..., or 0 for padding), int32 [B, W];
    `weights`, float32 [B, W], 1 where the target belongs to the answer or is its `<eos>` and 0
    elsewhere; `lengths`, int32 [B]. `get_state` and `set_state` of its iterator save and restore
    the place exactly.

  Raises:
    ValueError: the name is unknown, a number is out of its range, or a question may not fit.
  """
  import grain

  algorithm = get(name)
  lengths = tuple(lengths)
  _check_least('batch_size', batch_size, 1)
  _check_least('seed', seed, 0)
  _check(name, lengths, width, shard_index, shard_count)
  # What the algorithm itself refuses should fail here, not at some later batch.
  algorithm.generate(np.random.default_rng(seed), max(lengths))

  def row(index: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((seed, index))
    length = lengths[rng.integers(len(lengths))]
    return _framed(*algorithm.generate(rng, length), length=length, width=width)

  rows = grain.MapDataset.range(sys.maxsize)[shard_index::shard_count].map(row)
  # A row takes less time than handing it over between threads.
  in_turn = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  return rows.to_iter_dataset(in_turn).batch(batch_size, drop_remainder=True)


def _framed(
  prompt: list[int], answer: list[int], *, length: int, width: int
) -> dict[str, np.ndarray]:
  symbols = len(MARKS) + np.array([*prompt, *answer], np.int32)
  question, reply = np.split(symbols, [len(prompt)])
  tokens = np.concatenate([[BOS], question, [SEP], reply, [EOS]]).astype(np.int32)
  used = np.arange(width) < len(tokens) - 1
  padded = np.pad(tokens, (0, width + 1 - len(tokens)), constant_values=PAD)
  return {
    'inputs': np.where(used, padded[:-1], PAD).astype(np.int32),
    'targets': padded[1:],
    # The target at <sep>, which is input number len(prompt) + 1, is the first of the answer.
    'weights': (used & (np.arange(width) > len(prompt))).astype(np.float32),
    'segments': used.astype(np.int32),
    'positions': np.where(used, np.arange(width), 0).astype(np.int32),
    'lengths': np.array(length, np.int32),
  }


def _check(
  name: str, lengths: tuple[int, ...], width: int, shard_index: int, shard_count: int
) -> None:
  if not lengths or min(lengths) < 1:
    raise ValueError(f'lengths should be one or more numbers from 1, but is {lengths}.')
  if not 0 <= shard_index < shard_count:
    raise ValueError(f'shard_index should be in [0, {shard_count}), but is {shard_index}.')
  needed = required_width(name, max(lengths))
  if width < needed:
    raise ValueError(
      f'{name} of length {max(lengths)} needs rows of {needed} tokens, but width is {width}.'
    )


def _check_least(name: str, number: int, least: int) -> None:
  if number < least:
    raise ValueError(f'{name} should be at least {least}, but is {number}.')
