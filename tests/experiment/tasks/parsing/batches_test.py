"""Batches of trees: rows, charts, widths, and what stands in the padding."""

import numpy as np
import pytest

from posjax.experiment.data import sentences
from posjax.experiment.data.spelling import Spelling
from posjax.experiment.tasks.parsing import batches
from posjax.experiment.tasks.parsing import data as trees
from posjax.experiment.tasks.parsing import facts as coded_facts
from posjax.experiment.tasks.parsing.spans import spans_of
from posjax.experiment.tasks.parsing.vocabulary import learn

DATA = trees.read('synthetic:brackets')
TRAIN = DATA.train[:60]
SPELLING = Spelling(longest_word=4, lower=True, zero_digits=False)


def vocabulary(**changes):
  options = {'min_count': 1, 'characters': True, 'tags': True, 'spelling': SPELLING, **changes}
  return learn(TRAIN, DATA.labels, **options)


def test_a_row_is_a_sentence_at_the_left_its_chart_in_the_corner_and_zeros():
  known = vocabulary()
  one, other = TRAIN[1:3]
  made = batches.batch(known.encode_all([one, other]), 16, rows=3, indices=[7, 5])
  assert {name: (array.shape, array.dtype.name) for name, array in made.items()} == {
    **dict.fromkeys(('inputs', 'tags', 'segments'), ((3, 16), 'int32')),
    'gold': ((3, 16, 16), 'int32'),
    'characters': ((3, 16, 4), 'int32'),
    **dict.fromkeys(('row', 'tokens'), ((3,), 'int32')),
  }
  assert made['row'].tolist() == [7, 5, -1]
  assert made['tokens'].tolist() == [len(one.words), len(other.words), 0]
  for row, right in enumerate((one, other)):
    n = len(right.words)
    assert made['segments'][row].tolist() == [1] * n + [0] * (16 - n)
    assert spans_of(made['gold'][row], known.labels) == right.spans
    assert tuple(known.words.names[i] for i in made['inputs'][row, :n]) == right.words
    assert tuple(known.tags.names[i] for i in made['tags'][row, :n]) == right.tags
    letters = made['characters'][row, 0]
    assert ''.join(known.characters.names[i] for i in letters if i) == right.words[0][:4]
  for name in ('inputs', 'tags', 'characters'):
    assert not made[name][made['segments'] == 0].any()
  plain = vocabulary(characters=False, tags=False).encode_all([one])
  assert sorted(batches.batch(plain, 16)) == ['gold', 'inputs', 'row', 'segments', 'tokens']
  with pytest.raises(ValueError, match=r'1 rows of 4 cannot hold 1 sentences, of up to'):
    batches.batch(plain, 4)


def test_evaluation_has_every_sentence_once_and_training_leaves_long_ones_out():
  coded = vocabulary().encode_all(TRAIN)
  lengths = sentences.lengths(coded)
  examples = sentences.examples(coded, batches.batch)
  made = examples.in_order(widths=(6, 9), batch_size=16)
  assert sorted(row for batch in made for row in batch['row'] if row >= 0) == [*range(60)]
  assert {batch['gold'].shape[1:] for batch in made} == {(6, 6), (9, 9), (18, 18), (36, 36)}
  training = iter(examples.batches(widths=(6, 9), batch_size=4, seed=1))
  for _ in range(20):
    batch = next(training)
    assert batch['tokens'].tolist() == [lengths[row] for row in batch['row']]
    np.testing.assert_array_equal(batch['gold'][0][: lengths[batch['row'][0]]].max() > 0, True)
  told = coded_facts.facts(DATA, vocabulary(), coded, coded, 9)
  left_out = sum(len(one.words) > 9 for one in TRAIN)
  assert told['left out'].startswith(f'{left_out} training sentences of more than 9 words')
  assert told['letters'].startswith(f'{len(vocabulary().characters.ids)} known; of ')


def test_unknown_words_letters_tags_and_labels_have_numbers():
  known = vocabulary()
  coded = known.encode(['the', 'zebra'], ['DT', 'ZZ'], [])
  assert coded.words.tolist() == [known.words.ids['the'], 1]
  assert coded.tags.tolist() == [known.tags.ids['DT'], 1]
  assert coded.characters[1].tolist() == [1, *known.characters.encode('ebr')]
  assert not coded.gold.any()
  assert known.labels == ('', *DATA.labels)


def test_a_sentence_without_words_or_with_too_few_tags_is_refused():
  with pytest.raises(ValueError, match=r'line 1 should have one word or more, but has none'):
    vocabulary().encode([], [], where='line 1')
  with pytest.raises(ValueError, match=r'line 1 should have a tag for each of 2 words, but has 1'):
    vocabulary(tags=False).encode(['a', 'b'], ['DT'], where='line 1')
  with pytest.raises(ValueError, match=r'should have tags, which this parser reads, but has none'):
    vocabulary().encode(['a'])
