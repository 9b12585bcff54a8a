"""Labelled precision, recall and F1 by EVALB's rules: cases counted by hand, and over a corpus.

EVALB itself (evalb.c with COLLINS.prm) has the same counts in each of these cases, but where a
comment says otherwise.
"""

import numpy as np
import pytest

from posjax.experiment.evaluation import add
from posjax.experiment.task import Metric
from posjax.experiment.tasks.parsing import metrics as bracket_metrics
from posjax.experiment.tasks.parsing.spans import sentence
from posjax.experiment.tasks.parsing.tree import parsed

RIGHT = '(TOP (S (NP (DT a) (NN dog)) (VP (VBZ runs) (ADVP (RB now))) (. .)))'


def spans(text):
  return sentence(parsed(text)).spans


@pytest.mark.parametrize(
  ('said', 'right', 'counts'),
  [
    (RIGHT, RIGHT, (4, 4, 4)),  # S, NP, VP, ADVP; TOP is none
    # The label S is wrong, ADVP is missing.
    ('(TOP (X (NP (DT a) (NN dog)) (VP (VBZ runs) (RB now)) (. .)))', RIGHT, (2, 3, 4)),
    # Only the full stop is elsewhere, within VP or alone in a bracket, which is none then.
    ('(TOP (S (NP (DT a) (NN dog)) (VP (VBZ runs) (ADVP (RB now)) (. .))))', RIGHT, (4, 4, 4)),
    ('(TOP (S (NP (DT a) (NN dog)) (VP (VBZ runs) (ADVP (RB now))) (X (. .))))', RIGHT, (4, 4, 4)),
    # A comma before a span and one at its end move no border.
    ('(TOP (S (A a) (NP (, ,) (B b)) (C c)))', '(TOP (S (A a) (, ,) (NP (B b)) (C c)))', (2, 2, 2)),
    # Brackets, question marks of other tags, and dashes of tag HYPH are words.
    ('(TOP (S (NP (A a)) (HYPH -)))', '(TOP (S (NP (A a) (HYPH -))))', (1, 2, 2)),
    ('(TOP (S (NP (A a)) (-LRB- -LRB-)))', '(TOP (S (NP (A a) (-LRB- -LRB-))))', (1, 2, 2)),
    ('(TOP (S (NP (A a)) (: -)))', '(TOP (S (NP (A a) (: -))))', (2, 2, 2)),
    ("(TOP (S (`` `) (NP (A a) ('' '))))", "(TOP (S (NP (`` `) (A a)) ('' ')))", (2, 2, 2)),
    # A chain is as many brackets, in whatever order, and equal ones count as often as both have.
    ('(TOP (S (VP (A a) (B b))))', '(TOP (VP (S (A a) (B b))))', (2, 2, 2)),
    ('(TOP (S (NP (NP (NP (A a)))) (B b)))', '(TOP (S (NP (NP (A a))) (B b)))', (3, 4, 3)),
    ('(TOP (S (NP (A a)) (B b)))', '(TOP (S (NP (NP (NP (A a)))) (B b)))', (2, 2, 4)),
    # Brackets that differ in punctuation alone are two equal ones.
    ('(TOP (S (NP (NP (A a)) (, ,)) (B b)))', '(TOP (S (NP (NP (A a))) (, ,) (B b)))', (3, 3, 3)),
    # ADVP and PRT are one label; functions and indices are no part of one.
    ('(TOP (S (A a) (PRT (B b))))', '(TOP (S (A a) (ADVP (B b))))', (2, 2, 2)),
    ('(TOP (S=1 (A a) (NP-SBJ-2 (B b))))', '(TOP (S (A a) (NP (B b))))', (2, 2, 2)),
    # Traces are deleted as punctuation is.
    ('(TOP (S (NP (-NONE- *)) (VP (A a))))', '(TOP (S (-NONE- *) (VP (A a))))', (2, 2, 2)),
    ('(TOP (NN x))', '(TOP (NN x))', (0, 0, 0)),
    ('(TOP (X (NN x)))', '(TOP (NN x))', (0, 1, 0)),
    # EVALB with these parameters counts the outermost bracket if it is called otherwise.
    ('(ROOT (NP (NN x)))', '( (NP (NN x)))', (1, 1, 1)),
  ],
)
def test_brackets_of_a_sentence_are_counted_as_by_hand(said, right, counts):
  reference = sentence(parsed(right))
  assert bracket_metrics.count(spans(said), reference) == counts


def test_the_tags_of_the_reference_say_what_is_punctuation():
  # EVALB skips such a sentence, since other words are left in the two trees.
  said, right = ('(TOP (S (NP (A a) (NN -))))', '(TOP (S (NP (A a)) (: -)))')
  assert bracket_metrics.count(spans(said), sentence(parsed(right))) == (2, 2, 2)


REFERENCES = [sentence(parsed(text)) for text in (
  RIGHT, '(TOP (NP (NN art) (. .)))', '(TOP (UH yes))', '(TOP (NP (. .)))',
  '(TOP (S (VP (VB go) (PRT (RP on)))))',
)]  # fmt: skip
SAID = [
  '(TOP (S (A a) (VP (A dog) (VP (A runs) (ADVP (A now)))) (. .)))',  # right: S, VP, ADVP of 4
  '(TOP (NP (A art) (. .)))',  # 1 of 1
  '(TOP (A yes))',  # nothing of nothing, exact
  '(TOP (X (A .)))',  # punctuation alone: left out
  '(TOP (S (VP (A go) (A on))))',  # 2 of 2; one of 3 is missing
]


def scored(make, said=SAID, tags=False, name='f1'):
  trees = [sentence(parsed(text)) for text in said]
  say = lambda arrays, batch: [
    (row, trees[row].tags if tags else trees[row].spans) for row in arrays['said'].tolist()
  ]
  metric = make(say, REFERENCES)
  metric = metric if isinstance(metric, Metric) else metric[name]
  parts = [metric.update({'said': np.array(rows)}, {}) for rows in ([3, 1], [], [4, 0, 2])]
  return metric.finish(add(add(parts[0], parts[1]), parts[2]))


def test_the_corpus_counts_all_brackets_together():
  right, said, there = 3 + 1 + 2, 4 + 1 + 2, 4 + 1 + 3
  assert scored(bracket_metrics.scores, name='precision') == right / said
  assert scored(bracket_metrics.scores, name='recall') == right / there
  assert scored(bracket_metrics.scores) == 2 * right / (said + there)
  assert scored(bracket_metrics.exact) == 2 / 4
  metric = bracket_metrics.scores(lambda *_: [], [])['f1']
  assert (metric.unit, metric.higher, metric.best, metric.scale) == ('labelled F1', True, 1, 100)


def test_tags_are_judged_but_for_those_of_punctuation():
  # Words that are judged: 4, 1, 1, 0 and 2; of the tags said, DT, VBZ, UH and RP are right.
  tags = [
    '(TOP (DT a) (A dog) (VBZ runs) (A now) (A .))',
    '(TOP (A art) (. .))',
    '(TOP (UH yes))',
    '(TOP (A .))',
    '(TOP (A go) (RP on))',
  ]
  assert scored(bracket_metrics.right_tags, tags, tags=True) == 4 / 8
  with pytest.raises(ValueError, match=r'should have a tag for each of 5 words, but has 1'):
    bracket_metrics.count_tags(['A'], REFERENCES[0])


def test_a_tree_that_is_missing_said_twice_or_of_other_words_is_an_error():
  metric = bracket_metrics.exact(lambda *_: [], REFERENCES[:2])
  for rows in ([0], [0, 0], [0, 2]):
    with pytest.raises(ValueError, match=r'Each of the 2 references needs one tree, but got'):
      metric.finish([(row, True) for row in rows])
  with pytest.raises(
    ValueError, match=r'A sentence of 2 words should have spans in it, but one is'
  ):
    bracket_metrics.count(spans(RIGHT), REFERENCES[1])


def test_without_brackets_the_scores_are_0_and_the_tree_is_right():
  predicted, references = lambda *_: [(0, ())], REFERENCES[2:3]
  metrics = bracket_metrics.scores(predicted, references)
  metrics['exact'] = bracket_metrics.exact(predicted, references)
  found = {name: each.finish(each.update({}, {})) for name, each in metrics.items()}
  assert found == {'f1': 0, 'precision': 0, 'recall': 0, 'exact': 1}
