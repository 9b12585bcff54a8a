"""Contiguous streams: in the order of the text, cut over shards, resumed exactly."""

import numpy as np
import pytest

from posjax.experiment.tasks.language_modelling.streams import held_out_streams, join, streams

TEXT = np.arange(100, 150)  # 50 tokens: 4 streams of 3 segments of 4, and two left over


def some(count, **changes):
  batches = iter(streams(TEXT, **{'length': 4, 'batch_size': 4, **changes}))
  return [next(batches) for _ in range(count)]


def test_a_row_goes_on_where_the_batch_before_ended():
  batches = some(3)
  rows = np.concatenate([batch['inputs'] for batch in batches], axis=1)
  np.testing.assert_array_equal(rows, np.arange(100, 148).reshape(4, 12))  # each token once
  for batch in batches:
    np.testing.assert_array_equal(batch['targets'], batch['inputs'] + 1)
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
  np.testing.assert_array_equal(
    np.concatenate([batch['positions'] for batch in batches], axis=1), [range(12)] * 4
  )


def test_an_epoch_begins_again_as_another_document():
  batches = some(7)
  assert [batch['segments'].max() for batch in batches] == [1, 1, 1, 2, 2, 2, 3]
  for name in ('inputs', 'targets', 'positions'):
    np.testing.assert_array_equal(batches[3][name], batches[0][name])
  once = list(streams(TEXT, length=4, batch_size=4, repeat=False))
  assert len(once) == 3


def test_shards_hold_the_rows_of_the_whole():
  whole = some(4)
  shards = [some(4, batch_size=2, shard_index=i, shard_count=2) for i in range(2)]
  for batch, *parts in zip(whole, *shards, strict=True):
    for name, rows in batch.items():
      np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), rows)


def test_the_place_is_saved_and_restored_exactly():
  batches = iter(streams(TEXT, length=4, batch_size=4))
  for _ in range(5):
    next(batches)
  state, expected = batches.get_state(), next(batches)
  other = iter(streams(TEXT, length=4, batch_size=4))
  other.set_state(state)
  for name, rows in next(other).items():
    np.testing.assert_array_equal(rows, expected[name])


def test_held_out_tokens_count_once_after_their_context():
  batches = held_out_streams(TEXT, length=3, rows=2, context=10, scored=6)
  assert len(batches) == 6  # four of context, 12 tokens, and two that count
  rows = np.concatenate([batch['inputs'] for batch in batches], axis=1)
  weights = np.concatenate([batch['weights'] for batch in batches], axis=1)
  np.testing.assert_array_equal(rows, [range(100, 118), range(131, 149)])  # both ends of the text
  np.testing.assert_array_equal(weights, [[0] * 12 + [1] * 6] * 2)
  assert [batch['positions'][0, 0] for batch in batches] == [0, 3, 6, 9, 12, 15]
  np.testing.assert_array_equal(batches[0]['targets'], batches[0]['inputs'] + 1)


def test_documents_are_joined_with_what_stands_between_them():
  np.testing.assert_array_equal(join([TEXT[:2], TEXT[2:3]], np.array([7])), [100, 101, 7, 102])
  assert len(join([], np.array([7]))) == 0


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: streams(TEXT, length=0, batch_size=4), 'at least 1, but got 0 and 4'),
    (lambda: streams(TEXT, length=13, batch_size=4), 'of at least 53, but it has 50'),
    (lambda: streams(TEXT, length=4, batch_size=4, shard_index=1), r'in \[0, 1\), but is 1'),
    (
      lambda: held_out_streams(TEXT, length=3, rows=1, context=0, scored=4),
      'positive multiple of 3 tokens must count, after a context, but got 4 after 0',
    ),
    (
      lambda: held_out_streams(TEXT, length=3, rows=1, context=40, scored=9),
      '9 tokens after a context of 42 need a held-out text of at least 52, but it has 50',
    ),
  ],
)
def test_a_text_that_is_too_short_or_a_wrong_number_is_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_a_text_of_the_least_size_fits():
  assert len(list(streams(np.arange(17), length=4, batch_size=4, repeat=False))) == 1
  assert len(held_out_streams(np.arange(10), length=3, rows=1, context=3, scored=6)) == 3
