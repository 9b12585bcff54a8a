"""Trees from files and generated ones, how they are cut, and what is refused."""

import pytest

from posjax.experiment.data.corpus import fold_of
from posjax.experiment.data.spelling import Spelling
from posjax.experiment.tasks.parsing import data as trees
from posjax.experiment.tasks.parsing.baseline import right_branching
from posjax.experiment.tasks.parsing.facts import facts
from posjax.experiment.tasks.parsing.generated import trees as generated
from posjax.experiment.tasks.parsing.vocabulary import learn

TREE = '(TOP (S (NP-SBJ (PRP I)) (VP (VBP see) (NP (-NONE- *)))))\n'
SPELLING = Spelling(longest_word=4, lower=True, zero_digits=False)
OTHER = '(TOP (FRAG (NP (NN art)) (. .)))\n'


def test_a_folder_is_its_train_and_its_dev_file(tmp_path):
  (tmp_path / 'train.trees').write_text(TREE + OTHER + '(TOP (UH Yes))')
  (tmp_path / 'dev.trees').write_text(OTHER.replace('FRAG', 'X') * 2)
  (tmp_path / 'train.more.trees').write_text('never read')
  data = trees.read(f'file:{tmp_path}')
  assert [one.words for one in data.train] == [('I', 'see'), ('art', '.'), ('Yes',)]
  assert data.train[0].spans == ((0, 2, 'S'), (0, 1, 'NP'), (1, 2, 'VP'))
  assert data.train[2].where == f'{tmp_path}/train.trees, line 3'
  assert data.labels == ('NP', 'FRAG', 'S', 'TOP', 'VP')
  assert data.unseen == {'X': 2}
  as_it_is = trees.read(f'file:{tmp_path}', traces=False, functions=False)
  assert as_it_is.train[0].words == ('I', 'see', '*')
  assert as_it_is.train[0].spans[1] == (0, 1, 'NP-SBJ')
  assert (as_it_is.stripped, as_it_is.sha256 == data.sha256) == ('nothing', False)


def test_facts_count_what_was_read(tmp_path):
  (tmp_path / 'train.trees').write_text(TREE + OTHER + '(TOP (UH Yes))')
  (tmp_path / 'dev.trees').write_text(OTHER.replace('FRAG', 'X') * 2)
  data = trees.read(f'file:{tmp_path}')
  known = learn(
    data.train, data.labels, min_count=1, characters=False, tags=False, spelling=SPELLING
  )
  coded = (known.encode_all(part) for part in (data.train, data.held_out))
  found = facts(data, known, *coded, 8)
  assert found['sentences'] == '3 in training, 2 held out (as given)'
  assert found['constituents'] == '6 in training, 4 held out, a chain counted as one'
  assert found['unseen labels'].startswith('2 held-out constituents')
  assert found['unseen labels'].endswith(': X')
  assert found['outermost bracket'].startswith('1 in training, 0 held out hold no single')
  assert found['taken off'] == 'traces and function tags and indices'


def test_the_held_out_file_may_be_named(tmp_path):
  files = [tmp_path / name for name in ('train.short.trees', 'dev.short.trees', 'dev.trees')]
  for path, content in zip(files, (TREE, OTHER, TREE), strict=True):
    path.write_text(content)
  data = trees.read(f'file:{files[0]}', held_out=str(files[1]))
  assert (data.train[0].words, data.held_out[0].words) == (('I', 'see'), ('art', '.'))
  with pytest.raises(ValueError, match=r'held_out should be another file than'):
    trees.read(f'file:{files[0]}', held_out=str(files[0]))
  with pytest.raises(FileNotFoundError, match=r'held_out should be a file of trees'):
    trees.read(f'file:{files[0]}', held_out=str(tmp_path))
  files[2].write_text('')
  with pytest.raises(ValueError, match=r'dev\.trees should hold what is held out, but it is empty'):
    trees.read(f'file:{files[0]}', held_out=str(files[2]))
  with pytest.raises(FileNotFoundError, match=r'should hold a train.trees, but holds dev'):
    trees.read(f'file:{tmp_path}')
  with pytest.raises(FileNotFoundError, match=r'nothing is at'):
    trees.read(f'file:{tmp_path / "none"}')


def test_without_held_out_trees_a_hash_of_the_words_chooses_them(tmp_path):
  path = tmp_path / 'all.trees'
  path.write_text(''.join(f'(S (NP (NN word{n})) (. .))\n' for n in range(40)) * 2)
  data = trees.read(f'file:{path}')
  assert data.held_out == tuple(
    one for one in (*data.train, *data.held_out) if fold_of(' '.join(one.words), 10) == 0
  )
  assert len(data.train) + len(data.held_out) == 80
  assert data.cut == 'one in 10 of the training sentences, by a hash of the words'


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    ('', r'leaves no tree to learn from'),
    (TREE + '(S (NP (-NONE- *)))', r'line 2 should have a word, but has traces alone'),
    (TREE + '(S (A a)', r'line 2 begins a tree with 1 closing brackets too few'),
    (TREE + '(A::B (A a) (A a))', r'line 2 should have labels without ::'),
    (b'(A \xff)', r'line 1 should be UTF-8'),
  ],
)
def test_a_file_that_is_none_of_trees_is_refused_with_its_line(tmp_path, content, message):
  path = tmp_path / 'all.trees'
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(ValueError, match=message):
    trees.read(f'file:{path}')


def test_generated_trees_hold_out_their_own_and_are_all_different():
  with pytest.raises(ValueError, match=r'synthetic:brackets holds out trees of its own'):
    trees.read('synthetic:brackets', held_out='dev.trees')
  train, held_out = generated()
  assert (len(train), len(held_out)) == (512, 128)
  # Trees follow from words: equal words would have equal trees, and no two trees are equal.
  data = trees.read('synthetic:brackets')
  assert len({one.words for one in (*data.train, *data.held_out)}) == 640
  assert not data.unseen
  assert {'S::VP', 'SBAR', 'PP'} <= set(data.labels)


def test_the_baseline_has_a_bracket_from_each_word_to_the_end(tmp_path):
  path = tmp_path / 'train.trees'
  path.write_text(
    '(TOP (S (NP (A a) (A b)) (VP (A c) (NP (A d) (A e))) (. .)))\n'
    '(TOP (S (VP (A c) (VP (A d) (A e)))))\n(TOP (UH (UH x)))'
  )
  (tmp_path / 'dev.trees').write_text(OTHER)
  data = trees.read(f'file:{tmp_path}')
  # Inner constituents at the end: two VP and an NP; an NP elsewhere is not counted.
  assert right_branching(data.train, [1, 3]) == [((0, 1, 'S'),), ((0, 3, 'S'), (1, 3, 'VP'))]
