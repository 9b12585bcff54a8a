"""Generated pairs: what the target says, and how often it can be said without the order."""

import collections
import itertools
import math

import numpy as np
import pytest

from posjax.experiment.tasks.translation import data as parallel
from posjax.experiment.tasks.translation import generated

EXAMPLES = {
  'reversed': 'p B n A m',
  'reordered': 'm n p A B',
  'agreement': 'A1 B2 m1 n1 p2',
}

# Another digest is other data: results with it do not compare with those of before.
DIGESTS = {
  'agreement': 'f15aa1d4df972f0f',
  'reordered': '5a97c624b0a1c975',
  'reversed': 'f531d25af2ad5a25',
}


@pytest.fixture(scope='module', params=sorted(generated.NAMES))
def named(request):
  return request.param, parallel.read(f'synthetic:{request.param}')


def test_the_target_is_as_described(named):
  name, data = named
  assert ' '.join(generated.NAMES[name]([*'mAnBp'])) == EXAMPLES[name]
  for pair in data.train + data.held_out:
    assert pair.target.split() == generated.NAMES[name](pair.source.split())


def test_sentences_are_of_distinct_words_and_none_is_on_both_sides_in_any_order(named):
  data = named[1]
  assert (len(data.train), len(data.held_out)) == (4096, 512)
  sentences = [pair.source.split() for pair in data.train + data.held_out]
  assert all(len(set(words)) == len(words) for words in sentences)
  assert all(sum(word.isupper() for word in words) == 2 for words in sentences)
  assert {word for words in sentences for word in words} == {*'ABCDEFGHIJKLmnopqrstuvwx'}
  lengths = collections.Counter(map(len, sentences))
  assert set(lengths) == {3, 4, 5, 6}
  assert min(lengths.values()) > 900
  bags = [frozenset(words) for words in sentences]
  assert not set(bags[:4096]) & set(bags[4096:])
  assert len({pair.source for pair in data.train}) == 4096
  assert len(set(bags[4096:])) == 512


def test_every_order_of_the_words_is_equally_likely():
  rng = np.random.default_rng(1)
  drawn = [generated._sentence(rng) for _ in range(6000)]
  # Ranks of the words of three-word sentences by the alphabet: six orders.
  orders = collections.Counter(
    tuple(sorted(words).index(word) for word in words) for words in drawn if len(words) == 3
  )
  expected = sum(orders.values()) / 6
  assert len(orders) == 6
  assert max(abs(count - expected) for count in orders.values()) < 4 * math.sqrt(expected)


@pytest.mark.parametrize('name', sorted(generated.NAMES))
def test_the_chance_without_order_is_that_of_the_likeliest_translation_of_a_bag(name):
  for words in ('ABm', 'ABmn', 'ABmno', 'ABmnop'):
    translations = collections.Counter(
      tuple(generated.NAMES[name](order)) for order in itertools.permutations(words)
    )
    likeliest = max(translations.values()) / math.factorial(len(words))
    assert generated.chance(name, [' '.join(words)]) == pytest.approx(likeliest, rel=1e-12)
  both = generated.chance(name, ['A B m', 'A B m n'])
  assert both == pytest.approx(
    (generated.chance(name, ['A B m']) + generated.chance(name, ['A B m n'])) / 2, rel=1e-12
  )


def test_the_facts_say_what_is_possible_without_order(named):
  name, data = named
  share = generated.chance(name, [pair.source for pair in data.held_out])
  assert data.cut == f'of other words; without their order at most {share:.1%} can be translated'
  assert 0.04 < share < 0.3


def test_the_same_pairs_come_every_time(named):
  name, data = named
  assert parallel.read(f'synthetic:{name}') == data
  assert data.sha256[:16] == DIGESTS[name]
