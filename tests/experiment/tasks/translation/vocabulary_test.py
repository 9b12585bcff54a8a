"""Tokens of two sides: the marks, what is spelled the same, what was never seen, what is stored."""

import json

import numpy as np
import pytest

from posjax.experiment.tasks.translation import vocabulary
from posjax.experiment.tasks.translation.data import Pair
from posjax.experiment.tasks.translation.vocabulary import END, PADDING, START, learn, restore
from tests.experiment.tasks.translation.sample import ODD, TRAIN

SIZES = {'sentencepiece': 320, 'words': None, 'characters': None, 'bytes': None}


@pytest.fixture(scope='module')
def pieces():
  return learn('sentencepiece', TRAIN, joint=True, vocab_size=320)


@pytest.mark.parametrize('tokens', ['sentencepiece', 'bytes'])
def test_every_sentence_comes_back_as_it_was(tokens):
  made = learn(tokens, TRAIN, joint=True, vocab_size=SIZES[tokens]).source
  for sentence in [*ODD, *(side for pair in TRAIN for side in pair[:2])]:
    ids = made.encode(sentence)
    assert made.decode(ids) == sentence
    assert ids.dtype == np.int32
    assert ids.size == 0 or (ids.min() >= 3 and ids.max() < made.size)
  assert made.unknown is None


@pytest.mark.parametrize(
  ('tokens', 'sentence', 'expected'),
  [('characters', 'Ein  Ω Hund ', 'Ein  <unk> Hund '), ('words', 'Ein  Ω Mann ', 'Ein <unk> Mann')],
)
def test_characters_and_words_of_training_come_back_and_others_are_unknown(
  tokens, sentence, expected
):
  made = learn(tokens, TRAIN, joint=True).source
  for side in (side for pair in TRAIN for side in pair[:2]):
    assert made.decode(made.encode(side)) == side
    assert made.unknown not in made.encode(side)
  ids = made.encode(sentence)
  assert (ids == made.unknown).sum() == 1
  assert made.decode(ids) == expected
  for odd in ODD:  # none is refused
    assert made.encode(odd).dtype == np.int32


def test_marks_come_first_and_are_never_said(pieces):
  assert (PADDING, START, END) == (0, 1, 2)
  side = pieces.source
  ids = side.encode('Ein Hund').tolist()
  assert side.decode([START, *ids, END, *ids, PADDING]) == 'Ein Hund'
  assert side.decode([START, *ids, PADDING]) == 'Ein Hund'
  assert side.names([PADDING, START, END]) == ['<pad>', '<s>', '</s>']
  assert ''.join(side.names(ids)) == ' Ein Hund'
  assert side.size == 323


def test_an_empty_sentence_has_no_token():
  for tokens, size in SIZES.items():
    assert learn(tokens, TRAIN, joint=False, vocab_size=size).target.encode('').size == 0


def test_a_word_has_the_same_pieces_wherever_it_stands(pieces):
  first = pieces.source.encode('Hund Mann')
  second = pieces.source.encode('Mann Hund')
  word = pieces.source.encode('Hund')
  assert first[: len(word)].tolist() == second[-len(word) :].tolist() == word.tolist()


def test_a_translation_is_one_line_whatever_its_tokens_say():
  for tokens, size in SIZES.items():
    side = learn(tokens, TRAIN, joint=True, vocab_size=size).target
    said = side.decode(range(3, side.size))
    assert said
    assert '\n' not in said


def test_the_word_for_an_end_of_line_stands_for_itself():
  side = learn('words', [Pair('a <eos> <eos> b', 'c', '')], joint=False).source
  assert side.decode(side.encode('<eos> a  <eos> <eos> b <eos>')) == '<eos> a <eos> <eos> b <eos>'


def test_sides_share_one_vocabulary_or_have_their_own():
  pairs = [Pair('aab', 'cc', ''), Pair('b', 'c', '')]
  joint = learn('characters', pairs, joint=True)
  assert joint.joint
  assert joint.source is joint.target
  assert joint.source.size == 3 + 4  # a, b, c and <unk>
  apart = learn('characters', pairs, joint=False)
  assert not apart.joint
  assert (apart.source.size, apart.target.size) == (3 + 3, 3 + 2)
  assert apart.target.encode('ac').tolist() == [apart.target.unknown, *apart.target.encode('c')]


def test_pairs_are_encoded_by_side(pieces):
  (coded,) = pieces.encode(TRAIN[:1])
  np.testing.assert_array_equal(coded.source, pieces.source.encode(TRAIN[0].source))
  np.testing.assert_array_equal(coded.target, pieces.target.encode(TRAIN[0].target))
  assert coded.length() == 1 + max(len(coded.source), len(coded.target))


@pytest.mark.parametrize('joint', [True, False])
@pytest.mark.parametrize('tokens', sorted(SIZES))
def test_a_stored_vocabulary_is_the_same_after_json(tokens, joint):
  made = learn(tokens, TRAIN, joint=joint, vocab_size=SIZES[tokens])
  stored = json.loads(json.dumps(made.stored))
  again = vocabulary.learn_or_restore(tokens, [], stored, joint=joint)
  assert again.joint == joint
  for side in ('source', 'target'):
    one, two = getattr(made, side), getattr(again, side)
    assert (one.size, one.unit, one.unknown) == (two.size, two.unit, two.unknown)
    for sentence in ODD[:5]:
      np.testing.assert_array_equal(one.encode(sentence), two.encode(sentence))


def test_without_a_stored_vocabulary_one_is_learned():
  made = vocabulary.learn_or_restore('words', TRAIN, None, joint=True)
  assert made.stored == learn('words', TRAIN, joint=True).stored


@pytest.mark.parametrize(
  ('tokens', 'size', 'message'),
  [
    ('sentencepiece', 9999, 'The source vocabulary cannot be learned: .* 9999 pieces .*too high'),
    ('sentencepiece', None, 'learns vocab_size pieces, 1 or more, but got None'),
    ('words', 999, 'vocab_size must be above 2 and below [0-9]+, which are all words of the text'),
    ('bytes', 256, 'There are 256 bytes: vocab_size must be None'),
    ('letters', None, "bytes, characters, words, sentencepiece, but got 'letters'"),
  ],
)
def test_a_vocabulary_that_the_text_does_not_allow_is_refused(tokens, size, message):
  with pytest.raises(ValueError, match=message) as caught:
    learn(tokens, TRAIN, joint=False, vocab_size=size)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('stored', 'message'),
  [
    ({}, 'must hold joint, or source and target, but holds nothing'),
    ({'source': {}}, 'but holds source'),
    ([], 'but holds nothing'),
    ({'joint': 3}, 'must be a dictionary, but is int'),
    ({'joint': {'tokens': 'words', 'types': 3}}, 'must have different words as its types'),
    ({'joint': {'tokens': 'sentencepiece', 'model': 'x'}}, 'model of sentencepiece in base64'),
  ],
)
@pytest.mark.usefixtures('unchecked')
def test_what_is_no_stored_vocabulary_is_refused(stored, message):
  with pytest.raises(ValueError, match=message):
    restore(stored)


@pytest.mark.parametrize(('tokens', 'joint'), [('bytes', False), ('words', True), ('words', False)])
def test_a_stored_vocabulary_of_other_tokens_is_refused(tokens, joint):
  stored = learn('bytes', TRAIN, joint=True).stored
  message = f'one of {tokens} for {"both sides" if joint else "each side"}, as the config says, '
  with pytest.raises(ValueError, match=f'{message}but is one of bytes for both sides'):
    vocabulary.learn_or_restore(tokens, TRAIN, stored, joint=joint)
