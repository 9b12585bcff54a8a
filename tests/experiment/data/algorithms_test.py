"""Each algorithm against a brute-force reading of its definition."""

import numpy as np
import pytest

from posjax.experiment.data import algorithms, synthetic

LENGTHS = (1, 2, 3, 7, 20)


def questions(name, count=40):
  generate = synthetic.get(name).generate
  for length in LENGTHS:
    for seed in range(count):
      yield length, *generate(np.random.default_rng(seed), length)


@pytest.mark.parametrize('name', synthetic.names())
def test_symbols_are_plain_integers_of_the_alphabet(name):
  for _, prompt, answer in questions(name):
    assert all(type(symbol) is int for symbol in prompt + answer)
    assert set(prompt + answer) <= set(range(len(synthetic.get(name).alphabet)))


@pytest.mark.parametrize('name', synthetic.names())
def test_the_same_state_gives_the_same_question(name):
  generate = synthetic.get(name).generate
  first, second = (generate(np.random.default_rng(5), 20) for _ in range(2))
  assert first == second
  assert generate(np.random.default_rng(6), 20) != first


@pytest.mark.parametrize('name', synthetic.names())
def test_most_symbols_is_never_exceeded_and_is_reached(name):
  most = synthetic.get(name).most_symbols
  sizes = {}
  for length, prompt, answer in questions(name):
    sizes[length] = max(sizes.get(length, 0), len(prompt) + len(answer))
  assert all(size <= most(length) for length, size in sizes.items())
  assert all(sizes[length] == most(length) for length in (1, 2, 3))


@pytest.mark.parametrize('name', synthetic.names())
def test_a_length_below_one_is_refused(name):
  with pytest.raises(ValueError, match='length should be at least 1, but is 0'):
    synthetic.get(name).generate(np.random.default_rng(0), 0)


def test_copy_repeats():
  for length, prompt, answer in questions('copy'):
    assert len(prompt) == length
    assert answer == prompt
    assert answer is not prompt


def test_reverse_reads_from_the_end():
  for length, prompt, answer in questions('reverse'):
    assert len(answer) == length
    assert all(answer[i] == prompt[length - 1 - i] for i in range(length))


def test_sort_is_an_ascending_permutation():
  for length, prompt, answer in questions('sort'):
    assert all(answer[i] <= answer[i + 1] for i in range(length - 1))
    assert all(answer.count(symbol) == prompt.count(symbol) for symbol in range(16))


def test_addition_is_the_sum_of_the_two_numbers():
  def number(digits):
    return int(''.join(map(str, reversed(digits))))

  for length, prompt, answer in questions('addition'):
    assert prompt[length] == algorithms.PLUS
    assert len(prompt) == 2 * length + 1
    assert len(answer) == length + 1
    assert number(prompt[:length]) + number(prompt[length + 1 :]) == number(answer)


def test_parity_counts_the_ones():
  for length, prompt, answer in questions('parity'):
    assert len(prompt) == length
    assert answer == [1 if prompt.count(1) in range(1, length + 1, 2) else 0]


def test_dyck_answer_is_the_one_word_that_closes_the_prompt():
  for length, prompt, answer in questions('dyck'):
    word = ''.join(algorithms.BRACKETS[symbol] for symbol in prompt + answer)
    while '()' in word or '[]' in word:
      word = word.replace('()', '').replace('[]', '')
    assert not word
    assert len(prompt) == length
    assert not set(answer) & {0, 2}


def test_dyck_prompts_of_three_brackets_are_all_prefixes_and_only_these():
  prompts = {
    ''.join(algorithms.BRACKETS[symbol] for symbol in prompt)
    for seed in range(600)
    for prompt, _ in [algorithms.dyck(np.random.default_rng(seed), 3)]
  }
  first = {'()', '[]'}
  expected = {pair + bracket for pair in first for bracket in '(['}
  expected |= {a + b + c for a in '([' for b, close in ('()', '[]') for c in '([' + close}
  assert prompts == expected


def test_associative_recall_looks_the_key_up():
  for length, prompt, answer in questions('associative_recall'):
    table = dict(zip(prompt[:-1:2], prompt[1::2], strict=True))
    assert len(table) == length
    assert answer == [table[prompt[-1]]]
    assert set(table) <= set(range(128))
    assert set(table.values()) <= set(range(128, 144))


def test_associative_recall_asks_for_any_pair():
  asked = set()
  for seed in range(100):
    prompt, _ = algorithms.associative_recall(np.random.default_rng(seed), 4)
    asked.add(prompt[:-1:2].index(prompt[-1]))
  assert asked == {0, 1, 2, 3}


def test_associative_recall_refuses_more_pairs_than_keys():
  algorithms.associative_recall(np.random.default_rng(0), 128)
  with pytest.raises(ValueError, match='128 keys, too few for 129 pairs'):
    algorithms.associative_recall(np.random.default_rng(0), 129)
