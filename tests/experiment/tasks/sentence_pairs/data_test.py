"""Sentence pairs from files, folders, TensorFlow Datasets and a generator, and what is refused."""

import collections

import numpy as np
import pytest

from posjax.experiment.data import tfds
from posjax.experiment.data.corpus import fold_of
from posjax.experiment.tasks.sentence_pairs import data as pairs
from posjax.experiment.tasks.sentence_pairs import near, ngrams
from posjax.experiment.tasks.sentence_pairs import tfds as reader

LINES = ''.join(f'{"ny"[n % 2]}\ta premise {n // 4}\ta hypothesis {n}\n' for n in range(200))


def write(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return f'file:{path}'


def test_a_folder_is_its_train_and_its_dev_file(tmp_path):
  write(tmp_path / 'train.tsv', b'\xef\xbb\xbfyes\ta b\tc \xc3\xa9\r\n-\td\te\nno\tf\tg\n')
  write(tmp_path / 'dev.tsv', 'no\th\ti\n-\tj\tk')
  data = pairs.read(f'file:{tmp_path}')
  assert [pair[:3] for pair in data.train] == [('yes', 'a b', 'c é'), ('no', 'f', 'g')]
  assert data.train[1].where == f'{tmp_path}/train.tsv, line 3'
  assert [pair[:3] for pair in data.held_out] == [('no', 'h', 'i')]
  assert data.labels == ('no', 'yes')
  assert data.left_out == {'training': 1, 'held-out': 1}
  assert data.cut == 'as given'


def test_where_nothing_is_held_out_a_tenth_of_the_premises_is(tmp_path):
  data = pairs.read(write(tmp_path / 'all.tsv', LINES))
  held_out = {pair.premise for pair in data.held_out}
  every = {f'a premise {n}' for n in range(50)}
  assert held_out == {premise for premise in every if fold_of(premise, 10) == 0}
  assert not held_out & {pair.premise for pair in data.train}
  assert len(data.train) + len(data.held_out) == 200
  assert 'by a hash of the premise' in data.cut


def test_an_empty_held_out_file_is_not_taken_for_none(tmp_path):
  write(tmp_path / 'train.tsv', LINES)
  write(tmp_path / 'dev.tsv', '')
  with pytest.raises(ValueError, match=r'dev\.tsv should hold what is held out, but it is empty: '):
    pairs.read(f'file:{tmp_path}')


def test_the_hash_changes_with_a_label_and_with_the_border_between_the_sentences(tmp_path):
  (tmp_path / 'dev.tsv').write_text('n\ta\tb\n')
  found = set()
  for line in ('y\ta b\tc', 'n\ta b\tc', 'y\ta\tb c', 'y\ta b\tc d'):
    write(tmp_path / 'train.tsv', f'{line}\nn\tx\ty\ny\tx\ty\n')
    found.add(pairs.read(f'file:{tmp_path}').sha256)
  assert len(found) == 4


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (
      b'y\ta\tb\nn\tb\xff\tc\n',
      'all.tsv, line 2 should be UTF-8, but invalid start byte at byte 3',
    ),
    ('y\ta\tb\nn\tc\n', r"line 2 should be a label, a premise and a hypothesis .*, but is 'n\\tc'"),
    ('y\ta\tb\tc\n', 'line 1 should be a label, a premise and a hypothesis'),
    ('y\ta\tb\n\nn\ta\tb\n', 'line 2 should be a label'),
    (' \ta\tb\n', 'line 1 should be a label'),
    (LINES + 'y\t \tb\n', 'line 201 should have a premise, but it has no word'),
    (LINES + 'y\ta\t\n', 'line 201 should have a hypothesis, but it has no word'),
    (LINES.replace('n\t', 'y\t'), "should have two labels or more, but has only 'y'"),
    ('', 'leaves no pair to learn from'),
  ],
)
def test_a_bad_line_is_named(tmp_path, content, message):
  with pytest.raises(ValueError, match=message):
    pairs.read(write(tmp_path / 'all.tsv', content))


def test_a_label_that_training_has_not_is_named(tmp_path):
  write(tmp_path / 'train.tsv', LINES)
  write(tmp_path / 'dev.tsv', 'y\ta\tb\nmaybe\ta\tb\n')
  with pytest.raises(ValueError, match=r"dev.tsv, line 2 has the label 'maybe', which .* n, y"):
    pairs.read(f'file:{tmp_path}')


@pytest.mark.parametrize(
  ('expression', 'error', 'message'),
  [
    ('file:/nowhere', FileNotFoundError, 'nothing is at /nowhere'),
    ('synthetic:near_2k', ValueError, "Unknown sentence pairs 'synthetic:near_2k'; did you mean"),
  ],
)
def test_an_expression_that_names_nothing_is_an_error(expression, error, message):
  with pytest.raises(error, match=message):
    pairs.read(expression)


# Generated pairs.


def aligned(pair):
  """Of the noun of the hypothesis, its distance to the mark in the premise: negative before it."""
  words = pair.premise.split()
  (noun,) = [word for word in pair.hypothesis.split() if word in near.NOUNS]
  assert words.count(noun) == words.count(near.MARK) == 1
  return words.index(noun) - words.index(near.MARK)


def test_the_label_of_a_generated_pair_is_the_distance_of_two_words():
  data = pairs.read('synthetic:near_1k')
  assert (len(data.train), len(data.held_out)) == (1000, 1000)
  found = collections.defaultdict(list)
  for pair in data.train + data.held_out:
    found[pair.label].append(aligned(pair))
  distances = {label: set(map(abs, signed)) for label, signed in found.items()}
  assert distances['contradiction'] == {1, near.NEAR}
  assert min(distances['entailment']) == near.FAR
  for signed in found.values():  # which of the two comes first tells nothing
    assert len(signed) == 1000
    np.testing.assert_allclose(np.mean(np.sign(signed)), 0, atol=4 / np.sqrt(1000))


def test_without_positions_no_more_than_half_of_the_generated_pairs_can_be_known():
  # Twins have the same bags of words, and so the same aligned words, but not the same label.
  data = pairs.read('synthetic:near_1k')
  for part in (data.train, data.held_out):
    by_bags = collections.defaultdict(collections.Counter)
    for pair in part:
      bags = [' '.join(sorted(side.split())) for side in (pair.premise, pair.hypothesis)]
      by_bags[tuple(bags)][pair.label] += 1
    assert sum(max(labels.values()) for labels in by_bags.values()) == len(part) // 2


def test_a_smaller_generated_set_is_the_beginning_of_a_larger_and_is_judged_alike():
  small, large = (pairs.read(f'synthetic:near_{size}') for size in ('1k', '4k'))
  cut = lambda pair: pair[:3]
  assert [*map(cut, small.train)] == [*map(cut, large.train)][:1000]
  assert [*map(cut, small.held_out)] == [*map(cut, large.held_out)]
  assert not {pair.premise for pair in large.train} & {pair.premise for pair in large.held_out}
  assert near.SIZES['near'] == near.SIZES['near_4k'] == len(large.train)


# Character n-grams.


def test_the_ngrams_of_a_word_are_those_of_its_letters_between_marks():
  known = ngrams.learn(['cat', 'cart'], (2, 3), 9)
  names = {number: name for name, number in known.ids.items()}
  told = [[names.get(i, i) for i in row] for row in known.encode(['cat', 'dart', 'x']).tolist()]
  assert told[0] == ['<c', 'ca', 'at', 't>', '<ca', 'cat', 'at>', 0, 0]
  assert told[1] == [1, 1, 'ar', 'rt', 't>', 1, 1, 'art', 'rt>']
  assert told[2] == [1, 1, 1, 0, 0, 0, 0, 0, 0]
  assert known.size == len(names) + 2
  assert known.longer(['cat', 'dart', 'carts', 'carts']) == 1
  assert ngrams.learn(['a'], (5,), 2).ids == {'<a>': 2}  # shorter than an n-gram
  nothing = ngrams.learn(['cat'], (), 9)
  assert (nothing.size, nothing.encode(['cat', 'dog']).shape) == (0, (2, 0))
  with pytest.raises(ValueError, match=r'must rise, but got \(3, 2\)'):
    ngrams.learn(['cat'], (3, 2), 9)


# TensorFlow Datasets.


@pytest.mark.parametrize(
  ('name', 'labels', 'sides'),
  [
    ('snli', {'entailment', 'neutral', 'contradiction'}, ('premise', 'hypothesis')),
    ('multi_nli', {'entailment', 'neutral', 'contradiction'}, ('premise', 'hypothesis')),
    ('glue/qqp', {'duplicate', 'not_duplicate'}, ('question1', 'question2')),
    ('sci_tail', {'entails', 'neutral'}, ('premise', 'hypothesis')),
    ('glue/qnli#question+sentence', {'entailment', 'not_entailment'}, ('question', 'sentence')),
  ],
)
def test_data_sets_are_read_side_by_side_and_their_test_splits_are_not(name, labels, sides):
  datasets = pytest.importorskip('tensorflow_datasets')
  with datasets.testing.mock_data(num_examples=40):
    data = pairs.read(f'tfds:{name}')
    source = datasets.builder(name.partition('#')[0]).as_data_source('train')
    first = next(pair for pair in data.train + data.held_out if pair.where.endswith(' 0'))
    texts = [source[0][side] for side in sides]
  assert set(data.labels) <= labels
  assert len(data.labels) > 1
  assert {pair.where.split(', ')[1] for pair in data.train + data.held_out} <= {
    'split train',
    'split validation',
    'split validation_matched',
  }
  decoded = [text if isinstance(text, str) else bytes(text).decode() for text in texts]
  assert [first.premise, first.hypothesis] == decoded


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('imdb_reviews', 'should have two texts named premise and hypothesis, or .*, but has text'),
    ('glue/qqp#question1+nope', r'named #question1\+nope, but has question1, question2: name two'),
    ('glue/qqp#question1', 'should have two texts named #question1'),
    ('glue/stsb', 'should have one label, but has none'),
  ],
)
def test_features_that_are_not_two_texts_and_one_label_are_an_error(name, message):
  datasets = pytest.importorskip('tensorflow_datasets')
  with (
    datasets.testing.mock_data(num_examples=3),
    pytest.raises(ValueError, match=message),
  ):
    pairs.read(f'tfds:{name}')


def test_pairs_that_tfds_prepared_from_a_file_are_those_of_the_file(tmp_path, monkeypatch):
  datasets = pytest.importorskip('tensorflow_datasets')
  pytest.importorskip('array_record')
  from_file = pairs.read(write(tmp_path / 'all.tsv', LINES))

  class OwnPairs(datasets.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = datasets.core.Version('1.0.0')

    def _info(self):
      of = datasets.features
      texts = {'premise': of.Text(), 'hypothesis': of.Text()}
      features = of.FeaturesDict({**texts, 'label': of.ClassLabel(names=['n', 'y'])})
      return datasets.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
      return {'train': self._generate_examples()}

    def _generate_examples(self):
      for number, line in enumerate((tmp_path / 'all.tsv').read_text('utf-8').splitlines()):
        label, premise, hypothesis = line.split('\t')
        yield number, {'premise': premise, 'hypothesis': hypothesis, 'label': label}

  OwnPairs(data_dir=str(tmp_path), file_format='array_record').download_and_prepare()
  monkeypatch.setattr(datasets.core.constants, 'DATA_DIR', str(tmp_path))
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  prepared = pairs.read('tfds:own_pairs')
  for part in ('train', 'held_out'):
    mine, theirs = getattr(prepared, part), getattr(from_file, part)
    assert [pair[:3] for pair in mine] == [pair[:3] for pair in theirs]
  assert prepared.labels == from_file.labels


def test_an_example_whose_label_is_minus_one_has_none_and_another_number_is_an_error(monkeypatch):
  datasets = pytest.importorskip('tensorflow_datasets')
  given = {'premise': b'a', 'hypothesis': b'b'}
  source = [{**given, 'label': label} for label in (0, -1, 2, 0, -1)]
  monkeypatch.setattr(tfds, 'examples', lambda builder, dataset, splits: source)
  with datasets.testing.mock_data(num_examples=1):
    train, held_out = reader.read('snli')
    assert not held_out
    assert [label for label, *_ in train] == ['entailment', '', 'contradiction', 'entailment', '']
    source[3] = {**given, 'label': 3}
    with pytest.raises(ValueError, match=r'example 3 should have a label in \[-1, 3\), but has 3'):
      reader.read('snli')
    source[3] = {**given, 'hypothesis': b'\xff', 'label': 0}
    with pytest.raises(ValueError, match='example 3 should be UTF-8, but invalid start byte'):
      reader.read('snli')
