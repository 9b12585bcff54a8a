"""Parallel text of folders and TensorFlow Datasets: which pairs there are, what is refused."""

import pytest

from posjax.experiment.data.corpus import fold_of
from posjax.experiment.tasks.translation import data as parallel

tensorflow_datasets = pytest.importorskip('tensorflow_datasets')

DE = ''.join(f'satz {n // 2}\n' for n in range(200))
EN = ''.join(f'sentence {n}\n' for n in range(200))


def write(folder, **files):
  """A folder of files; `train_de` is train.de."""
  for name, content in files.items():
    stem, _, language = name.rpartition('_')
    content = content if isinstance(content, bytes) else content.encode()
    (folder / f'{stem}.{language}').write_bytes(content)
  return folder


def read(folder, **changes):
  return parallel.read(f'file:{folder}', **{'source': 'de', 'target': 'en', **changes})


def sides(pairs):
  return [pair[:2] for pair in pairs]


def test_line_n_of_one_file_translates_line_n_of_the_other(tmp_path):
  write(
    tmp_path,
    train_de=b'\xef\xbb\xbfein  Haus \r\nzwei\xe2\x80\xa8\r\n',
    train_en='a  house\ntwo',
    val_de='drei\n\n',
    val_en='three\n\n',
    test_de='unseen\n',
  )
  data = read(tmp_path)
  assert sides(data.train) == [('ein  Haus ', 'a  house'), ('zwei\u2028', 'two')]
  assert data.train[1].where == f'{tmp_path}/train.de, line 2'
  assert sides(data.held_out) == [('drei', 'three'), ('', '')]  # a blank line is a sentence
  assert data.cut == 'val.de and val.en'
  assert (data.source, data.target) == ('de', 'en')
  swapped = read(tmp_path, source='en', target='de')
  assert sides(swapped.train) == [pair[::-1] for pair in sides(data.train)]
  assert swapped.sha256 != data.sha256


def test_training_leaves_out_and_counts_empty_sides_and_what_is_held_out_loses_nothing(tmp_path):
  write(tmp_path, train_de='a\n\nc\n \n', train_en='A\nB\n\t\nD\n', val_de='\ny\n', val_en='X\n \n')
  data = read(tmp_path)
  assert sides(data.train) == [('a', 'A')]
  assert data.left_out == {'an empty side': 3}
  assert sides(data.held_out) == [('', 'X'), ('y', ' ')]


def test_other_files_can_be_held_out_by_their_name(tmp_path):
  write(
    tmp_path, train_de=DE, train_en=EN, val_de='v\n', val_en='v\n', test_de='t\n', test_en='T\n'
  )
  assert sides(read(tmp_path, held_out='test').held_out) == [('t', 'T')]
  assert sides(read(tmp_path).held_out) == [('v', 'v')]


def test_an_empty_name_of_held_out_files_is_not_taken_for_none(tmp_path):
  with pytest.raises(
    ValueError, match="held_out must name files or a split, or be None, but got ''"
  ):
    read(tmp_path, held_out='')


def test_where_nothing_is_held_out_one_source_in_ten_is_and_all_that_equal_it(tmp_path):
  data = read(write(tmp_path, train_de=DE, train_en=EN))
  sources = {f'satz {n}' for n in range(100)}
  held_out = {pair.source for pair in data.held_out}
  assert held_out == {source for source in sources if fold_of(source, 10) == 0}
  assert {pair.source for pair in data.train} == sources - held_out
  assert len(data.train) + len(data.held_out) == 200
  assert data.cut == 'one in 10 of the training pairs, by a hash of the source'


def test_the_digest_is_of_both_sides_of_both_splits(tmp_path):
  files = {'train_de': 'a\nb\n', 'train_en': 'A\nB\n', 'val_de': 'c\n', 'val_en': 'C\n'}
  digests = {read(write(tmp_path, **files)).sha256}
  for name, content in files.items():
    digests.add(read(write(tmp_path, **{**files, name: content.swapcase()})).sha256)
  assert len(digests) == 5
  write(tmp_path, train_de='a\tb\n', train_en='c\n', val_de='c\n', val_en='C\n')
  one = read(tmp_path).sha256
  assert one != read(write(tmp_path, train_de='a\n', train_en='b\tc\n')).sha256


@pytest.mark.parametrize(
  ('files', 'message'),
  [
    (
      {'train_de': 'a\nb\n', 'train_en': 'A\nB\nC\n'},
      r'train\.de has 2 lines and .*train\.en has 3: each line of one should be the translation',
    ),
    ({'val_de': 'a\n', 'val_en': 'A\n\n'}, r'val\.de has 1 lines and .*val\.en has 2'),
    (
      {'train_en': b'fine\nb\xffd\n', 'train_de': 'gut\nnicht\n'},
      r'train\.en, line 2 should be UTF-8, but invalid start byte at byte 1\.',
    ),
    ({'dev_de': 'a\n', 'val_de': 'b\n'}, 'held-out files named dev and val: name one of them'),
    ({'train_de': '\n', 'train_en': 'A\n'}, 'leaves no pair to learn from'),
    ({'train_de': '', 'train_en': ''}, 'leaves no pair to learn from'),
    ({'val_de': '', 'val_en': ''}, 'leaves no pair to hold out'),
  ],
)
def test_files_that_are_no_parallel_text_are_refused(tmp_path, files, message):
  write(tmp_path, **{'train_de': 'a\n', 'train_en': 'A\n', **files})
  with pytest.raises(ValueError, match=message):
    read(tmp_path)


@pytest.mark.parametrize(
  ('files', 'changes', 'message'),
  [
    ({}, {}, r'should hold train\.de and train\.en, but holds nothing\.'),
    ({'train_de': DE}, {}, r'should hold train\.en, but holds train\.de\.'),
    (
      {'train_de': 'a', 'train_en': 'A', 'val_en': 'B'},
      {},
      r'should hold val\.de, but holds train\.de, train\.en, val\.en\.',
    ),
    (
      {'train_de': 'a', 'train_en': 'A'},
      {'held_out': 'test'},
      r'should hold test\.de and test\.en, but holds train\.de, train\.en\.',
    ),
  ],
)
def test_a_file_that_is_missing_is_named(tmp_path, files, changes, message):
  write(tmp_path, **files)
  with pytest.raises(FileNotFoundError, match=message):
    read(tmp_path, **changes)


def test_a_path_that_is_no_folder_is_refused(tmp_path):
  write(tmp_path, train_de=DE)
  for name, message in (('nowhere', 'nowhere is not there'), ('train.de', r'train\.de is a file')):
    with pytest.raises(FileNotFoundError, match=rf'train\.de and train\.en, but .*{message}'):
      read(tmp_path / name)


@pytest.mark.parametrize(
  ('expression', 'changes', 'message'),
  [
    ('file:x', {'source': 'de', 'target': 'de'}, "needs two languages .* but got 'de' and 'de'"),
    ('file:x', {'source': 'de'}, "but got 'de' and None"),
    ('tfds:wmt14_translate/de-en', {}, 'but got None and None'),
    (
      'synthetic:reversed',
      {'source': 'de', 'target': 'en'},
      "must be None, but got 'de', 'en' and",
    ),
    ('synthetic:reversed', {'held_out': 'val'}, "must be None, but got None, None and 'val'"),
    ('synthetic:reverse', {}, "Unknown parallel text .*; did you mean 'synthetic:reversed'"),
    ('multi30k', {}, 'There are: file:PATH, tfds:NAME, synthetic:reversed, synthetic:reordered, '),
  ],
)
def test_an_expression_that_names_no_parallel_text_is_refused(expression, changes, message):
  with pytest.raises(ValueError, match=message):
    parallel.read(expression, **changes)


def test_what_is_learned_from_cannot_be_held_out(tmp_path):
  write(tmp_path, train_de=DE, train_en=EN)
  with pytest.raises(ValueError, match="must name other files than 'train'"):
    read(tmp_path, held_out='train')
  with (
    tensorflow_datasets.testing.mock_data(num_examples=3),
    pytest.raises(ValueError, match="must name another split than 'train'"),
  ):
    parallel.read('tfds:wmt14_translate/de-en', source='de', target='en', held_out='train')


# TensorFlow Datasets.


@pytest.mark.parametrize('name', ['wmt14_translate', 'wmt16_translate'])
def test_published_data_sets_are_read_by_language(name):
  with tensorflow_datasets.testing.mock_data(num_examples=30):
    data = parallel.read(f'tfds:{name}/de-en', source='de', target='en', held_out='validation')
  assert len(data.train) + data.left_out['an empty side'] == 30
  assert {pair.where.split(', ')[1] for pair in data.train} == {'split train'}
  assert len(data.held_out) == 30
  assert {pair.where.split(', ')[1] for pair in data.held_out} == {'split validation'}
  assert data.cut == 'split validation'


def test_a_language_that_a_data_set_has_not_is_an_error():
  with (
    tensorflow_datasets.testing.mock_data(num_examples=3),
    pytest.raises(ValueError, match="wmt14_translate/de-en has no text in 'fr', but has de, en"),
  ):
    parallel.read('tfds:wmt14_translate/de-en', source='fr', target='en')


def captions(folder, splits):
  """A prepared data set on disk, as `download_and_prepare` leaves it."""

  class Captions(tensorflow_datasets.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tensorflow_datasets.core.Version('1.0.0')

    def _info(self):
      languages = tensorflow_datasets.features.Translation(languages=('de', 'en'))
      return tensorflow_datasets.core.DatasetInfo(
        builder=self, features=languages, supervised_keys=('de', 'en')
      )

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(split, count) for split, count in splits.items()}

    def _generate_examples(self, split, count):
      for index in range(count):
        yield index, {'de': f'{split} größer {index}' if index else '', 'en': f'{split} {index}'}

  Captions(data_dir=str(folder), file_format='array_record').download_and_prepare()


@pytest.mark.parametrize('held_out', ['validation', None])
def test_a_prepared_data_set_is_read_from_its_files(tmp_path, monkeypatch, held_out):
  pytest.importorskip('array_record')
  monkeypatch.setattr(tensorflow_datasets.core.constants, 'DATA_DIR', str(tmp_path))
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  captions(tmp_path, {'train': 40, 'test': 3} | ({held_out: 2} if held_out else {}))
  data = parallel.read('tfds:captions', source='de', target='en')
  named = lambda split, count: {(f'{split} größer {n}', f'{split} {n}') for n in range(1, count)}
  assert data.left_out == {'an empty side': 1}
  if held_out:
    assert {*sides(data.train)} == named('train', 40)
    assert {*sides(data.held_out)} == named('validation', 2) | {('', 'validation 0')}
  else:
    assert {*sides(data.train), *sides(data.held_out)} == named('train', 40)
    assert data.held_out
  assert parallel.read('tfds:captions', source='de', target='en') == data
  assert (
    parallel.read('tfds:captions', source='de', target='en', held_out='test').cut == 'split test'
  )
  with pytest.raises(ValueError, match='should have a split named dev, but has train, test'):
    parallel.read('tfds:captions', source='de', target='en', held_out='dev')
