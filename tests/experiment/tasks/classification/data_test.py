"""Texts with labels from files, folders and TensorFlow Datasets, and how they are cut."""

import collections
import hashlib

import numpy as np
import pytest

from posjax.experiment.data.corpus import fold_of
from posjax.experiment.tasks.classification import data as labelled
from posjax.experiment.tasks.classification import order

tensorflow_datasets = pytest.importorskip('tensorflow_datasets')

LINES = ''.join(f'{("pos", "neg")[n % 2]}\ttext number {n // 2}\n' for n in range(200))


def write(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return f'file:{path}'


def test_a_folder_is_its_train_and_its_dev_file(tmp_path):
  write(tmp_path / 'train.tsv', b'\xef\xbb\xbfpos\tgood \xc3\xa9\r\nneg\tbad \xe2\x80\xa8end\r\n')
  write(tmp_path / 'dev.tsv', 'neg\tworse')
  write(tmp_path / 'train.fine.tsv', 'a\tb\n')
  write(tmp_path / 'test.tsv', 'unseen\tnever read\n')
  data = labelled.read(f'file:{tmp_path}')
  assert [example[:2] for example in data.train] == [('pos', 'good é'), ('neg', 'bad \u2028end')]
  assert data.train[0].where == f'{tmp_path}/train.tsv, line 1'
  assert [example[:2] for example in data.held_out] == [('neg', 'worse')]
  assert data.labels == ('neg', 'pos')
  assert data.cut == 'as given'


def test_a_line_ends_at_a_line_feed_only(tmp_path):
  content = ''.join(f'{label}\tone\u2028{n}\x0bthree\x85\n' for n in range(50) for label in 'ab')
  data = labelled.read(write(tmp_path / 'a.tsv', content), folds=2)
  assert {example.text for example in data.train + data.held_out} == {
    f'one\u2028{n}\x0bthree\x85' for n in range(50)
  }


def test_folds_partition_the_texts_and_keep_equal_ones_together(tmp_path):
  expression = write(tmp_path / 'all.tsv', LINES + 'pos\tText  NUMBER 3\nneg\ttext number 3 \n')
  seen = collections.Counter()
  for fold in range(10):
    data = labelled.read(expression, folds=10, fold=fold)
    assert len(data.train) + len(data.held_out) == 202
    seen.update(example.where for example in data.held_out)
    words = [
      {' '.join(e.text.lower().split()) for e in part} for part in (data.train, data.held_out)
    ]
    assert not words[0] & words[1]
    assert data.cut == f'fold {fold} of 10'
  assert set(seen.values()) == {1}
  assert len(seen) == 202


def test_folds_are_about_equally_large_and_do_not_depend_on_other_texts():
  folds = [fold_of(f'text number {n}', 10) for n in range(5000)]
  counts = np.bincount(folds, minlength=10)
  assert abs(counts - 500).max() < 4 * np.sqrt(500 * 0.9)
  # SHA-256 of the words, by hand.
  for text, words in (('It is  GOOD!', 'it is good !'), ('a', 'a')):
    digest = int(hashlib.sha256(words.encode()).hexdigest()[:16], 16)
    assert fold_of(text, 7) == digest % 7


def test_cross_validation_is_over_train_and_dev_together(tmp_path):
  write(tmp_path / 'train.tsv', LINES)
  write(tmp_path / 'dev.tsv', 'pos\tanother\nneg\tone more\n')
  data = labelled.read(f'file:{tmp_path}', folds=3, fold=2)
  assert len(data.train) + len(data.held_out) == 202


def test_without_a_dev_file_a_tenth_of_the_training_texts_is_held_out(tmp_path):
  data = labelled.read(write(tmp_path / 'all.tsv', LINES))
  assert {example.text for example in data.held_out} == {
    f'text number {n}' for n in range(100) if fold_of(f'text number {n}', 10) == 0
  }
  assert data.cut == 'one in 10 of the training texts, by hash'


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (
      b'pos\tgood\nneg\tb\xffd\n',
      'all.tsv, line 2 should be UTF-8, but invalid start byte at byte 5',
    ),
    ('pos\tgood\nneg\n', "line 2 should be a label, a tab and a text, but is 'neg'"),
    ('pos\tgood\tthree\n', 'line 1 should be a label'),
    (' \tgood\n', 'line 1 should be a label'),
    ('pos\tgood\n\nneg\tbad\n', 'line 2 should be a label'),
    ('pos\tgood\nneg\t \n', 'line 2 should have a text, but it has no word'),
    (LINES.replace('neg', 'pos'), "should have two labels or more, but has only 'pos'"),
    ('', 'leaves no text to learn from'),
  ],
)
def test_a_bad_line_is_named(tmp_path, content, message):
  with pytest.raises(ValueError, match=message):
    labelled.read(write(tmp_path / 'all.tsv', content))


def test_a_label_that_training_has_not_is_named(tmp_path):
  write(tmp_path / 'train.tsv', LINES)
  write(tmp_path / 'dev.tsv', 'pos\tfine\nneutral\tso so\n')
  with pytest.raises(
    ValueError, match=r"dev.tsv, line 2 has the label 'neutral', which .* neg, pos"
  ):
    labelled.read(f'file:{tmp_path}')


@pytest.mark.parametrize(
  ('expression', 'error', 'message'),
  [
    ('file:/nowhere', FileNotFoundError, 'nothing is at /nowhere'),
    ('file:', ValueError, "Unknown labelled texts 'file:'; did you mean 'file:PATH'"),
    ('python_docs', ValueError, "Unknown labelled texts 'python_docs'. There are: file:PATH"),
    ('synthetic:copy', ValueError, "did you mean 'synthetic:order'"),
  ],
)
def test_an_expression_that_names_nothing_is_an_error(expression, error, message):
  with pytest.raises(error, match=message):
    labelled.read(expression)


def test_a_folder_without_or_with_two_training_files_is_an_error(tmp_path):
  write(tmp_path / 'dev.tsv', LINES)
  with pytest.raises(FileNotFoundError, match=r'should hold a train\.tsv, but holds dev\.tsv'):
    labelled.read(f'file:{tmp_path}')
  write(tmp_path / 'train.tsv', LINES)
  write(tmp_path / 'train.txt', LINES)
  with pytest.raises(ValueError, match=r'should hold one of train\.tsv and train\.txt'):
    labelled.read(f'file:{tmp_path}')


@pytest.mark.parametrize(('folds', 'fold'), [(1, 0), (-1, 0), (10, 10), (10, -1), (0, 1)])
def test_a_fold_that_is_none_is_an_error(folds, fold):
  with pytest.raises(
    ValueError, match=rf'0 <= fold < folds, or both 0, but got {fold} and {folds}'
  ):
    labelled.read('synthetic:order', folds, fold)


def test_the_generated_label_is_the_order_of_two_words_and_nothing_else():
  train, held_out = order.examples()
  labels = collections.Counter(label for label, _, _ in train)
  assert abs(labels['before'] - labels['after']) < 4 * np.sqrt(2048)
  for label, text, _ in train + held_out:
    words = text.split()
    assert words.count('one') == words.count('two') == 1
    assert 4 <= len(words) <= 16
    assert (label == 'before') == (words.index('one') < words.index('two'))


# TensorFlow Datasets.


@pytest.fixture
def _nothing_prepared(tmp_path, monkeypatch):
  monkeypatch.setattr(tensorflow_datasets.core.constants, 'DATA_DIR', str(tmp_path))
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))


@pytest.mark.parametrize(
  ('name', 'labels'),
  [
    ('glue/sst2', {'negative', 'positive'}),
    ('trec#label-coarse', {'DESC', 'ENTY', 'ABBR', 'HUM', 'NUM', 'LOC'}),
    ('imdb_reviews', {'neg', 'pos'}),
    ('ag_news_subset#description', {'World', 'Sports', 'Business', 'Sci/Tech'}),
  ],
)
def test_data_sets_are_read_and_their_test_splits_are_not(name, labels):
  with tensorflow_datasets.testing.mock_data(num_examples=60):  # which has no validation split
    data = labelled.read(f'tfds:{name}')
  assert set(data.labels) <= labels
  assert len(data.labels) > 1
  assert len(data.train) + len(data.held_out) == 60
  assert data.held_out
  assert {e.where.split(', ')[1] for e in data.train + data.held_out} == {'split train'}


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('trec', 'should have one label, but has label-coarse, label-fine: name one'),
    ('ag_news_subset', 'should have one text, but has description, title: name one'),
    ('lm1b', 'should have one label, but has none'),
    ('glue/sst2#nope', "has no feature 'nope'; it has idx, label, sentence"),
    ('glue/sst2#idx', "'idx' of tfds:glue/sst2 is neither a text nor a label"),
  ],
)
def test_features_that_are_not_one_text_and_one_label_are_an_error(name, message):
  with (
    tensorflow_datasets.testing.mock_data(num_examples=3),
    pytest.raises(ValueError, match=message),
  ):
    labelled.read(f'tfds:{name}')


def opinions(folder, splits, label=lambda index: index % 2):
  """A prepared data set on disk, as `download_and_prepare` leaves it."""

  class Opinions(tensorflow_datasets.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tensorflow_datasets.core.Version('1.0.0')

    def _info(self):
      features = tensorflow_datasets.features
      kinds = {'text': features.Text(), 'label': features.ClassLabel(names=['bad', 'good'])}
      return tensorflow_datasets.core.DatasetInfo(
        builder=self, features=features.FeaturesDict(kinds)
      )

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(split, count) for split, count in splits.items()}

    def _generate_examples(self, split, count):
      for index in range(count):
        yield index, {'text': f'{split} {index} é', 'label': label(index)}

  Opinions(data_dir=str(folder), file_format='array_record').download_and_prepare()


@pytest.mark.usefixtures('_nothing_prepared')
def test_a_prepared_data_set_is_read_from_its_files(tmp_path):
  pytest.importorskip('array_record')
  opinions(tmp_path, {'train': 4, 'validation': 2, 'test': 3})
  data = labelled.read('tfds:opinions')
  named = lambda split, count: {
    (('bad', 'good')[index % 2], f'{split} {index} é') for index in range(count)
  }
  assert {example[:2] for example in data.train} == named('train', 4)
  assert {example[:2] for example in data.held_out} == named('validation', 2)


@pytest.mark.usefixtures('_nothing_prepared')
def test_an_example_without_a_label_is_an_error(tmp_path):
  pytest.importorskip('array_record')
  opinions(tmp_path, {'train': 2}, label=lambda index: -1)
  with pytest.raises(ValueError, match=r'example 0 should have a label in \[0, 2\), but has -1'):
    labelled.read('tfds:opinions')
