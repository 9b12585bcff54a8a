"""The rows that processes read: together they are the batch, however many processes there are."""

import grain
import jax
import numpy as np
import pytest

from posjax.experiment import sharding, shards
from posjax.experiment.shards import Rows

SIZE = 12


def make(shard, count):
  """Batches of a shard, whose rows say the batch and the row; and the shards that are read."""
  each = SIZE // count
  rows = np.arange(shard * each, (shard + 1) * each)
  made = grain.MapDataset.range(50).map(
    lambda step: {'row': rows + 100 * step, 'words': np.repeat(rows[:, None], 2, 1)}
  )
  return made.to_iter_dataset()


def readers(monkeypatch, owners, count):
  """The iterator of each process, where the parts of the rows belong to these processes."""
  found = []
  monkeypatch.setattr(shards, 'row_parts', lambda mesh: owners)
  for process in range(max(map(max, owners)) + 1):
    monkeypatch.setattr(jax, 'process_index', lambda at=process: at)
    found.append(Rows(make, sharding.make_mesh(), count))
  return found


def together(owners, batches):
  """The whole batch, of which each process gave its parts."""
  share = SIZE // len(owners)
  whole = np.full(SIZE, -1)
  for process, batch in enumerate(batches):
    mine = [part for part, each in enumerate(owners) if process in each]
    for at, part in enumerate(mine):
      whole[part * share : (part + 1) * share] = batch['row'][at * share : (at + 1) * share]
    np.testing.assert_array_equal(batch['words'][:, 1], batch['row'] % 100)
  return whole


LAYOUTS = {
  'one process': [[0]],
  'two': [[0], [1]],
  'three parts each of two': [[0], [0], [0], [1], [1], [1]],
  'four': [[0], [1], [2], [3]],
  'three, not in a row': [[0], [1], [2], [0], [1], [2]],
  'tensors over two processes': [[0, 1]],
  'two parts over four': [[0, 1], [2, 3]],
}


@pytest.mark.parametrize('name', LAYOUTS)
def test_processes_read_the_whole_batch_together_and_go_on_from_the_places_of_others(
  name, monkeypatch
):
  owners = LAYOUTS[name]
  for count in (1, 3, 4):
    began = readers(monkeypatch, [[0], [1], [2]] if count == 3 else [[0]], count)
    states = {}
    for process, rows in enumerate(began):
      monkeypatch.setattr(jax, 'process_index', lambda at=process: at)
      next(rows), next(rows)
      saved = rows.states()
      assert not states.keys() & saved.keys()  # one process saves each place
      states |= saved
    assert sorted(states) == list(range(count))
    now = readers(monkeypatch, owners, None if name == 'one process' else 2)
    for rows in now:
      rows.set_states(states)
    for step in (2, 3):
      whole = together(owners, [next(rows) for rows in now])
      np.testing.assert_array_equal(whole, np.arange(SIZE) + 100 * step)


def test_a_process_reads_only_what_it_has_rows_of(monkeypatch):
  read = [sorted(rows.shards) for rows in readers(monkeypatch, LAYOUTS['four'], 4)]
  assert read == [[0], [1], [2], [3]]
  read = [sorted(rows.shards) for rows in readers(monkeypatch, LAYOUTS['two'], 3)]
  assert read == [[0, 1], [1, 2]]
  assert [rows.share() for rows in readers(monkeypatch, [[0], [0], [1]], 3)] == [2 / 3, 1 / 3]


def test_there_are_as_many_shards_as_processes_with_rows_of_their_own(monkeypatch):
  found = {name: readers(monkeypatch, owners, None)[0].count for name, owners in LAYOUTS.items()}
  assert list(found.values()) == [1, 2, 2, 4, 3, 1, 2]
  assert readers(monkeypatch, [[0], [0], [1]], None)[0].count == 1  # 12 rows are 8 and 4


def test_rows_that_do_not_divide_over_the_devices_are_refused(monkeypatch):
  [rows] = readers(monkeypatch, [[0]] * 5, 1)
  with pytest.raises(ValueError, match=r'divide over the 5 devices .* but got 12'):
    next(rows)
