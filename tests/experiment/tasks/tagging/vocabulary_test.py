"""Words, letters, bigrams and tags in numbers; and the baseline that counts tags."""

import numpy as np

from posjax.experiment.data.spelling import Spelling
from posjax.experiment.tasks.tagging.baseline import most_frequent_tags
from posjax.experiment.tasks.tagging.data import Sentence
from posjax.experiment.tasks.tagging.vocabulary import learn

SPELLING = Spelling(longest_word=4, lower=True, zero_digits=True)


def sentence(text, tags):
  return Sentence(tuple(text.split()), tuple(tags.split()), 'here')


TRAIN = [sentence('May 12 Bob', 'O O S-PER'), sentence('bob MAY', 'O O'), sentence('Bob', 'S-PER')]


def learned(train=TRAIN, **changes):
  options = {'min_count': 1, 'characters': True, 'bigrams': True, 'spelling': SPELLING, **changes}
  return learn(train, ['PER'], **options)


def test_words_are_in_lower_case_with_digits_of_0_and_letters_are_not():
  found = learned()
  assert found.words.names[2:] == ('bob', 'may', '00')
  assert set(found.characters.names[2:]) == set('May00BobMAYbob')
  assert set(found.bigrams.names[2:]) == {'may00', '00bob', 'bob</s>', 'bobmay', 'may</s>'}
  assert found.tags == ('O', 'B-PER', 'I-PER', 'E-PER', 'S-PER')
  assert '12' in learned(spelling=SPELLING._replace(zero_digits=False)).words.names
  assert 'May' in learned(spelling=SPELLING._replace(lower=False)).words.names
  assert learned(characters=False, bigrams=False)[1:3] == (None, None)


def test_a_sentence_is_numbers_of_what_is_known_and_1_elsewhere():
  found = learned()
  coded = found.encode(['BOB', 'Zebra', '99'], ['B-PER', 'E-PER', 'O'])
  np.testing.assert_array_equal(coded.words, [found.words.ids['bob'], 1, found.words.ids['00']])
  np.testing.assert_array_equal(coded.tags, [1, 3, 0])
  ids = found.characters.ids
  # 'O', 'Z', 'e' and 'r' are in no training word; 'a' is the fifth letter, which is not read.
  np.testing.assert_array_equal(
    coded.characters, [[ids['B'], 1, ids['B'], 0], [1, 1, ids['b'], 1], [ids['0'], ids['0'], 0, 0]]
  )
  np.testing.assert_array_equal(coded.bigrams, [1, 1, 1])
  np.testing.assert_array_equal(found.encode(['bob', 'may']).bigrams, [4, 6])
  assert [found.bigrams.names[at] for at in (4, 6)] == ['bobmay', 'may</s>']


def test_sentences_are_letters_where_99_percent_of_the_tokens_are():
  letters = [sentence('x ' * 99 + 'xx', 'O ' * 99 + 'S-PER')]
  assert learned(letters).by_letter
  assert not learned([*letters, sentence('xx', 'O')]).by_letter
  assert learned(letters).joined(['a', 'b']) == 'ab'
  assert learned().joined(['a', 'b']) == 'a b'


def test_the_baseline_is_the_most_frequent_tag_in_the_notation_of_the_file():
  train = [sentence('New York', 'B-LOC E-LOC'), sentence('York York', 'S-LOC O')]
  assert most_frequent_tags(train, [['New', 'York', 'Ada']], 'BIOES') == [('B-LOC', 'E-LOC', 'O')]
  # Of York, B-LOC, I-LOC and O are equally frequent: the first by alphabet.
  assert most_frequent_tags(train, [['New', 'York', 'Ada']], 'IOB2') == [('B-LOC', 'B-LOC', 'O')]
