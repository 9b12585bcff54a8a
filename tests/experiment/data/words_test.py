"""Words, vocabularies of them, and vectors from files."""

import numpy as np
import pytest

from posjax.experiment.data import vectors, words

NUMBERS = {'the': 2, 'ice': 3, 'sun': 4}


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ("i 've n't it's re-made .", ['i', "'ve", "n't", "it's", 're-made', '.']),
    ('Good, bad...', ['good', ',', 'bad', '.', '.', '.']),
    ('  -lrb- 3.5 %', ['-', 'lrb', '-', '3', '.', '5', '%']),
    ('Émile’s\u2028naïve', ['émile’s', 'naïve']),
    (' \t', []),
  ],
)
def test_a_text_is_split_into_words_and_signs(text, expected):
  assert words.split(text) == expected


def test_a_vocabulary_has_the_words_of_its_texts_that_are_frequent_enough():
  texts = [['b', 'a', 'c', 'a'], ['b', 'd', '<unk>'], ['a', 'd']]
  vocabulary = words.vocabulary(texts, min_count=2)
  assert vocabulary.names == ('<pad>', '<unk>', 'a', 'b', 'd')
  np.testing.assert_array_equal(vocabulary.encode(['a', 'c', 'd', 'e', '<pad>']), [2, 1, 4, 1, 1])
  assert vocabulary.encode([]).dtype == np.int32


def test_a_vocabulary_without_a_word_is_an_error():
  with pytest.raises(ValueError, match='No word of the training texts occurs 3 times'):
    words.vocabulary([['a', 'b']], min_count=3)
  with pytest.raises(ValueError, match='min_count must be at least 1, but got 0'):
    words.vocabulary([['a', 'b']], min_count=0)


@pytest.mark.parametrize('header', [b'', b'4 2\n'])
def test_vectors_are_read_with_and_without_a_header(tmp_path, header):
  (tmp_path / 'v.txt').write_bytes(
    header + b'sun 1.5 -2e-1\nn\xffr 9 9\n. . . 7 7\nthe 0 1 \nsun 8 8\n'
  )
  found = vectors.read(f'{tmp_path}/v.txt', NUMBERS, 5, 2)
  np.testing.assert_array_equal(found.found, [False, False, True, False, True])
  np.testing.assert_array_equal(
    found.table, np.float32([[0, 0], [0, 0], [0, 1], [0, 0], [1.5, -0.2]])
  )


def test_vectors_that_are_all_zero_are_refused_as_they_have_no_size(tmp_path):
  (tmp_path / 'v.txt').write_text('the 0 0\nsun 0 0\nother 1 1\n')
  with pytest.raises(ValueError, match='tell words apart, but all of their vectors are 0'):
    vectors.initial(f'{tmp_path}/v.txt', NUMBERS, 2, 0)


def test_of_width_one_a_word_that_is_a_number_is_no_header(tmp_path):
  (tmp_path / 'v.txt').write_text('the 3\nsun 4\n')
  assert vectors.read(f'{tmp_path}/v.txt', NUMBERS, 5, 1).table[:, 0].tolist() == [0, 0, 3, 0, 4]


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    ('the 1 2\nsun 1\n', 'v.txt, line 2 should be a word and 2 numbers.* but has 1'),
    ('the 1 2 3\n', 'line 1 should be a word and 2 numbers.* but has 3'),
    ('3 300\nthe 1 2\n', 'line 1 says vectors of 300 numbers, but the width of the model is 2'),
    ('the 1 x\n', 'line 1 should hold numbers'),
    ('the 1 inf\n', 'line 1 should hold finite numbers'),
    ('oak 1 2\n', 'has none of the 3 words'),
    ('', 'has none of the 3 words'),
  ],
)
def test_a_bad_file_of_vectors_is_an_error_with_its_line(tmp_path, content, message):
  (tmp_path / 'v.txt').write_text(content)
  with pytest.raises(ValueError, match=message):
    vectors.read(f'{tmp_path}/v.txt', NUMBERS, 5, 2)


def test_a_missing_file_of_vectors_is_an_error():
  with pytest.raises(FileNotFoundError, match='none is at /nowhere'):
    vectors.read('/nowhere', NUMBERS, 5, 2)
