"""Packed training batches and plain evaluation windows."""

import itertools

import numpy as np
import pytest

from posjax.experiment.tasks.language_modelling import pipeline

DOCUMENTS = tuple(
  bytes([97 + index]) * (3 * index) + f'<{index}>'.encode() * index for index in range(1, 24)
)


def take(dataset, count):
  return list(itertools.islice(dataset, count))


def same(first, second):
  return all(np.array_equal(first[name], second[name]) for name in first)


def make(documents=DOCUMENTS, **changes):
  arguments = {'length': 16, 'batch_size': 2, 'seed': 0}
  return pipeline.batches(documents, **(arguments | changes))


def pieces(batches):
  """The packed pieces as (inputs, targets), and a check that all else in each row agrees."""
  found = []
  for batch in batches:
    for row in range(len(batch['segments'])):
      arrays = {name: array[row] for name, array in batch.items()}
      for segment in range(1, arrays['segments'].max() + 1):
        inside = np.flatnonzero(arrays['segments'] == segment)
        np.testing.assert_array_equal(inside, inside[0] + np.arange(len(inside)))
        np.testing.assert_array_equal(arrays['positions'][inside], np.arange(len(inside)))
        found.append((text_of(arrays['inputs'][inside]), text_of(arrays['targets'][inside])))
  return found


def text_of(tokens):
  return np.asarray(tokens).astype(np.uint8).tobytes()


def cut(documents, length):
  """What the pieces should be, by a loop of its own."""
  for document in documents:
    while len(document) > 1:
      yield document[:length][: len(document) - 1], document[1 : length + 1]
      document = document[length:]


@pytest.mark.parametrize('length', [1, 5, 16, 400])
def test_each_token_but_the_first_of_a_document_is_a_target_once_per_epoch(length):
  epoch = pieces(make(length=length, batch_size=1, repeat=False))
  assert sorted(epoch) == sorted(cut(DOCUMENTS, length))
  assert sum(len(targets) for _, targets in epoch) == sum(len(text) - 1 for text in DOCUMENTS)


def test_a_piece_lies_within_one_document_so_only_segments_share_a_row():
  for inputs, targets in pieces(take(make(), 100)):
    text = inputs + targets[-1:]
    assert targets == text[1:]
    assert any(text in document for document in DOCUMENTS)


def test_padding_is_zero_throughout():
  batch = take(make(length=300, batch_size=4, repeat=False), 1)[0]
  empty = batch['segments'] == 0
  assert empty.any()
  assert all(not array[empty].any() for array in batch.values())


def test_arrays_are_int32_of_batch_by_length():
  batch = take(make(), 1)[0]
  assert sorted(batch) == ['inputs', 'positions', 'segments', 'targets']
  assert all(array.dtype == np.int32 for array in batch.values())
  assert all(array.shape == (2, 16) for array in batch.values())


def test_repeating_gives_each_epoch_all_pieces_in_a_new_order():
  # There is no room for two of these pieces in a row, and three packs are an epoch.
  documents = [bytes([index]) * 17 for index in range(192)]
  rows = [batch['inputs'][0, 0] for batch in take(make(documents, batch_size=1), 384)]
  assert sorted(rows[:192]) == sorted(rows[192:]) == list(range(192))
  assert rows[:192] != rows[192:]
  assert rows[:192] != list(range(192))


def test_a_seed_is_an_order():
  first, again, other = (take(make(seed=seed), 20) for seed in (0, 0, 1))
  assert all(map(same, first, again))
  assert not all(map(same, first, other))


@pytest.mark.parametrize('batches_before', [0, 1, 3, 7, 40])
def test_a_saved_state_goes_on_exactly_within_a_pack(batches_before):
  iterator = iter(make(length=32))
  for _ in range(batches_before):
    next(iterator)
  state = iterator.get_state()
  expected = [next(iterator) for _ in range(40)]
  fresh = iter(make(length=32))
  next(fresh)
  fresh.set_state(state)
  assert all(map(same, expected, [next(fresh) for _ in range(40)]))


@pytest.mark.parametrize('shard_count', [1, 2, 3])
def test_shards_are_disjoint_and_together_everything(shard_count):
  shards = [
    pieces(make(batch_size=1, repeat=False, shard_index=shard, shard_count=shard_count))
    for shard in range(shard_count)
  ]
  assert max(map(len, shards)) - min(map(len, shards)) <= 1
  assert sorted(itertools.chain(*shards)) == sorted(cut(DOCUMENTS, 16))


def test_most_of_a_row_is_filled():
  rng = np.random.default_rng(0)
  documents = [text_of(rng.integers(256, size=size)) for size in rng.integers(1, 900, size=300)]
  filled = [batch['segments'] > 0 for batch in take(make(documents, length=128), 400)]
  assert np.mean(filled) > 0.97


def test_other_tokens_come_from_encode():
  def encode(document):
    return np.frombuffer(document, np.uint8).astype(np.int64) + 1000

  batch = take(make(encode=encode), 1)[0]
  assert same(batch | {'inputs': 0, 'targets': 0}, take(make(), 1)[0] | {'inputs': 0, 'targets': 0})
  used = batch['segments'] > 0
  np.testing.assert_array_equal(batch['inputs'][used], take(make(), 1)[0]['inputs'][used] + 1000)


def test_encode_must_give_one_axis_of_integers():
  with pytest.raises(TypeError, match=r'one axis of integers, but gave float64 of shape \(4,\)'):
    make(encode=lambda document: np.zeros(4))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'length': 0}, 'length should be at least 1, but is 0'),
    ({'batch_size': 0}, 'batch_size should be at least 1'),
    ({'seed': -1}, r'seed should be in \[0, 4294967296\), but is -1'),
    ({'shard_index': 2, 'shard_count': 2}, r'shard_index should be in \[0, 2\), but is 2'),
    ({'documents': [b'a', b'']}, 'Shard 0 of 1 should have text, but the 2 documents'),
    ({'documents': []}, 'should have text, but the 0 documents'),
  ],
)
def test_what_cannot_be_batched_is_refused_at_once(changes, message):
  with pytest.raises(ValueError, match=message):
    make(**changes)


# Random, so that a window is found at one place only.
STORIES = tuple(np.random.default_rng(size).bytes(size) for size in (1, 300, 7, 0, 1200, 400))
STREAM = b'\n\n'.join(STORIES)


def rows(dataset, name):
  return np.concatenate([batch[name] for batch in dataset])


def test_windows_are_the_stream_cut_without_overlap():
  dataset = pipeline.windows(STORIES, length=50, batch_size=1)
  count = (len(STREAM) - 1) // 50
  assert len(dataset) == count
  assert text_of(rows(dataset, 'inputs')) == STREAM[: 50 * count]
  assert text_of(rows(dataset, 'targets')) == STREAM[1 : 50 * count + 1]
  np.testing.assert_array_equal(rows(dataset, 'positions'), np.tile(np.arange(50), (count, 1)))
  assert (rows(dataset, 'segments') == 1).all()
  assert all(array.dtype == np.int32 for array in dataset[0].values())


@pytest.mark.parametrize('length', [10, 40, 160])
def test_a_count_of_windows_spreads_them_from_start_to_end(length):
  inputs = rows(pipeline.windows(STORIES, length=length, batch_size=5, count=5), 'inputs')
  starts = [STREAM.index(text_of(row)) for row in inputs]
  assert len(starts) == 5
  assert starts[0] == 0
  assert starts[-1] == len(STREAM) - length - 1
  gaps = np.diff(starts)
  assert gaps.max() - gaps.min() <= 1
  assert gaps.min() >= length


def test_a_count_beyond_the_text_takes_all_of_it():
  few, every = (
    pipeline.windows(STORIES, length=50, batch_size=4, count=count) for count in (1000, None)
  )
  assert all(map(same, few, every))


def test_the_last_batch_is_filled_up_with_rows_of_padding():
  dataset = pipeline.windows(STORIES, length=50, batch_size=4, count=6)
  assert [batch['segments'][:, 0].tolist() for batch in dataset] == [[1] * 4, [1, 1, 0, 0]]
  assert all(array.shape == (4, 50) for array in dataset[1].values())
  assert all(not array[2:].any() for array in dataset[1].values())


def test_one_window_needs_one_token_more_than_its_length():
  assert len(pipeline.windows([b'abcd'], length=3, batch_size=1)) == 1
  with pytest.raises(ValueError, match='window of 4 tokens needs a text of at least 5, but it has'):
    pipeline.windows([b'abcd'], length=4, batch_size=1)


@pytest.mark.parametrize('name', ['length', 'batch_size', 'count'])
def test_windows_refuse_sizes_below_one(name):
  with pytest.raises(ValueError, match=f'{name} should be at least 1, but is 0'):
    pipeline.windows(STORIES, **({'length': 5, 'batch_size': 2, 'count': 3} | {name: 0}))
