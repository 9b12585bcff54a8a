"""The training rows that a process reads: those of its own devices, whatever their number.

The data are cut into shards, as many as there were processes with rows of their own when a run
began, and a batch holds the rows of all shards side by side. A process reads the shards that have
rows for its devices. So a run may go on with another number of processes, or on another mesh, with
the same batches.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from posjax.experiment.sharding import row_parts
from posjax.experiment.task import Batch


class Rows:
  """An endless iterator over the rows of each batch that this process has on its devices.

  Args:
    make: `(shard_index, shard_count) -> batches`, as `Task.train_batches`.
    mesh: over whose devices rows are cut.
    count: S, the number of shards; by default as many as there are groups of processes with rows
      of their own, or 1 where these have different numbers of them.
  """

  def __init__(self, make: Callable[[int, int], Any], mesh: Mesh, count: int | None = None):
    self.make = make
    owners = row_parts(mesh)
    self.parts = len(owners)
    self.mine = [part for part, each in enumerate(owners) if jax.process_index() in each]
    self.owners = [min(each) for each in owners]
    groups = len(set(map(tuple, owners)))
    self._cut(count or (groups if self.parts % groups == 0 else 1))

  def _cut(self, count: int) -> None:
    """Begins anew with another number of shards: part r of R and shard s of S share rows or not."""
    self.count = count
    mine = [
      shard
      for shard in range(count)
      if any(
        shard * self.parts < (part + 1) * count and part * count < (shard + 1) * self.parts
        for part in self.mine
      )
    ]
    self.shards = {shard: iter(self.make(shard, count)) for shard in mine}

  def __iter__(self) -> 'Rows':
    return self

  def __next__(self) -> Batch:
    batches = {shard: next(rows) for shard, rows in self.shards.items()}
    each = len(next(iter(next(iter(batches.values())).values())))
    size = each * self.count
    if size % self.parts:
      raise ValueError(
        f'The rows of every batch must divide over the {self.parts} devices of the mesh axes data '
        f'and fsdp, but got {size}.'
      )
    share = size // self.parts
    wanted = np.concatenate([np.arange(part * share, (part + 1) * share) for part in self.mine])
    first = np.array([list(self.shards).index(shard) for shard in wanted // each]) * each
    chosen = first + wanted % each
    together = {
      name: np.concatenate([batch[name] for batch in batches.values()])
      for name in next(iter(batches.values()))
    }
    if np.array_equal(chosen, np.arange(each * len(batches))):
      return together
    return {name: array[chosen] for name, array in together.items()}

  def share(self) -> float:
    """The share of each batch that this process reads, in (0, 1]."""
    return len(self.mine) / self.parts

  def states(self) -> dict[int, Any]:
    """The place in each shard that this process saves for all; another one saves the others."""
    saved = jax.process_index()
    return {
      shard: rows.get_state()
      for shard, rows in self.shards.items()
      if self.owners[shard * self.parts // self.count] == saved
    }

  def set_states(self, states: Mapping[int, Any]) -> None:
    """Goes on from the places in all shards, of which there may be another number than before."""
    self._cut(len(states))
    for shard, rows in self.shards.items():
      rows.set_state(states[shard])
