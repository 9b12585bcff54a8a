"""Spans: chains are collapsed and restored, charts hold them, and what is no tree is refused."""

import numpy as np
import pytest

from posjax.experiment.tasks.parsing.spans import (
  Sentence,
  Span,
  gold,
  sentence,
  spans_of,
  tree,
)
from posjax.experiment.tasks.parsing.tree import parsed, write

TEXT = '(TOP (S (NP (NP (DT a) (NN dog))) (VP (VBZ runs) (ADVP (RB now))) (. .)))'
SPANS = ((0, 5, 'S'), (0, 2, 'NP::NP'), (2, 4, 'VP'), (3, 4, 'ADVP'))
LABELS = ('', 'NP::NP', 'S', 'VP', 'ADVP')
IDS = {label: number for number, label in enumerate(LABELS)}


def test_a_tree_is_its_words_its_tags_and_a_span_for_each_chain():
  found = sentence(parsed(TEXT), 'a.trees, line 3')
  assert found == (
    ('a', 'dog', 'runs', 'now', '.'),
    ('DT', 'NN', 'VBZ', 'RB', '.'),
    SPANS,
    'TOP',
    'a.trees, line 3',
  )
  assert write(tree(found)) == TEXT


@pytest.mark.parametrize(
  ('text', 'spans', 'top'),
  [
    ('(TOP (NN x))', [(0, 1, 'TOP')], 'TOP'),
    ('( (NP (NN x)) (. .))', [(0, 2, 'TOP'), (0, 1, 'NP')], ''),
    ('(ROOT (NP (NN x)))', [(0, 1, 'NP')], 'ROOT'),
    ('(NP (NP (NN x)))', [(0, 1, 'NP::NP')], None),
    ('(S1 (S (VP (VB go))))', [(0, 1, 'S::VP')], 'S1'),
    ('(NN x)', [(0, 1, 'TOP')], None),
  ],
)
def test_all_words_together_are_a_constituent_whatever_is_outermost(text, spans, top):
  found = sentence(parsed(text))
  assert (list(found.spans), found.top) == (spans, top)
  assert write(tree(found)) == text


def test_a_label_that_would_be_read_as_another_is_refused():
  for text in ('(TOP (A::B (NN x) (NN y)))', '(TOP (TOP (NN x)))', '(S (TOP (NN x)))'):
    with pytest.raises(
      ValueError, match=r'line 9 should have labels without ::, and TOP at no inner'
    ):
      sentence(parsed(text), 'line 9')


@pytest.mark.parametrize(
  'spans',
  [
    [(0, 3, 'S'), (0, 2, 'A'), (1, 3, 'B')],  # they cross
    [(0, 3, 'S'), (0, 3, 'A')],  # the same words twice
    [(0, 3, 'S'), (1, 2, 'A'), (1, 2, 'B')],
    [(0, 3, 'S'), (2, 4, 'A')],
    [(0, 3, 'S'), (2, 2, 'A')],
    [(0, 3, 'S'), (1, 2, '')],
    [(0, 2, 'S')],
    [],
  ],
)
def test_spans_that_are_no_tree_over_all_words_are_refused(spans):
  wrong = Sentence(('a', 'b', 'c'), ('X',) * 3, tuple(Span(*each) for each in spans))
  with pytest.raises(
    ValueError, match=r'The sentence should have (spans of a tree over|a span of)'
  ):
    tree(wrong)


def test_a_tree_needs_a_tag_for_each_word():
  with pytest.raises(ValueError, match=r'line 2 should have a tag for each of 2 words, but has 1'):
    tree(Sentence(('a', 'b'), ('X',), (Span(0, 2, 'S'),), where='line 2'))


def test_a_chart_has_each_span_at_its_first_and_last_word():
  spans = tuple(Span(*each) for each in SPANS)
  chart = gold(spans, IDS, 5)
  assert {(int(i), int(j)): LABELS[chart[i, j]] for i, j in np.argwhere(chart)} == {
    (0, 4): 'S', (0, 1): 'NP::NP', (2, 3): 'VP', (3, 3): 'ADVP',
  }  # fmt: skip
  assert (chart.dtype, chart.shape) == (np.int32, (5, 5))
  assert spans_of(chart, LABELS) == spans


def test_a_label_that_training_has_not_is_no_constituent_but_for_all_words():
  spans = [Span(0, 3, 'NEW'), Span(1, 3, 'NEWER'), Span(1, 2, 'VP')]
  assert gold(spans, IDS, 3).tolist() == [[0, 0, 1], [0, 3, 0], [0, 0, 0]]
