"""Each algorithm against a brute-force reading of its definition."""

import numpy as np
import pytest

from posjax.experiment.tasks.algorithmic import algorithms, synthetic

LENGTHS = (1, 2, 3, 4, 5, 7, 20)


def questions(name, count=40):
  """Every length there is, `count` times: length, prompt and answer."""
  generate, shortest = synthetic.get(name).generate, synthetic.get(name).shortest
  for length in filter(lambda length: length >= shortest, LENGTHS):
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
  algorithm, longest, sizes = synthetic.get(name), {}, set()
  for length, prompt, answer in questions(name, count=150):
    assert len(prompt) == algorithm.prompt_symbols(length)
    longest[length] = max(longest.get(length, 0), len(answer))
    sizes.add((length, len(answer)))
  assert all(size <= algorithm.answer_symbols(length) for length, size in longest.items())
  assert longest[5] == algorithm.answer_symbols(5)
  assert algorithm.most_symbols(5) == algorithm.prompt_symbols(5) + longest[5]
  assert algorithm.varies == (len(sizes) > len(longest))


@pytest.mark.parametrize('name', synthetic.names())
def test_a_length_below_the_shortest_is_refused(name):
  algorithm = synthetic.get(name)
  message = f'length should be at least {algorithm.shortest}, but is {algorithm.shortest - 1}'
  with pytest.raises(ValueError, match=message):
    algorithm.generate(np.random.default_rng(0), algorithm.shortest - 1)


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


def test_copies_say_the_prompt_again_with_two_letters_or_with_none_twice():
  for name in ('copy_repeats', 'copy_unique'):
    for length, prompt, answer in questions(name):
      assert len(prompt) == length
      assert all(answer[i] == prompt[i] for i in range(length))
      assert len(set(prompt)) == length if name == 'copy_unique' else set(prompt) <= {0, 1}
  with pytest.raises(ValueError, match='copy_unique has 128 keys, too few for 129 symbols'):
    algorithms.copy_unique(np.random.default_rng(0), 129)


def test_hints_name_equal_places_alike_and_the_digits_add_up():
  words = synthetic.get('addition_hints').alphabet
  starts = set()
  for length, prompt, answer in questions('addition_hints'):
    left, right = ' '.join(words[s] for s in prompt).split(' + ')
    total = ' '.join(words[s] for s in answer)
    numbers, hints = [], []
    for part in (left, right, total):
      pairs = part.split()
      hints.append([int(hint.removeprefix('h')) for hint in pairs[::2]])
      numbers.append(int(''.join(reversed(pairs[1::2]))))
    assert numbers[0] + numbers[1] == numbers[2]
    assert hints[0] == hints[1] == hints[2][:-1]
    assert hints[2] == list(range(hints[2][0], hints[2][0] + length + 1))
    starts.add(hints[2][0])
  assert len(starts) > 60
  assert max(starts) > 110


def test_hints_are_as_many_as_there_are():
  _, answer = algorithms.addition_hints(np.random.default_rng(0), 127)
  assert max(answer) == len(synthetic.get('addition_hints').alphabet) - 1
  with pytest.raises(ValueError, match='128 hints, too few for 128 digits'):
    algorithms.addition_hints(np.random.default_rng(0), 128)


def test_summation_is_the_last_digit_of_the_sum():
  for length, prompt, answer in questions('summation'):
    total = 0
    for digit in prompt:
      total += digit
    assert str(total)[-1] == str(*answer)
    assert len(prompt) == length


def test_the_needle_is_what_the_mark_announced():
  places = set()
  for length, prompt, answer in questions('needle_retrieval'):
    words = [synthetic.get('needle_retrieval').alphabet[s] for s in prompt]
    assert words.count('needle') == 1
    place = words.index('needle')
    assert answer == [prompt[place + 1]]
    assert set(words) <= {'needle', *'abcdefghijklmnop'}
    places.add((length, place))
  assert {place for length, place in places if length == 7} == set(range(7))
