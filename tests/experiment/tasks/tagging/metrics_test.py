"""Precision, recall and F1 of entities: counts by hand, over a corpus in any order of its rows."""

import numpy as np
import pytest

from posjax.experiment.evaluation import add
from posjax.experiment.tasks.tagging import metrics as span_metrics

REFERENCES = ['B-X E-X O S-Y', 'O O', 'S-X S-X S-Y', 'B-X I-X E-X O']
HYPOTHESES = ['B-X E-X O S-X', 'O S-Y', 'S-X S-X S-Y', 'B-X E-X S-X O']


def say(arrays, batch):
  return [(row, tags.split()) for row, tags in zip(batch['row'], arrays['said'], strict=True)]


def scored(name, hypotheses=HYPOTHESES, references=REFERENCES):
  metric = span_metrics.scores(say, [tags.split() for tags in references])[name]
  rows = [*range(len(references))][::-1]
  parts = [
    metric.update({'said': np.array([hypotheses[row] for row in these])}, {'row': these})
    for these in (rows[:1], rows[1:])
  ]
  return metric.finish(add(*parts))


def test_entities_count_by_type_and_both_borders_over_the_whole_corpus():
  # Right: X 0-1; X, X and Y of the third sentence. Said: 2, 1, 3 and 2; there: 2, 0, 3 and 1.
  assert scored('precision') == 4 / 8
  assert scored('recall') == 4 / 6
  assert scored('f1') == 2 * 4 / (8 + 6)
  assert scored('f1', REFERENCES) == 1


def test_f1_is_the_harmonic_mean_in_percent():
  precision, recall = scored('precision'), scored('recall')
  assert scored('f1') == pytest.approx(2 / (1 / precision + 1 / recall))
  metric = span_metrics.scores(say, [])['f1']
  assert (metric.unit, metric.higher, metric.best, metric.scale) == ('span F1', True, 1, 100)


@pytest.mark.parametrize(
  ('said', 'reference', 'counts'),
  [
    ('I-X I-X O', 'B-X I-X O', (1, 1, 1)),  # I begins an entity behind O
    ('B-X I-Y O', 'B-X I-X O', (0, 2, 1)),  # another type begins another entity
    ('B-X B-X O', 'B-X I-X O', (0, 2, 1)),
    ('O I-X E-X', 'O B-X E-X', (1, 1, 1)),  # without a beginning
    ('O B-X I-X', 'O B-X E-X', (1, 1, 1)),  # without an end
    ('B-X O E-X', 'B-X I-X E-X', (0, 2, 1)),  # a hole
    ('S-X E-X O', 'S-X S-X O', (2, 2, 2)),
    ('E-X I-X O', 'S-X S-X O', (2, 2, 2)),
    ('E-X B-X E-X', 'S-X B-X E-X', (2, 2, 2)),
    ('B-X S-X O', 'S-X S-X O', (2, 2, 2)),
  ],
)
def test_illegal_tags_count_as_conlleval_reads_them(said, reference, counts):
  assert span_metrics.count([said.split()], [reference.split()]) == counts


def test_without_entities_the_scores_are_0():
  for name in ('f1', 'precision', 'recall'):
    assert scored(name, ['O', 'O'], ['O', 'O']) == 0
    assert scored(name, ['S-X', 'O'], ['O', 'S-X']) == 0


def test_a_sentence_that_is_missing_said_twice_or_of_another_length_is_an_error():
  metric = span_metrics.scores(say, [['O'], ['O']])['f1']
  for rows in ([0], [0, 0], [0, 2]):
    with pytest.raises(ValueError, match=r'Each of the 2 references needs one sentence of tags'):
      metric.finish([(row, (0, 0, 0)) for row in rows])
  with pytest.raises(ValueError, match=r'A sentence of 1 tokens needs as many tags, but got 2'):
    metric.update({'said': np.array(['O O'])}, {'row': [0]})
