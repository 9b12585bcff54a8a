"""Batches of texts: what is in them, which widths they have, and who gets which rows."""

import collections
import itertools

import numpy as np
import pytest

from posjax.experiment.tasks.classification.batches import Text, examples

WIDTHS = (2, 4, 8)


def texts(lengths):
  """Each of words that are its number, so that rows can be told."""
  return [Text(np.full(length, i + 1, np.int32), i % 3) for i, length in enumerate(lengths)]


LENGTHS = [1, 2] * 9 + [3, 4] * 4 + [8]


def taken(many, count, **shard):
  settings = {'widths': WIDTHS, 'batch_size': 4, 'seed': 5, **shard}
  made = examples(many).batches(**settings)
  return list(itertools.islice(iter(made), count))


def numbers(batch):
  return [row[0] - 1 for row in batch['inputs']]


def test_an_epoch_has_every_text_once_but_fewer_than_a_batch():
  epochs = [taken(texts(LENGTHS), 18)[i : i + 6] for i in (0, 6, 12)]
  for epoch in epochs:
    seen = collections.Counter(number for batch in epoch for number in numbers(batch))
    assert set(seen.values()) == {1}
    assert len(seen) == 24  # of 27
    assert 26 in seen  # the only wide one, which no epoch may leave out
  left = [set(range(27)) - {n for batch in epoch for n in numbers(batch)} for epoch in epochs]
  assert len(set(map(frozenset, left))) > 1
  assert len({tuple(batch['inputs'].shape[1] for batch in epoch) for epoch in epochs}) > 1


def test_rows_are_as_narrow_as_whole_batches_allow():
  widths = collections.Counter(batch['inputs'].shape[1] for batch in taken(texts(LENGTHS), 6))
  # The wide text takes three of width 4 with it; the five left of those take three narrow ones.
  assert widths == {8: 1, 4: 2, 2: 3}


def test_whole_batches_need_nobody_else():
  batches = taken(texts([4] * 4 + [1] * 8), 3)
  assert sorted(batch['inputs'].shape[1] for batch in batches) == [2, 2, 4]


def test_a_batch_is_its_texts_and_zeros():
  (batch,) = examples([Text(np.int32([7, 8, 9]), 2)]).in_order(widths=(4,), batch_size=2)
  expected = {
    'inputs': [[7, 8, 9, 0], [0] * 4],
    'positions': [[0, 1, 2, 0], [0] * 4],
    'segments': [[1, 1, 1, 0], [0] * 4],
    'labels': [[2], [0]],
    'weights': [[1], [0]],
  }
  assert set(batch) == set(expected)
  for name, value in expected.items():
    np.testing.assert_array_equal(batch[name], value)
    assert batch[name].dtype == (np.float32 if name == 'weights' else np.int32)


def test_evaluation_has_every_text_once_in_its_own_width():
  made = examples(texts(LENGTHS)).in_order(widths=WIDTHS, batch_size=4)
  seen = [
    n
    for batch in made
    for n, weight in zip(numbers(batch), batch['weights'], strict=True)
    if weight
  ]
  assert sorted(seen) == list(range(27))
  for batch in made:
    longest = batch['segments'].sum(1).max()
    assert batch['inputs'].shape == (4, next(width for width in WIDTHS if width >= longest))


def test_the_same_seed_gives_the_same_batches_and_another_one_others():
  first, again, other = (
    [numbers(batch) for batch in taken(texts(LENGTHS), 8, seed=seed)] for seed in (5, 5, 6)
  )
  assert first == again
  assert first != other


def test_shards_are_the_rows_of_the_whole_at_the_same_width():
  whole = taken(texts(LENGTHS), 7)
  shards = [taken(texts(LENGTHS), 7, shard_index=i, shard_count=2) for i in (0, 1)]
  for batch, *parts in zip(whole, *shards, strict=True):
    assert parts[0]['inputs'].shape == parts[1]['inputs'].shape == (2, batch['inputs'].shape[1])
    assert sorted(numbers(parts[0]) + numbers(parts[1])) == sorted(numbers(batch))


def test_a_place_that_was_saved_is_found_again():
  stream = iter(examples(texts(LENGTHS)).batches(widths=WIDTHS, batch_size=4, seed=5))
  for _ in range(9):  # into the second epoch
    next(stream)
  place = stream.get_state()
  following = [numbers(next(stream)) for _ in range(5)]
  new = iter(examples(texts(LENGTHS)).batches(widths=WIDTHS, batch_size=4, seed=5))
  new.set_state(place)
  assert [numbers(next(new)) for _ in range(5)] == following


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'widths': ()}, r'widths must rise, from at least 1, but got \(\)'),
    ({'widths': (4, 4, 8)}, r'but got \(4, 4, 8\)'),
    ({'widths': (0, 8)}, r'but got \(0, 8\)'),
    ({'batch_size': 28}, 'A batch of 28 needs .* but 27 of 27 are'),
    ({'batch_size': 0}, 'A batch of 0 needs'),
    ({'shard_index': 2, 'shard_count': 2}, 'got shard 2 of 2'),
    ({'shard_count': 3}, 'Shards must divide 4 rows, but got shard 0 of 3'),
  ],
)
def test_numbers_out_of_range_are_errors(changes, message):
  with pytest.raises(ValueError, match=message):
    taken(texts(LENGTHS), 1, **changes)
