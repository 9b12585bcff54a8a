"""Sentences with tags from files and TensorFlow Datasets, their cuts, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from posjax.experiment.data.corpus import fold_of
from posjax.experiment.data.tfds import open_builder
from posjax.experiment.tasks.tagging import data as columns
from posjax.experiment.tasks.tagging import tfds

tensorflow_datasets = pytest.importorskip('tensorflow_datasets')


def write(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return f'file:{path}'


def many(count):
  return ''.join(f'token{n}\tB-X\nis\tO\n\n' for n in range(count))


def test_a_folder_is_its_train_and_its_dev_file(tmp_path):
  write(
    tmp_path / 'train.conll',
    b'\xef\xbb\xbf\n-DOCSTART- -X- O O\r\n\r\n\r\nEU NNP  I-ORG\r\nsaid VB O\r\n\r\n'
    b'-DOCSTART- -X- O O\n\nNew\tNNP\tI-LOC\n\xe3\x80\x80\tNNP\tI-LOC\nParis\tNNP\tB-LOC\n\n\n',
  )
  write(tmp_path / 'dev.txt', 'Tim\tI-PER')
  write(tmp_path / 'test.conll', 'never read')
  data = columns.read(f'file:{tmp_path}')
  assert [sentence[:2] for sentence in data.train] == [
    (('EU', 'said'), ('S-ORG', 'O')),
    (('New', '\u3000', 'Paris'), ('B-LOC', 'E-LOC', 'S-LOC')),
  ]
  assert [sentence.where for sentence in data.train] == [
    f'{tmp_path}/train.conll, line 5',
    f'{tmp_path}/train.conll, line 10',
  ]
  assert [sentence[:2] for sentence in data.held_out] == [(('Tim',), ('S-PER',))]
  assert data.types == ('LOC', 'ORG', 'PER')
  assert (data.notation, data.repaired, data.documents, data.cut) == ('IOB1', (), 2, 'as given')


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    ('a\tO\nb\nc\tO\n', r"a.conll, line 2 should have 2 columns as in .*, but is 'b'\."),
    ('alone\n', r"a.conll, line 1 should have a token and a tag, .* but is 'alone'\."),
    ('a\tN\tB-X\nb\tO\n', r"a.conll, line 2 should have 3 columns as in .* but is 'b\\tO'\."),
    ('a\tO\n\tO\n', r"a.conll, line 2 should have 2 columns .* but is '\\tO'\."),
    ('a\tO\nb\tQ-LOC\n', r"a.conll, line 2 should have a tag that is O, .* but has 'Q-LOC'\."),
    ('a\tB\n', r"a.conll, line 1 should have a tag .* a type, as B-LOC, but has 'B'\."),
    ('a\tB-X\t\n', r"a.conll, line 1 should have a tag .*, but has ''\."),
    ('a\tB-X \n', r"a.conll, line 1 should have a tag .*, but has 'B-X '\."),
    ('a\tB-X\n\n\nb\tO\n', r'a.conll, line 3 should be .* but there is an empty sentence'),
    ('a\tB-X\n \n\t\n\nb\tO\n', r'a.conll, line 3 should be .* but there is an empty sentence'),
    ('a\tM-X\nb\tI-X\n', r'of one notation .* none of them has all of .*M-X \(.*conll, line 1\)'),
    ('a\tO\n', r'leaves no sentence to be judged on|leaves no sentence to learn from'),
    ('', r'leaves no sentence to learn from\.'),
    (
      ''.join(f'a{n}\tO\n\n' for n in range(60)),
      r'should have entities, but all of its tags are O',
    ),
    (b'a\tO\n\xff\tO\n', r'a.conll, line 2 should be UTF-8'),
  ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, content, message):
  with pytest.raises(ValueError, match=message):
    columns.read(write(tmp_path / 'a.conll', content))


def test_a_notation_that_is_given_is_checked(tmp_path):
  place = write(tmp_path / 'a.conll', many(60) + 'late\tE-X\n')
  with pytest.raises(ValueError, match=r"line 181 should have .* IOB2, with .* B, I, .* 'E-X'\."):
    columns.read(place, notation='IOB2')
  with pytest.raises(ValueError, match=r"Unknown notation 'IOB'; did you mean 'IOB2'\?"):
    columns.read(place, notation='IOB')
  assert columns.read(place, notation='BIOES').notation == 'BIOES'


def test_illegal_sentences_are_repaired_and_counted_in_training_and_held_out(tmp_path):
  write(tmp_path / 'train.conll', 'a\tB-X\nb\tI-X\n\nc\tO\nd\tI-X\n\ne\tB-X\nf\tI-Y\n')
  write(tmp_path / 'valid.conll', 'g\tI-Y\nh\tI-Y\n\nk\tB-Y\n')
  data = columns.read(f'file:{tmp_path}', notation='IOB2')
  assert [sentence.tags for sentence in data.train + data.held_out] == [
    ('B-X', 'E-X'),
    ('O', 'S-X'),
    ('S-X', 'S-Y'),
    ('B-Y', 'E-Y'),
    ('S-Y',),
  ]
  places = [('train', 4), ('train', 7), ('valid', 1)]
  assert data.repaired == tuple(f'{tmp_path}/{name}.conll, line {line}' for name, line in places)
  # Read as IOB1, the entities are the same, and other sentences are illegal.
  other = columns.read(f'file:{tmp_path}', notation='IOB1')
  assert (other.train, other.held_out) == (data.train, data.held_out)
  assert len(other.repaired) == 3
  assert other.sha256 == data.sha256


def test_without_a_held_out_file_one_sentence_in_ten_is_chosen_by_its_words(tmp_path):
  data = columns.read(write(tmp_path / 'a.conll', many(200)))
  held_out = {n for n in range(200) if fold_of(f'token{n} is', 10) == 0}
  assert {sentence.tokens for sentence in data.held_out} == {(f'token{n}', 'is') for n in held_out}
  assert len(data.train) + len(data.held_out) == 200
  assert data.cut == 'one in 10 of the training sentences, by a hash of the words'


@pytest.mark.parametrize('content', ['', '\n\n', '-DOCSTART-\tO\n\n'])
def test_a_held_out_file_without_sentences_is_not_taken_for_none(tmp_path, content):
  (tmp_path / 'train.conll').write_text(''.join(f't{n}\tB-X\n\n' for n in range(99)))
  (tmp_path / 'dev.conll').write_text(content)
  with pytest.raises(ValueError, match=r'dev\.conll should hold what is held out, but it is empty'):
    columns.read(f'file:{tmp_path}')


def test_the_hash_sees_tokens_tags_borders_and_sides(tmp_path):
  whole = 'a\tB-X\nb\tO\n\nc\tO\n'
  (tmp_path / 'dev.conll').write_text('d\tB-Y\n')
  hashes = set()
  for content in (
    whole,
    whole.replace('a', 'e'),
    whole.replace('-X', '-Z'),
    whole.replace('\n\n', '\n'),
    'a\tB-X\n\nb\tO\nc\tO\n',
  ):
    (tmp_path / 'train.conll').write_text(content)
    hashes.add(columns.read(f'file:{tmp_path}').sha256)
    hashes.add(columns.read(f'file:{tmp_path}').sha256)
  assert len(hashes) == 5


def test_missing_files_are_told(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'expects a file or a folder, but nothing is at'):
    columns.read(f'file:{tmp_path}/none')
  (tmp_path / 'dev.conll').write_text('a\tO\n')
  with pytest.raises(FileNotFoundError, match=r'should hold a train.conll, but holds dev.conll'):
    columns.read(f'file:{tmp_path}')
  for name in ('train.conll', 'train.txt'):
    (tmp_path / name).write_text('a\tO\n')
  with pytest.raises(ValueError, match=r'should hold one of train.conll and train.txt'):
    columns.read(f'file:{tmp_path}')


def example(number):
  """As `tfds.data_source` has it: tags are numbers of names, here B-PER, I-LOC and O."""
  tokens = np.array([f'word{number}', 'é', 'is'], object)
  return {'tokens': tokens, 'ner': np.array([1, 6, 0]), 'chunks': np.array([11, 22, 0])}


def test_conll2003_is_read_with_the_names_of_its_tags():
  made = lambda builder, split, **_: [example(number) for number in range(60)]
  with tensorflow_datasets.testing.mock_data(as_data_source_fn=made):  # which has no other split
    data = columns.read('tfds:conll2003')
    chunks = columns.read('tfds:conll2003#chunks')
    with pytest.raises(ValueError, match=r"has no tags named 'nerr', but has chunks, ner, pos\."):
      columns.read('tfds:conll2003#nerr')
    with pytest.raises(ValueError, match=r'one list of tokens and one of tags, but has none and'):
      columns.read('tfds:imdb_reviews')
  assert len(data.train) + len(data.held_out) == 60
  assert data.train[0][1] == ('S-PER', 'S-LOC', 'O')
  assert data.train[0].tokens[1] == 'é'
  assert (
    data.train[0].where == f'tfds:conll2003, split train, example {data.train[0].tokens[0][4:]}'
  )
  assert (data.types, data.notation) == (('LOC', 'PER'), 'IOB2')
  assert len(data.repaired) == 60  # I-LOC does not begin an entity in IOB2
  assert chunks.types == ('NP', 'VP')


def test_tokens_without_a_tag_each_are_refused_with_their_example():
  with (
    tensorflow_datasets.testing.mock_data(num_examples=2),  # which invents lists of any length
    pytest.raises(
      ValueError, match=r'tfds:conll2003, split train, example 0 should have a tag for each of its'
    ),
  ):
    columns.read('tfds:conll2003')


@pytest.mark.parametrize(
  ('changed', 'message'),
  [
    ({'ner': [1, 9, 0]}, r'split dev, example 1 should have tags in \[0, 9\), but has 9\.'),
    (
      {'tokens': [], 'ner': []},
      r'split dev, example 1 should have a tag for .* 0 tokens and 0 tags',
    ),
    ({'tokens': [b'a', b'\xff', b'c']}, r'split dev, example 1 should be UTF-8'),
    ({}, None),
  ],
)
def test_the_dev_split_is_held_out_and_the_test_split_never_read(monkeypatch, changed, message):
  with tensorflow_datasets.testing.mock_data():
    features = open_builder('conll2003').info.features
  splits = {'train': [example(0)], 'dev': [example(1), {**example(2), **changed}], 'test': None}
  builder = SimpleNamespace(
    info=SimpleNamespace(features=features, splits=splits), as_data_source=splits.__getitem__
  )
  monkeypatch.setattr(tfds, 'open_builder', lambda name: builder)
  if message:
    with pytest.raises(ValueError, match=message):
      columns.read('tfds:conll2003')
  else:
    data = columns.read('tfds:conll2003')
    assert [sentence.tokens[0] for sentence in data.train + data.held_out] == [
      *('word0', 'word1', 'word2')
    ]
    assert (len(data.train), data.cut) == (1, 'as given')
