"""Batches of pairs: what is in them, which widths they have, and who gets which rows."""

import collections
import itertools

import numpy as np
import pytest

from posjax.experiment.data.buckets import longer, width_of
from posjax.experiment.tasks.translation import batches
from posjax.experiment.tasks.translation.vocabulary import Coded

WIDTHS = (4, 8, 16)
LENGTHS = [(16, 3), *[(1, 2), (3, 0), (2, 3)] * 21, *[(5, 2), (7, 7)] * 9, *[(15, 1)] * 3]
EMPTY = np.zeros(0, np.int32)


def pairs(lengths=LENGTHS):
  """Each of ids that are its number, the target of its negative, so that rows can be told."""
  return [
    Coded(np.full(read, 10 + i, np.int32), np.full(said, -10 - i, np.int32))
    for i, (read, said) in enumerate(lengths)
  ]


def stream(many=None, **changes):
  many = pairs() if many is None else many
  settings = {'widths': WIDTHS, 'batch_size': 2, 'seed': 5, **changes}
  return iter(batches.examples(many).batches(**settings))


def taken(count, many=None, **changes):
  return list(itertools.islice(stream(many, **changes), count))


def epoch_of(many):
  """Batches in an epoch: they are taken until pairs come again."""
  seen, made = set(), []
  for batch in stream(many):
    if seen & set(batch['row'].tolist()):
      return made
    seen |= set(batch['row'].tolist())
    made.append(batch)
  raise AssertionError


def test_a_batch_is_its_pairs_with_their_marks():
  made = batches.batch([Coded(np.int32([7, 8]), np.int32([9])), Coded(EMPTY, EMPTY)], 4, rows=3)
  expected = {
    'source': [[7, 8, 2, 0], [2, 0, 0, 0], [0] * 4],
    'source_segments': [[1, 1, 1, 0], [1, 0, 0, 0], [0] * 4],
    'inputs': [[1, 9, 0, 0], [1, 0, 0, 0], [0] * 4],
    'targets': [[9, 2, 0, 0], [2, 0, 0, 0], [0] * 4],
    'segments': [[1, 1, 0, 0], [1, 0, 0, 0], [0] * 4],
    'row': [0, 1, -1],
    'tokens': [5, 2, 0],
  }
  assert set(made) == set(expected)
  for name, value in expected.items():
    np.testing.assert_array_equal(made[name], value)
    assert made[name].dtype == np.int32
  assert batches.batch([], 4, rows=2)['row'].tolist() == [-1, -1]


def test_every_row_is_the_pair_that_it_names_in_the_narrowest_width_or_one_that_was_filled_up():
  many = pairs()
  for batch in taken(60, many):
    rows, width = batch['source'].shape
    assert rows == {4: 8, 8: 4, 16: 2}[width]
    assert not (batch['row'] < 0).any()  # training fills no row with nothing
    alone = batches.batch([many[row] for row in batch['row']], width, indices=batch['row'])
    for name, value in alone.items():
      np.testing.assert_array_equal(batch[name], value)


def test_an_epoch_has_every_pair_once_but_those_that_are_too_long_and_fewer_than_a_batch():
  many = pairs()
  assert longer(batches.lengths(many), WIDTHS[-1]) == 1
  made = epoch_of(many)
  rows = collections.Counter(row for batch in made for row in batch['row'].tolist())
  assert set(rows.values()) == {1}
  assert 0 not in rows
  assert len(rows) > len(many) - 1 - 2
  again = taken(2 * len(made), many)[len(made) :]
  assert [b['row'].tolist() for b in again] != [b['row'].tolist() for b in made]
  assert len({row for batch in again for row in batch['row'].tolist()}) == len(rows)


def test_the_same_seed_gives_the_same_batches_and_another_one_others():
  first, again, other = (
    [batch['row'].tolist() for batch in taken(12, seed=seed)] for seed in (5, 5, 6)
  )
  assert first == again
  assert first != other


def test_shards_are_the_rows_of_the_whole_at_the_same_width():
  whole = taken(9)
  shards = [taken(9, shard_index=i, shard_count=2) for i in (0, 1)]
  for batch, *parts in zip(whole, *shards, strict=True):
    assert len({part['source'].shape for part in parts}) == 1
    assert 2 * parts[0]['source'].size == batch['source'].size
    rows = [row for part in parts for row in part['row'].tolist()]
    assert sorted(rows) == sorted(batch['row'].tolist())


def test_a_place_that_was_saved_is_found_again():
  one = stream()
  for _ in range(15):  # into the second epoch
    next(one)
  place = one.get_state()
  following = [next(one)['row'].tolist() for _ in range(5)]
  new = stream()
  new.set_state(place)
  assert [next(new)['row'].tolist() for _ in range(5)] == following


def test_evaluation_has_every_pair_once_and_whole():
  many = pairs([*LENGTHS, (0, 0), (1999, 3), (3, 40)])
  made = batches.examples(many).in_order(widths=WIDTHS, batch_size=2)
  rows = [row for batch in made for row in batch['row'].tolist() if row >= 0]
  assert sorted(rows) == list(range(len(many)))
  shapes = collections.Counter(batch['source'].shape for batch in made)
  assert set(shapes) == {(8, 4), (4, 8), (2, 16), (1, 32), (1, 64), (1, 2048)}
  for batch in made:
    width = batch['source'].shape[1]
    for at, row in enumerate(batch['row']):
      length = many[row].length() if row >= 0 else 0
      assert width_of(length, WIDTHS) == width or row < 0
      assert batch['source'][at].any() == (row >= 0)
      if row >= 0:
        np.testing.assert_array_equal(
          batch['source'][at, : len(many[row].source)], many[row].source
        )
        assert batch['tokens'][at] == len(many[row].source) + len(many[row].target) + 2


def test_widths_are_those_given_or_doubled_and_batches_hold_about_equally_many_tokens():
  assert [width_of(n, (4, 12)) for n in (0, 4, 5, 12, 13, 24, 25, 48, 49)] == [
    *(4, 4, 12, 12, 24, 24, 48, 48, 96)
  ]
  for width in (4, 12, 24, 48, 96):
    tokens = width * batches.rows_of(width, (4, 12), 8)
    assert tokens == 96
  assert batches.rows_of(192, (4, 12), 8) == 1
  assert batches.rows_of(5, (5, 12), 8) == 16


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'widths': ()}, r'widths must rise, from at least 1, but got \(\)'),
    ({'widths': (8, 4)}, r'but got \(8, 4\)'),
    ({'batch_size': 0}, 'A batch of 0 needs'),
    (
      {'batch_size': 90},
      r'A batch of 90 needs as many pairs of at most 16 tokens, but 84 of 85 are\.',
    ),
    ({'widths': (1,)}, 'A batch of 2 needs as many pairs of at most 1 tokens, but 0 of 85 are'),
    ({'shard_count': 3}, 'Shards must divide 2 rows, but got shard 0 of 3'),
  ],
)
def test_numbers_out_of_range_are_errors(changes, message):
  with pytest.raises(ValueError, match=message):
    taken(1, **changes)


def test_a_pair_that_does_not_fit_is_an_error():
  with pytest.raises(ValueError, match='1 rows of 4 cannot hold 1 pairs, of up to 5 tokens'):
    batches.batch([Coded(EMPTY, np.full(4, 9, np.int32))], 4)
  with pytest.raises(ValueError, match='1 rows of 4 cannot hold 2 pairs'):
    batches.batch([Coded(EMPTY, EMPTY)] * 2, 4, rows=1)
