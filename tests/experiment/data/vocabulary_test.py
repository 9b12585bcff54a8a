"""Vocabularies: text to ids and back, the numbers of well-known texts, and what has no id."""

import json

import numpy as np
import pytest

from posjax.experiment.data import vocabulary
from posjax.experiment.data.vocabulary import learn, restore
from tests.support.paths import ROOT

REAL = ROOT.parent / 'shared' / 'data'
PLAIN = 'to be or not to be\n\n  that is\tthe question é 漢\r\n'
SAD = """whether tis nobler in the mind to suffer
the slings and arrows of outrageous fortune
or to take arms against a sea of troubles
and by opposing end them to die to sleep
no more and by a sleep to say we end
the heartache and the thousand natural shocks
that flesh is heir to tis a consummation
"""
LINES = [PLAIN, SAD * 9]


def real(name):
  if not (REAL / name).exists():
    pytest.skip(f'{REAL / name} is not on this machine')
  return (REAL / name).read_bytes()


@pytest.mark.parametrize(
  ('tokens', 'size'), [('bytes', None), ('characters', None), ('sentencepiece', 320)]
)
def test_what_is_encoded_is_decoded_to_the_same_text(tokens, size):
  made = learn(tokens, LINES, size)
  for text in [*LINES, PLAIN * 300, '', '\n', ' ']:
    ids = made.encode(text.encode())
    assert made.decode(ids) == text
    np.testing.assert_array_equal(ids, made.encode(text))
    assert ids.size == 0 or ids.max() < made.size


def test_sentencepiece_spells_what_it_has_never_seen_in_bytes():
  made = learn('sentencepiece', LINES, 320)
  for text in (
    'Ω ≠ ω',
    'a\x00b',
    '\u2581 is no space \u2581\u2581',
    '\ufeffe\u0301 ﬁ \u2028',
    'x' * 9999,
  ):
    assert made.decode(made.encode(text)) == text


def test_sentencepiece_learns_the_same_twice_and_pieces_longer_than_characters():
  one, two = (learn('sentencepiece', LINES, 320) for _ in range(2))
  assert one.stored == two.stored
  assert one.size == 320
  assert len(one.encode(SAD)) < 0.7 * len(SAD)


def test_sentencepiece_cuts_long_lines_before_a_space_and_nowhere_else():
  text = 'abc ' * 3000
  parts = vocabulary._parts(text)
  assert ''.join(parts) == text
  assert len(parts) > 2
  assert all(len(part) <= 4000 for part in parts)
  assert all(part.startswith(' ') for part in parts[1:])


@pytest.mark.parametrize('tokens', ['bytes', 'characters', 'words', 'sentencepiece'])
def test_a_stored_vocabulary_is_the_same_after_json(tokens):
  made = learn(tokens, LINES, 320 if tokens == 'sentencepiece' else None)
  again = restore(json.loads(json.dumps(made.stored)))
  np.testing.assert_array_equal(made.encode(LINES[1]), again.encode(LINES[1]))
  assert again._replace(encode=None, decode=None) == made._replace(encode=None, decode=None)


def test_characters_are_counted_once_in_the_order_of_their_code_points():
  made = learn('characters', ['cab', 'bd'])
  assert made.size == 4
  np.testing.assert_array_equal(made.encode('abcd'), [0, 1, 2, 3])


def test_words_are_frequent_first_and_each_end_of_a_line_is_one():
  made = learn('words', ['b a b\n\nc a b\n'])
  np.testing.assert_array_equal(made.encode(' b  a\n\nc'), [1, 2, 0, 0, 3])
  assert made.size == 4
  assert made.decode([1, 2, 0, 0, 3, 0]) == 'b a\n\nc\n'


def test_a_cut_keeps_the_most_frequent_and_the_rest_is_unknown():
  made = learn('words', ['a a a b b c d\n'], 4)
  np.testing.assert_array_equal(made.encode('a b c d e\n'), [2, 3, 1, 1, 1, 0])
  assert made.decode([2, 1, 0]) == 'a <unk>\n'
  assert made.cut == 1
  letters = learn('characters', ['aaabbc'], 3)
  assert letters.size == 3
  unknown = int(letters.encode('c')[0])
  assert unknown == letters.cut == int(letters.encode('z')[0])
  assert len({unknown, *letters.encode('ab').tolist()}) == 3


def test_other_texts_can_be_given_an_unknown_although_nothing_is_cut():
  for tokens, size in (('words', 5), ('characters', 5)):
    made = learn(tokens, ['a b\nc'] if tokens == 'words' else ['abc '], unknown=True)
    assert made.size == size
    assert (made.encode('a z') == made.cut).tolist()[-1]
    assert restore(json.loads(json.dumps(made.stored))).cut == made.cut


def test_a_text_that_has_unknown_words_gives_the_unknown_an_id_and_nothing_is_cut():
  made = learn('words', ['a <unk> b\n'])
  assert made.encode('zebra')[0] == made.encode('<unk>')[0]
  assert made.cut is None


@pytest.mark.parametrize(
  ('tokens', 'text', 'message'),
  [
    ('characters', 'ab\nba\nabz', "line 3 has the character 'z', which the training text has not"),
    ('words', 'ab\nab abz', "line 2 has the word 'abz', which the training text has not: give a"),
  ],
)
def test_what_has_no_id_is_an_error_with_its_line(tokens, text, message):
  with pytest.raises(ValueError, match=message):
    learn(tokens, ['ab\nba\n']).encode(text)


@pytest.mark.parametrize('tokens', ['characters', 'words', 'sentencepiece'])
def test_bytes_that_are_no_text_are_an_error_with_their_line(tokens):
  made = learn(tokens, LINES, 320 if tokens == 'sentencepiece' else None)
  with pytest.raises(ValueError, match=r"line 2 is not UTF-8 \(byte 0xff\): .*tokens='bytes'"):
    made.encode(b'to be\nor \xff not')
  assert learn('bytes', []).encode(b'\xff').tolist() == [255]


@pytest.mark.parametrize(
  ('tokens', 'size', 'message'),
  [
    ('letters', None, "bytes, characters, words, sentencepiece, but got 'letters'"),
    ('bytes', 100, 'There are 256 bytes: vocab_size must be None, but got 100'),
    ('characters', 1, 'vocab_size must be above 1 and below .* characters .* but got 1'),
    ('words', 10_000, 'vocab_size must be above 2 and below .* words .* but got 10000'),
    ('sentencepiece', None, 'learns vocab_size pieces, 1 or more, but got None'),
    ('sentencepiece', 9, 'cannot learn 9 pieces here: .*9 vs 2'),
    ('sentencepiece', 9999, 'cannot learn 9999 pieces here: .*too high'),
  ],
)
def test_sizes_and_names_out_of_range_are_errors(tokens, size, message):
  with pytest.raises(ValueError, match=message):
    learn(tokens, LINES, size)


def test_empty_lines_teach_sentencepiece_nothing():
  with pytest.raises(ValueError, match='nothing to learn from'):
    learn('sentencepiece', ['\n\n'], 300)


def test_text8_has_27_characters():
  train, held_out = real('text8/train.txt'), real('text8/valid.txt')
  made = learn('characters', [train.decode()])
  assert made.size == 27
  ids = made.encode(held_out)
  assert len(ids) == 250_000
  assert made.decode(ids).encode() == held_out
  assert made.separator == ' '  # it has no ends of lines


def test_wikitext_2_has_its_published_numbers_of_words_and_types():
  train, held_out = real('wikitext2/wiki.train.tokens'), real('wikitext2/wiki.valid.tokens')
  made = learn('words', [train.decode()])
  assert made.size == 33_278
  assert len(made.encode(train)) == 2_088_628
  assert len(made.encode(held_out)) == 217_646
  assert made.cut is None
