"""Batches of rows that are padded to few widths, so that few programs are compiled."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
  import grain

Batch = Mapping[str, np.ndarray]


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
  """Widths of rows, in tokens.

  Raises:
    ValueError: if there are none, or they do not rise from at least 1.
  """
  if not widths or widths[0] < 1 or any(np.diff(widths) < 1):
    raise ValueError(f'widths must rise, from at least 1, but got {tuple(widths)}.')
  return tuple(widths)


def width_of(length: int, widths: Sequence[int]) -> int:
  """The narrowest row that holds a length: of these widths, or the last one times a power of two.

  Example:
    >>> [width_of(length, (8, 24)) for length in (5, 9, 25, 100)]
    [8, 24, 48, 192]
  """
  fitting = [width for width in widths if width >= length]
  return fitting[0] if fitting else widths[-1] << (-(-length // widths[-1]) - 1).bit_length()


def batches(
  lengths: Sequence[int] | np.ndarray,
  make: Callable[[np.ndarray, int], Batch],
  *,
  widths: Sequence[int],
  rows: Sequence[int],
  seed: int,
  shard_index: int = 0,
  shard_count: int = 1,
  leave_out_longer: bool = False,
  names: tuple[str, str] = ('texts', 'tokens'),
) -> 'grain.IterDataset':
  """Batches for training, for ever: each is a function of the seed and its number alone.

  In each epoch the texts are shuffled and those of about equal length put together. Where the
  widest ones fill no whole number of batches, others join them, and so on down. What is left of
  the narrowest then fills batches of wider rows, which have fewer of them; texts that fill none of
  these, fewer than the widest batch has rows, are left out of the epoch, others each time. Batches
  of all widths are then shuffled. Every shard has rows of the same width at the same time.

  Args:
    lengths: of each text, none longer than the last width unless these are left out.
    make: `(indices of texts [B], width) -> batch`.
    widths: of rows, rising.
    rows: in a batch of each width, all shards together, not rising; shard_count divides them.
    seed: 0 or more.
    shard_index: this shard, in [0, shard_count).
    shard_count: number of disjoint shards.
    leave_out_longer: whether texts that are longer than the last width are left out. Else they are
      refused.
    names: of the texts, and of what their lengths count, for errors.

  Returns:
    Batches as `make` makes them.

  Raises:
    ValueError: if fewer texts fit than the smallest batch has rows, a text is longer than the last
      width though none should be, or a number is out of range.
  """
  import grain

  widths, smallest = check_widths(widths), rows[-1]
  lengths = np.asarray(lengths, int)
  (fitting,) = np.nonzero(lengths <= widths[-1])
  if smallest < 1:
    raise ValueError(f'A batch of {smallest} needs at least one row.')
  if len(fitting) < len(lengths) and not leave_out_longer:
    raise ValueError(f'Rows of {widths[-1]} cannot hold a text of {lengths.max()}.')
  if len(fitting) < smallest:
    raise ValueError(
      f'A batch of {smallest} needs as many {names[0]} of at most {widths[-1]} {names[1]}, but '
      f'{len(fitting)} of {len(lengths)} are.'
    )
  if not 0 <= shard_index < shard_count or any(each % shard_count for each in rows):
    raise ValueError(
      f'Shards must divide {smallest} rows, but got shard {shard_index} of {shard_count}.'
    )
  bucket = np.searchsorted(widths, lengths[fitting])
  plan = functools.lru_cache(maxsize=2)(
    lambda epoch: epoch_plan(np.random.default_rng((seed, epoch)), bucket, rows)
  )
  each = len(plan(0))  # of every epoch: it depends on how many texts each width has, and on no draw

  def one(index):
    indices, at = plan(index // each)[index % each]
    return make(fitting[indices[shard_index::shard_count]], widths[at])

  in_turn = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  return grain.MapDataset.range(sys.maxsize).map(one).to_iter_dataset(in_turn)


def in_order(
  lengths: Sequence[int],
  make: Callable[[Sequence[int], int], Batch],
  *,
  widths: Sequence[int],
  rows: Callable[[int], int],
) -> list[Batch]:
  """Batches for evaluation: every text once and whole, the narrowest rows first.

  A text that is longer than the last width has a row as wide as `width_of` says.

  Args:
    lengths: of each text.
    make: `(indices of texts, width) -> batch`; it fills up a batch that has too few.
    widths: of rows, rising.
    rows: `(width) ->` how many texts a batch of that width holds, at most.
  """
  widths = check_widths(widths)
  by_width: dict[int, list[int]] = {}
  for index, length in enumerate(lengths):
    by_width.setdefault(width_of(length, widths), []).append(index)
  return [
    make(indices[at : at + rows(width)], width)
    for width, indices in sorted(by_width.items())
    for at in range(0, len(indices), rows(width))
  ]


def epoch_plan(
  rng: np.random.Generator, bucket: np.ndarray, rows: Sequence[int]
) -> list[tuple[np.ndarray, int]]:
  """The texts of each batch of an epoch, and the number of its width.

  Args:
    rng: of this epoch.
    bucket: for each text, the number of the narrowest width that holds it.
    rows: in a batch of each width, not rising.
  """
  mixed = rng.permutation(len(bucket))
  waiting, made = [mixed[bucket[mixed] == at] for at in range(bucket.max() + 1)], []
  for at in reversed(range(len(waiting))):
    here, below = waiting[at], np.concatenate([*waiting[:at], mixed[:0]])
    # Narrower texts join, of the nearest width first, until the last batch is whole.
    joined = below[len(below) - min(-len(here) % rows[at], len(below)) :]
    waiting = [texts[~np.isin(texts, joined)] for texts in waiting[:at]]
    left = rng.permutation(np.concatenate([here, joined]))
    # Only where no narrower text is left is there a rest, for which wider batches are small enough.
    for wider in range(at, len(rows)):
      whole = len(left) // rows[wider] * rows[wider]
      made += [(left[i : i + rows[wider]], wider) for i in range(0, whole, rows[wider])]
      left = left[whole:]
  return [made[i] for i in rng.permutation(len(made))]
