"""Batches of rows that are padded to few widths, so that few programs are compiled."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

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


def longer(lengths: Sequence[int], width: int) -> int:
  """How many examples are longer than a row."""
  return sum(length > width for length in lengths)


class Examples(NamedTuple):
  """Examples of unequal length, and how they become batches.

  Attributes:
    lengths: of each example.
    make: `make(indices, width, rows)` makes the batch of the examples with these indices, none
      longer than the width, and fills it up to that many rows.
    rows: `rows(width, widths, batch_size)` is how many rows a batch has, all shards together, whose
      width is one of `widths` or, in evaluation, wider. It does not rise with the width. By default
      it is `batch_size`.
    leave_out_longer: whether examples that are longer than the last width are left out of training.
      Else they are refused.
    names: of the examples, and of what their lengths count, for errors.
  """

  lengths: Sequence[int]
  make: Callable[[Sequence[int] | np.ndarray, int, int], Batch]
  rows: Callable[[int, Sequence[int], int], int] = lambda width, widths, batch_size: batch_size
  leave_out_longer: bool = False
  names: tuple[str, str] = ('texts', 'tokens')

  def batches(
    self,
    *,
    widths: Sequence[int],
    batch_size: int,
    seed: int,
    shard_index: int = 0,
    shard_count: int = 1,
  ) -> 'grain.IterDataset':
    """Batches for training, without end: each is a function of the seed and its number alone.

    In each epoch the examples are shuffled and those of about equal length put together. Where the
    widest ones fill no whole number of batches, others join them, and so on down. What is left of
    the narrowest then fills batches of wider rows, which have fewer of them; examples that fill
    none of these, fewer than the widest batch has rows, are left out of the epoch, others each
    time. Batches of all widths are then shuffled. Every shard has rows of the same width at the
    same time.

    Args:
      widths: of rows, rising.
      batch_size: rows of the last width per batch, all shards together; shard_count divides the
        rows of every width.
      seed: 0 or more.
      shard_index: this shard, in [0, shard_count).
      shard_count: number of disjoint shards.

    Returns:
      Batches as `make` makes them.

    Raises:
      ValueError: if fewer examples fit than the smallest batch has rows, one is longer than the
        last width though none should be, or a number is out of range.
    """
    import grain

    widths = check_widths(widths)
    rows = [self.rows(width, widths, batch_size) for width in widths]
    lengths = np.asarray(self.lengths, int)
    (fitting,) = np.nonzero(lengths <= widths[-1])
    if rows[-1] < 1:
      raise ValueError(f'A batch of {rows[-1]} needs at least one row.')
    if len(fitting) < len(lengths) and not self.leave_out_longer:
      examples, unit = self.names
      raise ValueError(
        f'Rows of {widths[-1]} {unit} cannot hold all {examples}: the longest has {lengths.max()}.'
      )
    if len(fitting) < rows[-1]:
      raise ValueError(
        f'A batch of {rows[-1]} needs as many {self.names[0]} of at most {widths[-1]} '
        f'{self.names[1]}, but {len(fitting)} of {len(lengths)} are.'
      )
    if not 0 <= shard_index < shard_count or any(each % shard_count for each in rows):
      raise ValueError(
        f'Shards must divide {rows[-1]} rows, but got shard {shard_index} of {shard_count}.'
      )
    bucket = np.searchsorted(widths, lengths[fitting])
    plan = functools.lru_cache(maxsize=2)(
      lambda epoch: epoch_plan(np.random.default_rng((seed, epoch)), bucket, rows)
    )
    each = len(plan(0))  # of every epoch: it depends on how many each width has, and on no draw

    def one(index):
      indices, at = plan(index // each)[index % each]
      here = fitting[indices[shard_index::shard_count]]
      return self.make(here, widths[at], len(here))

    in_turn = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return grain.MapDataset.range(sys.maxsize).map(one).to_iter_dataset(in_turn)

  def in_order(self, *, widths: Sequence[int], batch_size: int) -> list[Batch]:
    """Batches for evaluation: every example once and whole, the narrowest rows first.

    An example that is longer than the last width has a row as wide as `width_of` says. `make` fills
    up the last batch of each width.

    Args:
      widths: of rows, rising.
      batch_size: rows of the last width per batch.
    """
    widths = check_widths(widths)
    by_width: dict[int, list[int]] = {}
    for index, length in enumerate(self.lengths):
      by_width.setdefault(width_of(length, widths), []).append(index)
    made = []
    for width, indices in sorted(by_width.items()):
      rows = self.rows(width, widths, batch_size)
      starts = range(0, len(indices), rows)
      made += [self.make(indices[at : at + rows], width, rows) for at in starts]
    return made


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
