"""The fifteen tasks of the Chomsky hierarchy, against what their definitions say."""

import itertools
import re

import numpy as np
import pytest

from posjax.experiment.tasks.algorithmic import catalogue

LENGTHS = (1, 2, 3, 4, 5, 6, 9, 30, 131)


def questions(name, count=40):
  """Prompt and answer in words, `count` times at every length that there is."""
  algorithm = catalogue.get(name)
  for length in filter(lambda length: length >= algorithm.shortest, LENGTHS):
    for seed in range(count):
      prompt, answer = algorithm.generate(np.random.default_rng((seed, length)), length)
      assert len(prompt) == algorithm.prompt_symbols(length)
      words = [[algorithm.alphabet[symbol] for symbol in part] for part in (prompt, answer)]
      yield length, *words


def every_prompt(name, length, count=3000):
  """The prompts that come up at a length."""
  generate = catalogue.get(name).generate
  return {tuple(generate(np.random.default_rng(seed), length)[0]) for seed in range(count)}


def test_there_are_fifteen_at_three_levels():
  assert [len(tasks) for tasks in catalogue.CHOMSKY.values()] == [4, 4, 7]
  assert set(itertools.chain(*catalogue.CHOMSKY.values())) <= set(catalogue.names())


def test_even_pairs_counts_changes_so_it_compares_both_ends():
  for _, prompt, answer in questions('even_pairs'):
    text = ''.join(prompt)
    changes = sum(text.startswith(pair, i) for i in range(len(text)) for pair in ('01', '10'))
    assert answer == [str(changes % 2)]
    assert (answer == ['1']) == (text[0] != text[-1])


def test_modular_arithmetic_is_what_python_computes():
  seen = set()
  for length, prompt, answer in questions('modular_arithmetic'):
    assert len(prompt) in (length, length - 1)
    assert len(prompt) % 2 == 1
    assert answer == [str(eval(''.join(prompt)) % 5)]
    seen |= {*prompt, *answer}
  assert seen == set('01234+-*')


def test_parity_check_is_parity():
  for _, prompt, answer in questions('parity_check'):
    assert answer == [str(''.join(prompt).count('1') % 2)]


def test_cycle_navigation_walks_round_a_circle_of_five():
  step = {'left': {0: 4, 1: 0, 2: 1, 3: 2, 4: 3}, 'right': {0: 1, 1: 2, 2: 3, 3: 4, 4: 0}}
  for length, prompt, answer in questions('cycle_navigation'):
    place = 0
    for move in prompt:
      place = place if move == 'stay' else step[move][place]
    assert answer == [str(place)]
    assert len(prompt) == length


def test_stack_manipulation_simulates_a_stack():
  for length, prompt, answer in questions('stack_manipulation'):
    text = ' '.join(prompt)
    bits, actions = re.fullmatch(r'((?:[01] ?)+)((?:(?:pop|push0|push1) ?)*)', text).groups()
    tape = bits.replace(' ', '')
    for action in actions.split():
      tape = tape[:-1] if action == 'pop' else tape + action[-1]
    assert ''.join(answer) == tape[::-1]
    assert len(prompt) == length


def test_stacks_of_all_heights_come_up():
  heights = {
    sum(symbol < 2 for symbol in prompt) for prompt in every_prompt('stack_manipulation', 6)
  }
  assert heights == {1, 2, 3, 4, 5}


def test_reverse_string_reads_from_the_end():
  for length, prompt, answer in questions('reverse_string'):
    assert all(answer[i] == prompt[length - 1 - i] for i in range(length))
    assert set(prompt) <= {'0', '1'}


def test_brackets_are_what_python_computes():
  operators = set()
  for length, prompt, answer in questions('modular_arithmetic_brackets'):
    assert len(prompt) == length
    assert answer == [str(eval(''.join(prompt)) % 5)]
    operators |= set(prompt)
  assert operators == set('01234+-*()')


@pytest.mark.parametrize(
  ('length', 'forms'),
  [
    (1, ['d']),
    (2, ['-d']),
    (3, ['(d)']),
    (4, ['(-d)']),
    (5, ['(dod)']),
    (6, ['(do-d)', '(-dod)']),
    (7, ['(do(d))', '((d)od)', '(-do-d)']),
  ],
)
def test_expressions_are_those_of_the_grammar(length, forms):
  words = catalogue.get('modular_arithmetic_brackets').alphabet
  shapes = {'o': '+-*', 'd': '01234'}
  expected = {
    ''.join(filled)
    for form in forms
    for filled in itertools.product(*(shapes.get(symbol, symbol) for symbol in form))
  }
  seen = {
    ''.join(words[symbol] for symbol in prompt)
    for prompt in every_prompt('modular_arithmetic_brackets', length)
  }
  assert seen == expected


def test_an_equation_has_one_solution():
  for length, prompt, answer in questions('solve_equation'):
    left, right = ''.join(prompt).split('=')
    solves = [x for x in '01234' if eval(left.replace('x', x)) % 5 == int(right)]
    assert solves == answer
    assert len(prompt) == length
    assert prompt.count('x') == 1
    assert '*' not in prompt


def test_any_digit_may_be_the_unknown():
  x = catalogue.get('solve_equation').alphabet.index('x')
  assert {prompt.index(x) for prompt in every_prompt('solve_equation', 7)} == {1, 3}


def test_duplicate_string_says_it_twice():
  for length, prompt, answer in questions('duplicate_string'):
    assert ''.join(answer) == ''.join(prompt) + ''.join(prompt)
    assert len(answer) == 2 * length


def test_missing_duplicate_is_the_bit_that_makes_both_halves_equal():
  for length, prompt, answer in questions('missing_duplicate'):
    assert (prompt[-1] == '_') == (length % 2 == 1)
    text = ''.join(prompt).rstrip('_')
    assert text.count('?') == 1
    filled = [text.replace('?', bit) for bit in '01']
    whole = [
      bit for bit, string in zip('01', filled, strict=True) if string[: length // 2] * 2 == string
    ]
    assert whole == answer


def test_any_place_may_be_missing():
  assert {prompt.index(2) for prompt in every_prompt('missing_duplicate', 7)} == set(range(6))


def test_odds_first_takes_every_other_place_counted_from_one():
  for length, prompt, answer in questions('odds_first'):
    places = [n for n in range(1, length + 1) if n % 2 == 1]
    places += [n for n in range(1, length + 1) if n % 2 == 0]
    assert answer == [prompt[n - 1] for n in places]


@pytest.mark.parametrize(
  ('name', 'sign'), [('binary_addition', '+'), ('binary_multiplication', '*')]
)
def test_binary_arithmetic_is_that_of_integers(name, sign):
  splits = set()
  for length, prompt, answer in questions(name):
    left, right = (
      sum(int(bit) << i for i, bit in enumerate(part)) for part in ''.join(prompt).split(sign)
    )
    assert left > 0
    assert right > 0
    result = left + right if sign == '+' else left * right
    assert ''.join(answer) == bin(result)[:1:-1]
    assert len(prompt) == length
    splits.add((length, prompt.index(sign)))
  assert {place for length, place in splits if length == 6} == {1, 2, 3, 4}


def test_compute_sqrt_is_the_largest_integer_whose_square_fits():
  for length, prompt, answer in questions('compute_sqrt'):
    number, root = int(''.join(prompt), 2), int(''.join(answer), 2)
    assert number > 0
    assert root**2 <= number < (root + 1) ** 2
    assert len(answer) == (length + 1) // 2


def test_all_numbers_but_zero_have_their_root_asked():
  assert every_prompt('compute_sqrt', 4) == set(itertools.product((0, 1), repeat=4)) - {(0,) * 4}


def test_bucket_sort_is_an_ascending_permutation_of_five_digits():
  for length, prompt, answer in questions('bucket_sort'):
    assert all(answer[i] <= answer[i + 1] for i in range(length - 1))
    assert all(answer.count(digit) == prompt.count(digit) for digit in '01234')
    assert len(answer) == length
