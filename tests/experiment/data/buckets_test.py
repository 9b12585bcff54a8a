"""Batches of few widths, where wider rows are fewer."""

import collections

import numpy as np
import pytest

from posjax.experiment.data import buckets
from posjax.experiment.data.buckets import Examples


def plan(seed, bucket, rows):
  return buckets.epoch_plan(np.random.default_rng(seed), np.array(bucket), rows)


BUCKETS = [[0] * 37 + [1] * 11 + [2] * 3, [0] * 5, [2] * 9, [0] * 3 + [2], [1] * 40 + [0], [2] * 3]


@pytest.mark.parametrize('bucket', BUCKETS)
def test_an_epoch_leaves_out_fewer_texts_than_the_widest_batch_has_rows(bucket):
  rows = (12, 6, 3)
  left, counts = set(), set()
  for seed in range(8):
    made = plan(seed, bucket, rows)
    seen = [text for texts, _ in made for text in texts]
    assert len(set(seen)) == len(seen) > len(bucket) - 3
    left.add(frozenset(range(len(bucket))) - set(seen))
    counts.add(tuple(sorted(collections.Counter(at for _, at in made).items())))
    for texts, at in made:
      assert len(texts) == rows[at]
      assert all(bucket[text] <= at for text in texts)  # it fits
  assert len(counts) == 1  # so that every epoch has as many batches
  assert len(left) > 1 or not any(left)


def test_narrow_texts_make_full_narrow_batches_and_the_rest_goes_to_wider_ones():
  widths = collections.Counter(at for _, at in plan(0, [0] * 34, (12, 6, 3)))
  assert widths == {0: 2, 1: 1, 2: 1}  # 24 and 6 and 3, and one is left out


def test_wide_texts_take_the_widest_of_the_others_along():
  bucket = [0] * 12 + [1] * 7 + [2] * 2
  made = sorted(
    ((at, sorted(bucket[i] for i in texts)) for texts, at in plan(0, bucket, (12, 6, 3)))
  )
  assert made == [(0, [0] * 12), (1, [1] * 6), (2, [1, 2, 2])]


def test_a_text_longer_than_the_last_width_is_an_error():
  with pytest.raises(ValueError, match=r'Rows of 4 tokens .* all texts: the longest has 5\.'):
    Examples([2, 5], lambda *_: {}).batches(widths=(4,), batch_size=1, seed=0)
