"""Batches of tagged sentences: rows, widths, and what stands in the padding."""

import numpy as np
import pytest

from posjax.experiment.data import buckets
from posjax.experiment.data import sentences as rows_of
from posjax.experiment.tasks.tagging.batches import Coded
from posjax.experiment.tasks.tagging.batches import batch as make_batch

LENGTHS = (1, 2, 9, 3, 3, 4, 5, 7, 8, 8, 6, 2)


def sentences(lengths=LENGTHS):
  draw = np.random.default_rng(0).integers
  return [Coded(draw(1, 9, n), draw(0, 5, n), draw(1, 9, (n, 3)), draw(1, 9, n)) for n in lengths]


def test_a_row_is_a_sentence_at_the_left_and_zeros():
  one, other = sentences((2, 3))
  made = make_batch([one, other], 4, rows=3, indices=[7, 5])
  assert {name: array.shape for name, array in made.items()} == {
    **dict.fromkeys(('inputs', 'labels', 'bigrams', 'segments'), (3, 4)),
    'characters': (3, 4, 3),
    'row': (3,),
    'tokens': (3,),
  }
  for name, field in (('inputs', 'words'), ('labels', 'tags'), ('bigrams', 'bigrams')):
    np.testing.assert_array_equal(made[name][0], [*getattr(one, field), 0, 0])
  np.testing.assert_array_equal(made['characters'][1, :3], other.characters)
  np.testing.assert_array_equal(made['segments'], [[1, 1, 0, 0], [1, 1, 1, 0], [0] * 4])
  assert made['row'].tolist() == [7, 5, -1]
  assert made['tokens'].tolist() == [2, 3, 0]
  for name in ('inputs', 'labels', 'characters', 'bigrams'):
    assert not made[name][made['segments'] == 0].any()
  plain = make_batch([Coded(one.words, one.tags)], 2)
  assert sorted(plain) == ['inputs', 'labels', 'row', 'segments', 'tokens']
  with pytest.raises(ValueError, match='1 rows of 2 cannot hold 1 sentences, of up to 3 words'):
    make_batch([other], 2, rows=1)


def test_evaluation_has_every_sentence_once_and_whole_also_one_that_is_wider():
  many = sentences()
  made = rows_of.examples(many, make_batch).in_order(widths=(4, 6), batch_size=2)
  rows = [row for batch in made for row in batch['row'].tolist() if row >= 0]
  assert sorted(rows) == list(range(len(many)))
  assert {batch['inputs'].shape for batch in made} == {(2, 4), (2, 6), (2, 12)}
  assert sum(batch['tokens'].sum() for batch in made) == sum(LENGTHS)


def test_training_leaves_longer_sentences_out_and_shards_share_the_rows():
  many, options = sentences(), {'widths': (4, 8), 'batch_size': 2, 'seed': 1}
  assert buckets.longer(rows_of.lengths(many), 8) == 1
  whole = iter(rows_of.examples(many, make_batch).batches(**options))
  part = lambda i: rows_of.examples(many, make_batch).batches(
    **options, shard_index=i, shard_count=2
  )
  parts = [iter(part(i)) for i in range(2)]
  seen = set()
  for _ in range(12):
    batch, shards = next(whole), [next(part) for part in parts]
    assert [row for each in shards for row in each['row']] == batch['row'].tolist()
    for row, words in zip(batch['row'].tolist(), batch['inputs'], strict=True):
      count = LENGTHS[row]
      np.testing.assert_array_equal(words[:count], many[row].words)
      seen.add(row)
  assert seen == set(range(len(many))) - {LENGTHS.index(9)}
  with pytest.raises(ValueError, match='as many sentences of at most 8 words, but 11 of 12 are'):
    rows_of.examples(many, make_batch).batches(**{**options, 'batch_size': 12})
