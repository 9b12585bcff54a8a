"""What is held out, and what is held out of the rest to tune on."""

import pytest

from posjax.experiment.data import corpus
from posjax.experiment.tasks.classification import data as texts
from posjax.experiment.tasks.language_modelling import data as documents
from posjax.experiment.tasks.parsing import data as trees
from posjax.experiment.tasks.sentence_pairs import data as pairs
from posjax.experiment.tasks.tagging import data as columns
from posjax.experiment.tasks.translation import data as parallel

WORDS = [f'word{i} of text{i}' for i in range(300)]


@pytest.mark.parametrize('held_out', [[], WORDS[200:]])
def test_what_is_tuned_on_was_to_be_learned_from_and_is_a_tenth_of_it(held_out):
  train = WORDS[:200] if held_out else WORDS
  reported = corpus.hold_out(train, held_out, str, 'texts, by hash')
  tuned = corpus.hold_out(train, held_out, str, 'texts, by hash', tune=True)
  assert sorted(tuned[0] + tuned[1]) == sorted(reported[0])
  assert 0.05 < len(tuned[1]) / len(reported[0]) < 0.2
  assert reported[2] == ('as given' if held_out else 'one in 10 of the texts, by hash')
  assert tuned[2] == 'one in 10 of the texts, by hash, to tune on'


@pytest.mark.parametrize(
  ('read', 'expression'),
  [
    (texts.read, 'synthetic:order'),
    (pairs.read, 'synthetic:near_1k'),
    (columns.read, 'synthetic:direction'),
    (trees.read, 'synthetic:brackets'),
    (parallel.read, 'synthetic:reversed'),
  ],
)
def test_every_reader_leaves_what_is_held_out_unread(read, expression):
  of = lambda part: {str(one._replace(where='') if hasattr(one, 'where') else one) for one in part}
  reported, tuned = read(expression), read(f'tune:{expression}')
  assert len(tuned.train) + len(tuned.held_out) == len(reported.train)
  assert tuned.held_out
  assert of(tuned.held_out) <= of(reported.train)
  assert not of(tuned.held_out) & of(tuned.train)
  assert tuned.sha256 != reported.sha256


def test_a_text_is_tuned_on_its_last_tenth_which_cuts_no_character():
  text = documents.read('tune:python_docs')
  whole = documents.read('python_docs')
  assert b''.join(text.train + text.held_out) == b''.join(whole.train)
  assert sum(map(len, text.held_out)) == pytest.approx(sum(map(len, whole.train)) / 10, rel=0.01)
  for letters in ('ä' * 31, 'a' * 5 + '漢' * 9, 'a', ''):
    parts = documents.last_tenth((b'first', letters.encode()))
    assert ''.join(each.decode() for part in parts for each in part) == f'first{letters}'


def test_folds_and_a_part_to_tune_on_are_not_both_held_out():
  with pytest.raises(ValueError, match="'tune:' and folds hold out other texts"):
    texts.read('tune:synthetic:order', folds=5)
