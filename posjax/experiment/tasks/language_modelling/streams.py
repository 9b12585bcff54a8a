"""A text as streams that are read in order, segment by segment: for models that remember.

The text is cut into as many contiguous streams as a batch has rows. Batch t holds the tokens
[t L, (t + 1) L) of each, so that a row goes on where the batch before it ended.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import grain


def join(documents: Sequence[np.ndarray], separator: np.ndarray) -> np.ndarray:
  """Token ids of all documents, with the separator's between them.

  Example:
    >>> join([np.array([1, 2]), np.array([3])], np.array([0]))
    array([1, 2, 0, 3])
  """
  parts = [part for document in documents for part in (separator, document)]
  return np.concatenate(parts[1:] or [np.zeros(0, np.int32)])


def steps_per_epoch(size: int, length: int, rows: int) -> int:
  """Batches that cut a text into streams; each input needs a target after it.

  Raises:
    ValueError: if the text is too short for one.
  """
  if length < 1 or rows < 1:
    raise ValueError(f'Streams need a length and rows of at least 1, but got {length} and {rows}.')
  steps = (size - 1) // (rows * length)
  if steps < 1:
    raise ValueError(
      f'{rows} streams in segments of {length} tokens need a text of at least '
      f'{rows * length + 1}, but it has {size}.'
    )
  return steps


def streams(
  tokens: np.ndarray,
  *,
  length: int,
  batch_size: int,
  shard_index: int = 0,
  shard_count: int = 1,
  repeat: bool = True,
) -> 'grain.IterDataset':
  """Batches for training, in the order of the text.

  Every input of an epoch is used once; fewer tokens than one batch holds are left at the text's
  end. An epoch begins every stream anew, as another document: what is remembered of the last one is
  not seen (the authors of Transformer-XL empty their memory there). Nothing is shuffled.

  Args:
    tokens: ids, [N].
    length: L, tokens of a segment.
    batch_size: streams of this shard.
    shard_index: this shard, in [0, shard_count), which has the streams from batch_size times it on.
    shard_count: number of shards.
    repeat: whether to go on for ever, or for one epoch.

  Returns:
    An iterable of dictionaries of int32 arrays [B, L]: `inputs`; `targets`, the token after each;
    `segments`, 1 in the first epoch, 2 in the next, ..; `positions`, which count up along each
    stream from 0. `get_state` and `set_state` of its iterator save and restore the place exactly.

  Raises:
    ValueError: if a number is out of range, or the text is too short.
  """
  import grain

  if not 0 <= shard_index < shard_count:
    raise ValueError(f'shard_index should be in [0, {shard_count}), but is {shard_index}.')
  steps = steps_per_epoch(len(tokens), length, batch_size * shard_count)
  first = (np.arange(batch_size) + shard_index * batch_size) * steps * length

  def batch(index):
    epoch, step = divmod(index, steps)
    made = segment(tokens, first, step * length, length)
    return {**made, 'segments': np.full_like(made['inputs'], epoch + 1)}

  count = (2**31 - 1) * steps if repeat else steps  # an epoch's number must be an int32
  in_turn = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  return grain.MapDataset.range(count).map(batch).to_iter_dataset(in_turn)


def held_out_streams(
  tokens: np.ndarray, *, length: int, rows: int, context: int, scored: int
) -> list[dict[str, np.ndarray]]:
  """Batches for evaluation: rows evenly spaced over the text, in segments of `length`.

  In each row the first tokens are context alone, at least as many as asked for; the next `scored`
  ones have weight 1, each once.

  Args:
    tokens: ids, [N].
    length: tokens of a segment; 1 slides token by token.
    rows: B.
    context: tokens before the first that counts, filled up to whole segments.
    scored: tokens that count in each row, a multiple of `length`.

  Returns:
    A list of dictionaries of int32 arrays [B, length], as of `streams`, with float32 `weights`.

  Raises:
    ValueError: if a number is out of range, or the text is too short.
  """
  if scored < 1 or scored % length or context < 0:
    raise ValueError(
      f'Of each row, a positive multiple of {length} tokens must count, after a context, but got '
      f'{scored} after {context}.'
    )
  before = -(-context // length) * length
  size = before + scored
  if len(tokens) < size + 1:
    raise ValueError(
      f'{scored} tokens after a context of {before} need a held-out text of at least {size + 1}, '
      f'but it has {len(tokens)}.'
    )
  first = np.linspace(0, len(tokens) - 1 - size, rows).astype(np.int64)
  batches = []
  for start in range(0, size, length):
    made = segment(tokens, first, start, length)
    weights = np.full(made['inputs'].shape, start >= before, np.float32)
    batches.append({**made, 'segments': np.ones_like(made['inputs']), 'weights': weights})
  return batches


def segment(
  tokens: np.ndarray, first: np.ndarray, start: int, length: int
) -> dict[str, np.ndarray]:
  """Tokens [start, start + length) of the streams that begin at `first`, and where they are."""
  positions = start + np.arange(length + 1)
  rows = tokens[first[:, None] + positions].astype(np.int32)
  places = np.broadcast_to(positions[:-1].astype(np.int32), (len(first), length))
  return {'inputs': rows[:, :-1], 'targets': rows[:, 1:], 'positions': places}
