"""Drawings of trees: the lines of a terminal, and what stands in a picture."""

import io

import pytest
from matplotlib.figure import Figure

from posjax.experiment.tasks.parsing import drawing as tree_drawing
from posjax.experiment.tasks.parsing.spans import Sentence, Span, sentence
from posjax.experiment.tasks.parsing.tree import parsed

TREE = sentence(
  parsed(
    '(TOP (S (NP (NP (A a) (N $d$))) (VP (V [b]) (T to) (NP (N x)) (T o) (S (VP (V <y>)))) (. .)))'
  )
)


def test_a_tree_in_the_terminal_has_a_line_for_each_constituent_and_group_of_words():
  assert tree_drawing.text(TREE).plain.split('\n') == [
    'S',
    '├─ NP → NP a $d$',
    '├─ VP',
    '│  ├─ [b] to',
    '│  ├─ NP x',
    '│  ├─ o',
    '│  └─ S → VP <y>',
    '└─ .',
  ]
  assert tree_drawing.text(sentence(parsed('(TOP (UH yes))'))).plain == 'TOP yes'


def colours(made):
  return {made.plain[span.start : span.end]: str(span.style) for span in made.spans}


def test_labels_are_coloured_by_the_strength_of_their_span():
  made = tree_drawing.text(TREE, {(0, 8): 0.0, (0, 2): 1.0, (4, 5): 0.5})
  styles = colours(made)
  assert styles['S'].endswith('#d55e00')
  assert styles['NP → NP'].endswith('#0072b2')
  assert styles['NP'].endswith('#6a6859')
  assert '#' not in styles['VP']
  for wrong in (-0.1, 1.1, float('nan')):
    with pytest.raises(ValueError, match=r'The strength of the span .*S.* should be in \[0, 1\]'):
      tree_drawing.text(TREE, {(0, 8): wrong})
  assert tree_drawing.strength(1.0) == 0.5


def test_a_picture_has_every_label_and_word_as_it_is_spelled():
  figure = Figure(figsize=(6, 4))
  tree_drawing.draw(figure, TREE, {(0, 8): 1.0})
  (axes,) = figure.axes
  shown = [each.get_text() for each in axes.texts]
  assert sorted(shown[:5]) == ['NP', 'NP → NP', 'S', 'S → VP', 'VP']
  assert shown[5:] == ['a', r'\$d\$', '[b]', 'to', 'x', 'o', '<y>', '.']
  heights = {each.get_text(): each.get_position()[1] for each in axes.texts}
  assert heights['NP → NP'] == 0.5  # in the middle of its words
  written = io.StringIO()
  figure.savefig(written, format='svg')
  assert 'fill: #0072b2' in written.getvalue()


def test_a_very_long_word_and_a_very_deep_tree_leave_a_picture():
  deep = Sentence(
    ('word' * 100, *'abcdefgh'), ('X',) * 9, tuple(Span(n, 9, 'NP') for n in range(9))
  )
  figure = Figure(figsize=(6, 4))
  tree_drawing.draw(figure, deep)
  left, far = figure.axes[0].get_xlim()
  assert left < 0 < 9 < far
  assert len(tree_drawing.text(deep).plain.split('\n')) == 9 + 8


def test_spans_of_no_tree_are_refused():
  with pytest.raises(ValueError, match=r'should have spans of a tree over 8 words'):
    tree_drawing.text(TREE._replace(spans=(*TREE.spans, Span(1, 3, 'X'))))
