"""Metrics of all sentences together are what sacrebleu says of them, in the order of their rows."""

import numpy as np
import pytest
import sacrebleu

from posjax.experiment.evaluation import add
from posjax.experiment.tasks.translation import metrics as corpus_metrics

REFERENCES = ['The cat sat on the mat.', 'It is raining, again.', '']
HYPOTHESES = ['The cat sat on a mat.', 'It is raining again.', 'no']


def say(arrays, batch):
  return list(zip(batch['row'], arrays['said'], strict=True))


def scored(metric, hypotheses=HYPOTHESES):
  """The score of two batches, the last sentences first."""
  halves = [(2, 1), (0,)]
  parts = (
    metric.update({'said': [hypotheses[i] for i in rows]}, {'row': list(rows)}) for rows in halves
  )
  return metric.finish(add(*parts))


def test_bleu_is_sacrebleus_cased_and_of_plain_text():
  found = scored(corpus_metrics.bleu(say, REFERENCES))
  assert found == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
  lower = [each.lower() for each in HYPOTHESES]
  assert scored(corpus_metrics.bleu(say, REFERENCES), lower) < found


def test_chrf_is_sacrebleus():
  found = scored(corpus_metrics.chrf(say, REFERENCES))
  assert found == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score


def test_bleu_counts_clipped_n_grams_over_the_corpus():
  # 'a b c d e' against 'a b c d f': 4 of 5 words, 3 of 4 pairs, 2 of 3 and 1 of 2, equally long.
  metric = corpus_metrics.bleu(say, ['a b c d f'])
  found = metric.finish(metric.update({'said': ['a b c d e']}, {'row': [0]}))
  np.testing.assert_allclose(found, 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25, rtol=1e-12)


def test_sentences_are_right_letter_for_letter():
  metric = corpus_metrics.equal_sentences(say, REFERENCES)
  assert scored(metric, ['The cat sat on the mat.', 'it is raining, again.', '']) == 2 / 3


def test_a_part_of_the_sentences_is_scored_beside_its_own_references():
  for make in (corpus_metrics.bleu, corpus_metrics.chrf):
    metric, alone = make(say, REFERENCES), make(say, REFERENCES[1:])
    said = {'said': ['It is raining again.', '']}
    found = metric.finish(metric.update(said, {'row': [1, 2]}))
    assert found == alone.finish(alone.update(said, {'row': [0, 1]}))
    assert found != metric.finish(metric.update(said, {'row': [0, 2]}))


def test_a_sentence_without_a_reference_of_its_own_is_an_error():
  for said in ([(0, 'a'), (0, 'b')], [(0, 'a'), (2, 'b')]):
    with pytest.raises(ValueError, match=r'Each sentence needs one of the 2 references of its own'):
      corpus_metrics.paired(said, ['a', 'b'])


def test_the_signatures_tell_case_tokens_and_version():
  told = corpus_metrics.signatures(REFERENCES)
  assert told.startswith('BLEU nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:')
  assert '; chrF nrefs:1|case:mixed|' in told
