"""The generated task of left and right: what decides, and what no even encoding can do."""

import jax
import numpy as np

from posjax.experiment.tasks.tagging import crf, direction
from posjax.experiment.tasks.tagging import data as columns
from posjax.experiment.tasks.tagging.metrics import count
from tests.support.draws import DRAW

DATA = columns.read('synthetic:direction')
NAMES = ('O', 'B-NAME', 'I-NAME', 'E-NAME', 'S-NAME')


def test_a_name_is_an_entity_where_the_marker_stands_on_its_left():
  for sentence in DATA.train + DATA.held_out:
    marker = sentence.tokens.index('here')
    assert sentence.tokens.count('here') == 1
    (name,) = (at for at, word in enumerate(sentence.tokens) if word.startswith('Name'))
    assert 0 < name < len(sentence.tokens) - 1
    expected = ['O'] * len(sentence.tokens)
    expected[name] = 'S-NAME' if marker < name else 'O'
    assert [*sentence.tags] == expected


def test_each_sentence_stands_beside_its_reversal_whose_name_has_the_other_tag():
  assert (len(DATA.train), len(DATA.held_out)) == (2048, 512)
  everything = DATA.train + DATA.held_out
  assert len({sentence.tokens for sentence in everything}) == 2560
  for sentence, other in zip(everything[::2], everything[1::2], strict=True):
    assert other.tokens == sentence.tokens[::-1]
    assert sorted([*sentence.tags, *other.tags]).count('S-NAME') == 1
  # Another digest is other data: results with it do not compare with those of before.
  assert DATA.sha256.startswith('b932fb405338acfd')


def test_an_even_encoding_has_at_most_every_other_sentence_without_a_mistake():
  of = lambda part: direction.chance(*zip(*(sentence[:2] for sentence in part), strict=True))
  assert of(DATA.held_out) == of(DATA.train) == 0.5
  assert of(DATA.held_out[:3]) == 2 / 3  # one has no reversal beside it
  # Where tags are the same backwards, such an encoding can have all of them.
  first = DATA.held_out[0]._replace(tags=('O',) * len(DATA.held_out[0].tags))
  second = first._replace(tokens=first.tokens[::-1])
  assert of([first, second]) == 1
  assert of([first, second, *DATA.held_out[2:4]]) == 0.75


def even_emissions(sentence, words, table, bias):
  """Scores of tags in which a word sees every word and the distance to it, and no more."""
  numbers = np.array([words.index(word) for word in sentence.tokens])
  places = np.arange(len(numbers))
  distances = np.abs(places[:, None] - places)
  return np.tanh(table[numbers[:, None], numbers, distances].sum(1)) @ bias


def test_no_even_scores_with_a_crf_behind_them_pass_the_bounds():
  words = sorted({word for sentence in DATA.held_out for word in sentence.tokens})
  part = DATA.held_out[:64]
  lengths = np.array([len(sentence.tokens) for sentence in part])
  gold = [sentence.tags for sentence in part]
  best = 0.0
  viterbi = jax.jit(crf.viterbi)
  for draw in range(12):
    table = DRAW.normal(size=(len(words), len(words), 12, 4))
    bias = DRAW.normal(size=(4, len(NAMES)))
    emissions = np.zeros((len(part), 12, len(NAMES)))
    for row, sentence in enumerate(part):
      emissions[row, : lengths[row]] = even_emissions(sentence, words, table, bias)
      # Every other draw knows what a name is, as a trained model does.
      names = [at for at, word in enumerate(sentence.tokens) if word in direction.NAMES]
      emissions[row, :, 0] += 20 * (draw % 2)
      emissions[row, names, 4] += 40 * (draw % 2)
    between = DRAW.normal(size=(5, 5)) * draw / 4
    transitions = crf.Transitions(between, DRAW.normal(size=5), DRAW.normal(size=5))
    tags = viterbi(emissions.astype(np.float32), transitions, lengths)[0]
    said = [
      tuple(NAMES[tag] for tag in row[:n]) for row, n in zip(tags.tolist(), lengths, strict=True)
    ]
    assert np.mean([one == other for one, other in zip(said, gold, strict=True)]) <= 0.5
    right, guessed, there = count(said, gold)
    best = max(best, 2 * right / (guessed + there))
    assert best <= direction.BEST_F1 + 1e-9
  assert best > 0.6  # the bound is near: it is reached where every name is said to be an entity
