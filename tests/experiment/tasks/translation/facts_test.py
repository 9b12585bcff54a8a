"""Facts of parallel text, counted by hand."""

from posjax.experiment.tasks.translation import facts, vocabulary
from posjax.experiment.tasks.translation.data import Pair
from tests.experiment.tasks.translation.sample import parallel

TRAIN = [
  Pair('a b', 'x', 'train.de, line 1'),
  Pair('same', 'same', 'train.de, line 2'),
  Pair('a b c d e', 'y x', 'train.de, line 4'),
]
HELD_OUT = [
  Pair('a b', 'x z', 'val.de, line 1'),
  Pair('', 'x', 'val.de, line 2'),
  Pair('q ' * 2000, 'x', 'val.de, line 3'),
]


def told(joint):
  data = parallel(TRAIN, HELD_OUT, left_out={'an empty side': 1})
  made = vocabulary.learn('words', data.train, joint=joint)
  coded = [made.encode(part) for part in (data.train, data.held_out)]
  return facts.facts(data, made, *coded, (2, 4))


def test_facts_are_what_can_be_counted_by_hand():
  assert told(joint=False) == {
    'data': 'file:x, de to en',
    'pairs': '3 to learn from, 3 held out (val.de)',
    'left out': '1 training pairs with an empty side, 1 training pairs with more than 4 tokens',
    'empty': '1 held-out pairs have an empty side',
    'equal sides': '1 training pairs have equal sides',
    'seen before': '1 held-out sources are training sources, too',
    'vocabulary': 'de 11 tokens: 3 marks and 8 words; en 8 tokens: 3 marks and 5 words',
    'tokens in a sentence': 'de 2.7 in training and 667.3 held out, '
    'en 1.3 in training and 1.3 held out',
    'unknown tokens': 'de 0 in training and 2,000 held out, en 0 in training and 1 held out',
    'longest sentence': '6 tokens (train.de, line 4) in training, '
    '2,001 tokens (val.de, line 3) held out',
    'wide rows': '1 held-out pairs have more than 4 tokens, and are not cut',
    'sha256': '0' * 64,
  }


def test_a_joint_vocabulary_is_told_once():
  assert told(joint=True)['vocabulary'] == '13 tokens: 3 marks and 10 words, for both sides'


def test_pieces_and_bytes_know_everything():
  made = vocabulary.learn('bytes', TRAIN, joint=True)
  data = parallel(TRAIN, HELD_OUT)
  coded = [made.encode(part) for part in (TRAIN, HELD_OUT)]
  assert facts.facts(data, made, *coded, (2, 4))['unknown tokens'] == 'de none, en none'
