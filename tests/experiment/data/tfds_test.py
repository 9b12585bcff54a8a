"""TensorFlow Datasets without TensorFlow, without files and without a network."""

import numpy as np
import pytest

from posjax.experiment.data import tfds
from posjax.experiment.tasks.language_modelling.data import read

tensorflow_datasets = pytest.importorskip('tensorflow_datasets')


@pytest.fixture
def _nothing_prepared(tmp_path, monkeypatch):
  monkeypatch.setattr(tensorflow_datasets.core.constants, 'DATA_DIR', str(tmp_path))
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))


@pytest.fixture
def _invented():
  with tensorflow_datasets.testing.mock_data(num_examples=7):
    yield


@pytest.mark.usefixtures('_invented')
@pytest.mark.parametrize(
  'name', ['tiny_shakespeare', 'lm1b', 'imdb_reviews/plain_text', 'glue/sst2#sentence']
)
def test_examples_are_documents(name):
  text = read(f'tfds:{name}')
  assert text.name == f'tfds:{name}'
  assert len(text.train) == 7
  assert len(text.held_out) == 7
  assert all(type(document) is bytes and document for document in text.train)


@pytest.mark.usefixtures('_invented')
def test_a_feature_that_is_missing_or_no_text_is_an_error_that_names_it():
  with pytest.raises(ValueError, match="no feature 'text': name one of idx, label, sentence as"):
    read('tfds:glue/sst2')
  with pytest.raises(ValueError, match="Feature 'label' of tfds:glue/sst2 should be text, but"):
    read('tfds:glue/sst2#label')


@pytest.mark.usefixtures('_nothing_prepared')
def test_what_was_not_prepared_is_an_error_that_says_how_to(tmp_path):
  with pytest.raises(
    FileNotFoundError, match='tfds:lm1b is not prepared as array_record'
  ) as caught:
    read('tfds:lm1b')
  assert "tfds.builder('lm1b', file_format='array_record').download_and_prepare()" in str(
    caught.value
  )


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('tiny_shakespear', "is named 'tiny_shakespear'; did you mean tiny_shakespeare"),
    ('nothing_of_the_kind', "none of the [0-9]+ data sets .* is named 'nothing_of_the_kind'"),
    ('glue/nope', 'tfds:glue/nope cannot be read: .*nope not found'),
  ],
)
def test_an_unknown_data_set_is_an_error_of_one_line(name, message):
  with pytest.raises(ValueError, match=message) as caught:
    read(f'tfds:{name}')
  assert '\n' not in str(caught.value)


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
  monkeypatch.setattr(tfds.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(
    ImportError, match=r"needs tensorflow_datasets: pip install 'posjax\[train\]'"
  ):
    read('tfds:lm1b')


def poems(folder, splits, file_format='array_record'):
  """A prepared data set on disk, as `download_and_prepare` leaves it."""

  class Poems(tensorflow_datasets.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tensorflow_datasets.core.Version('1.0.0')

    def _info(self):
      features = {'text': tensorflow_datasets.features.Text(), 'number': np.int32}
      return tensorflow_datasets.core.DatasetInfo(
        builder=self, features=tensorflow_datasets.features.FeaturesDict(features)
      )

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(split, count) for split, count in splits.items()}

    def _generate_examples(self, split, count):
      for index in range(count):
        yield index, {'text': f'{split} {index}' if index else '', 'number': index}

  builder = Poems(data_dir=str(folder), file_format=file_format)
  builder.download_and_prepare()
  return builder


@pytest.mark.usefixtures('_nothing_prepared')
@pytest.mark.parametrize('held_out', ['validation', 'test'])
def test_a_prepared_data_set_is_read_from_its_files(tmp_path, held_out):
  pytest.importorskip('array_record')
  poems(tmp_path, {'train': 4, held_out: 3})
  text = read('tfds:poems')
  assert sorted(text.train) == [b'train 1', b'train 2', b'train 3']  # the empty one is left out
  assert sorted(text.held_out) == [f'{held_out} {index}'.encode() for index in (1, 2)]
  assert read('tfds:poems') == text


@pytest.mark.usefixtures('_nothing_prepared')
def test_a_data_set_without_a_split_to_hold_out_is_an_error(tmp_path):
  pytest.importorskip('array_record')
  poems(tmp_path, {'train': 4, 'unsupervised': 3})
  with pytest.raises(ValueError, match='named validation or test, but has train, unsupervised'):
    read('tfds:poems')
