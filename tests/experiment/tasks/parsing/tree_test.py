"""Brackets: what is read is written again, what is no tree is refused, what is stripped is gone."""

import os
from pathlib import Path

import pytest

from posjax.experiment.data.corpus import lines
from posjax.experiment.tasks.parsing import generated
from posjax.experiment.tasks.parsing.spans import sentence
from posjax.experiment.tasks.parsing.spans import tree as restored
from posjax.experiment.tasks.parsing.tree import (
  Leaf,
  Node,
  built,
  escaped,
  events,
  parsed,
  read,
  stripped,
  write,
)

# Of the forms that treebanks have; the second one has chains, and words that are brackets.
WRITTEN = (
  '(TOP (S (NP (PRP I)) (VP (VBP see)) (. .)))',
  '(TOP (FRAG (NP (NP (NN art))) (PRN (-LRB- -LRB-) (NP (CD 1)) (-RRB- -RRB-))))',
  '( (S (NP-SBJ-1 (PRP I)) (VP (VBP see) (NP (-NONE- *T*-1)))))',
  '(ROOT (UH Yes) (. .))',
  '( (INTJ (UH Yes)) (. .))',
  '(S1 (UH Yes))',
  '(UH Yes)',
  '(NP (NP (NP (NN 10\u00a0000))))',
)

TRACED = '( (S (NP-SBJ-1 (-NONE- *)) (VP=2 (VB go) (S|X (NP (-NONE- *T*))) (-LRB- (X x)))))'


def at(text):
  return read((f'a.trees, line {n}', line) for n, line in enumerate(text.split('\n'), start=1))


def test_a_tree_is_its_labels_words_and_tags():
  assert parsed(WRITTEN[0]) == Node(
    'TOP',
    (
      Node(
        'S', (Node('NP', (Leaf('PRP', 'I'),)), Node('VP', (Leaf('VBP', 'see'),)), Leaf('.', '.'))
      ),
    ),
  )
  assert parsed(WRITTEN[2]).label == ''
  assert [*events(parsed('(A (B b) (C (D d)))'))] == [
    'A', Leaf('B', 'b'), 'C', Leaf('D', 'd'), None, None,
  ]  # fmt: skip


@pytest.mark.parametrize('text', WRITTEN)
def test_what_was_read_is_written_again_and_restored_from_spans(text):
  tree = parsed(text)
  assert write(tree) == text
  assert built(events(tree)) == tree
  assert restored(sentence(tree)) == tree


def test_generated_trees_come_back_from_brackets_and_from_spans():
  for tree, _ in generated.trees()[1][:100]:
    assert parsed(write(tree)) == restored(sentence(tree)) == tree


@pytest.mark.slow
@pytest.mark.skipif('POSJAX_TREES' not in os.environ, reason='POSJAX_TREES should name a folder')
def test_every_tree_of_the_files_of_a_folder_comes_back():
  paths = sorted(Path(os.environ['POSJAX_TREES']).glob('*.trees'))
  assert paths
  for path in paths:
    written = path.read_text().splitlines()
    trees = read(lines(path))
    assert [write(tree) for tree, _ in trees] == written
    assert all(restored(sentence(tree, where)) == tree for tree, where in trees)


def test_a_tree_may_stand_in_several_lines_and_has_the_place_of_its_first():
  printed = '( (S\n    (NP (PRP I))\n\n\t(VP (VBP see) )))\n\n(UH Yes) (UH No)\n(NP\r\n  (NN x))'
  found = at(printed)
  assert [write(tree) for tree, _ in found] == [
    '( (S (NP (PRP I)) (VP (VBP see))))',
    '(UH Yes)',
    '(UH No)',
    '(NP (NN x))',
  ]
  assert [where[-1] for _, where in found] == ['1', '6', '6', '7']
  assert at('\n \n') == []


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('(A (B b))\n(A (B b)))', r'line 2 should have trees in brackets, but has a bracket too many'),
    ('(A (B b))\nyes (A (B b))', r"line 2 .* has 'yes' outside of brackets"),
    (
      '(A (B b)\n(A (B b))',
      r'line 1 begins a tree with 1 closing brackets too few: a.trees, line 2',
    ),
    ('(A (B b))\n(A\n (B b', r'line 2 begins a tree with 2 .* too few: the file ends'),
    ('(A (B b))\n()', r'line 2 should have in each bracket a tag and a word, .* has nothing'),
    ('(A\n  ())', r'line 2 should have in each bracket a tag and a word'),
    ('(A (NP))', r"line 1 .* a tag and a word, or a label and constituents, but one has 'NP'"),
    ('( yes)', r"line 1 .* a tag and a word, .* has 'yes'"),
    ('(NN a b)', r"line 1 .* a tag and a word, .* has 'NN a b'"),
    ('(A ((B b)))', r'line 1 .* a label alone before its constituents, but one has none'),
    ('(A b (C c))', r"line 1 .* a label alone before its constituents, but one has 'A b'"),
    ('(A (C c) b)', r"line 1 .* a label alone before its constituents, but one has 'A b'"),
  ],
)
def test_what_is_no_tree_is_refused_with_its_line(text, message):
  with pytest.raises(ValueError, match=message):
    at(text)


def test_a_bracket_too_many_or_too_few_is_refused_with_its_line_wherever_it_stands():
  line = WRITTEN[2]
  wrong = [line[:at] + bracket + line[at:] for at in range(len(line) + 1) for bracket in '()']
  wrong += [line[:at] + line[at + 1 :] for at in range(len(line)) if line[at] in '()']
  for each in wrong:
    with pytest.raises(ValueError, match=r'^a.trees, line 2 (should have|begins a tree)'):
      at(f'{WRITTEN[0]}\n{each}\n{WRITTEN[1]}')


def test_one_tree_is_asked_for_and_no_other_number():
  with pytest.raises(ValueError, match=r'The tree should be one tree in brackets, but there are 2'):
    parsed('(A a) (B b)')
  with pytest.raises(ValueError, match=r'there are 0'):
    parsed(' ')


def test_what_could_not_be_read_again_is_not_written():
  for wrong in (Leaf('NN', '('), Leaf('NN', ''), Leaf('N N', 'x'), Node('A', (Node('', ()),))):
    with pytest.raises(ValueError, match=r'should have no brackets or spaces'):
      write(wrong)
  assert write(Leaf('NN', escaped('f(x)'))) == '(NN f-LRB-x-RRB-)'


@pytest.mark.parametrize(
  ('traces', 'functions', 'expected'),
  [
    (False, False, TRACED),
    (True, False, '( (S (VP=2 (VB go) (-LRB- (X x)))))'),
    (False, True, '( (S (NP (-NONE- *)) (VP (VB go) (S|X (NP (-NONE- *T*))) (-LRB- (X x)))))'),
    (True, True, '( (S (VP (VB go) (-LRB- (X x)))))'),
  ],
)
def test_traces_and_functions_are_taken_off_each_for_itself(traces, functions, expected):
  assert write(stripped(parsed(TRACED), traces=traces, functions=functions)) == expected


def test_tags_keep_their_hyphens_and_a_tree_of_traces_leaves_nothing():
  tags = parsed('(S (-LRB- -LRB-) (NN-X a-b))')
  assert stripped(tags, traces=True, functions=True) == tags
  assert stripped(parsed('(S (NP (-NONE- *)))'), traces=True, functions=False) is None


def test_no_tree_is_too_deep():
  text = '(A ' * 5000 + '(B b)' + ')' * 5000
  tree = parsed(text)
  assert write(tree) == text
  assert len(sentence(tree).spans[0].label) == 5000 * 3 - 2
