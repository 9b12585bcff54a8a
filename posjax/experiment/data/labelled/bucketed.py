"""Batches of texts of unequal length, padded to few widths, so that few programs are compiled."""

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
  import grain

Batch = Mapping[str, np.ndarray]


class Text(NamedTuple):
  """Numbers of its words [T], and of its label."""

  tokens: np.ndarray
  label: int


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
  """Widths of rows, in words.

  Raises:
    ValueError: if there are none, or they do not rise from at least 1.
  """
  if not widths or widths[0] < 1 or any(np.diff(widths) < 1):
    raise ValueError(f'widths must rise, from at least 1, but got {tuple(widths)}.')
  return tuple(widths)


def batches(
  texts: Sequence[Text],
  *,
  widths: Sequence[int],
  batch_size: int,
  seed: int,
  shard_index: int = 0,
  shard_count: int = 1,
) -> 'grain.IterDataset':
  """Batches for training, for ever: each is a function of the seed and its number alone.

  In each epoch the texts are shuffled and those of about equal length put together. Where the
  widest ones fill no whole number of batches, others join them, and so on down; of the narrowest,
  fewer than `batch_size` are left out of an epoch, others each time. Batches of all widths are then
  shuffled. Every shard has rows of the same width at the same time.

  Args:
    texts: each with a word at least, and no longer than the last width.
    widths: of rows, rising.
    batch_size: rows per batch, all shards together; shard_count divides it.
    seed: 0 or more.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of disjoint shards.

  Returns:
    Batches as of `batch`, `batch_size / shard_count` rows each.

  Raises:
    ValueError: if there are fewer texts than rows in a batch, or a number is out of range.
  """
  import grain

  widths = check_widths(widths)
  if batch_size < 1 or len(texts) < batch_size:
    raise ValueError(
      f'A batch of {batch_size} needs at least one row, and as many texts, but got {len(texts)}.'
    )
  if not 0 <= shard_index < shard_count or batch_size % shard_count:
    raise ValueError(
      f'Shards must divide {batch_size} rows, but got shard {shard_index} of {shard_count}.'
    )
  bucket = np.searchsorted(widths, [len(text.tokens) for text in texts])
  each = len(texts) // batch_size
  plan = functools.lru_cache(maxsize=2)(
    lambda epoch: _epoch(np.random.default_rng((seed, epoch)), bucket, batch_size)
  )

  def one(index):
    rows, at = plan(index // each)[index % each]
    return batch([texts[row] for row in rows[shard_index::shard_count]], widths[at])

  in_turn = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  return grain.MapDataset.range(sys.maxsize).map(one).to_iter_dataset(in_turn)


def in_order(texts: Sequence[Text], *, widths: Sequence[int], batch_size: int) -> list[Batch]:
  """Batches for evaluation: every text once, the shortest first; rows of zeros fill the last ones.

  Args:
    texts: as of `batches`.
    widths: of rows, rising.
    batch_size: rows per batch.
  """
  widths = check_widths(widths)
  made = []
  for at, width in enumerate(widths):
    least = widths[at - 1] if at else 0
    these = [text for text in texts if least < len(text.tokens) <= width]
    made += [
      batch(these[i : i + batch_size], width, batch_size) for i in range(0, len(these), batch_size)
    ]
  return made


def batch(texts: Sequence[Text], width: int, rows: int | None = None) -> Batch:
  """One batch of texts, each at the left of its row.

  Args:
    texts: no longer than the width.
    width: T.
    rows: B; the number of texts if None. Rows beyond it are 0 throughout.

  Returns:
    int32 arrays: `inputs`, `positions` (0, 1, ... in the text) and `segments` (1 in the text),
    [B, T], 0 in the padding; `labels` [B, 1]; and `weights`, float32 [B, 1], 1 for a text.
  """
  rows = len(texts) if rows is None else rows
  made: dict[str, Any] = {
    name: np.zeros((rows, width), np.int32) for name in ('inputs', 'positions', 'segments')
  }
  made['labels'], made['weights'] = np.zeros((rows, 1), np.int32), np.zeros((rows, 1), np.float32)
  for row, text in enumerate(texts):
    count = len(text.tokens)
    made['inputs'][row, :count] = text.tokens
    made['positions'][row, :count] = np.arange(count)
    made['segments'][row, :count] = 1
    made['labels'][row], made['weights'][row] = text.label, 1
  return made


def _epoch(
  rng: np.random.Generator, bucket: np.ndarray, batch_size: int
) -> list[tuple[np.ndarray, int]]:
  """The rows of each batch of an epoch, and the number of its width."""
  mixed = rng.permutation(len(bucket))
  waiting, made = [mixed[bucket[mixed] == at] for at in range(bucket.max() + 1)], []
  for at in reversed(range(len(waiting))):
    here, below = waiting[at], np.concatenate([*waiting[:at], mixed[:0]])
    # Narrower texts join, of the nearest width first, until the last batch is whole.
    joined = below[len(below) - min(-len(here) % batch_size, len(below)) :]
    taken = np.isin(mixed, joined)
    waiting = [rows[~np.isin(rows, mixed[taken])] for rows in waiting]
    here = rng.permutation(np.concatenate([here, joined]))
    whole = len(here) // batch_size * batch_size
    made += [(here[i : i + batch_size], at) for i in range(0, whole, batch_size)]
  return [made[i] for i in rng.permutation(len(made))]
