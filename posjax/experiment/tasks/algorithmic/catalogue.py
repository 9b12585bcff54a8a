"""Every algorithm by its name, with what is needed to frame and print its questions."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from posjax.arguments import check_known
from posjax.experiment.tasks.algorithmic import algorithms, context_free, context_sensitive


class Algorithm(NamedTuple):
  """An algorithm, and what is needed to frame and print its questions.

  Attributes:
    generate: `(rng, length) -> (prompt, answer)`, lists of symbols.
    alphabet: the name of each symbol, for printing.
    prompt_symbols: `length ->` the number of symbols in a prompt.
    answer_symbols: `length ->` the largest number of symbols in an answer.
    varies: whether answers to prompts of one length may differ in length.
    shortest: the smallest length there is.
  """

  generate: Callable[[np.random.Generator, int], tuple[list[int], list[int]]]
  alphabet: tuple[str, ...]
  prompt_symbols: Callable[[int], int]
  answer_symbols: Callable[[int], int]
  varies: bool = False
  shortest: int = 1

  def most_symbols(self, length: int) -> int:
    """The largest number of symbols in prompt and answer together."""
    return self.prompt_symbols(length) + self.answer_symbols(length)


_same = lambda length: length
_one = lambda length: 1
_twice = lambda length: 2 * length
_half = lambda length: -(-length // 2)
_more = lambda length: length + 1
_less = lambda length: length - 1
_odd = lambda length: length - (length + 1) % 2
_operands = lambda length: 2 * length + 1
_LETTERS, _DIGITS, _BITS = algorithms.LETTERS, algorithms.DIGITS, context_sensitive.BITS
_BUCKETS = context_sensitive.BUCKETS

_ALGORITHMS = {
  'addition': Algorithm(algorithms.addition, (*_DIGITS, '+'), _operands, _more),
  'addition_hints': Algorithm(
    algorithms.addition_hints,
    (*_DIGITS, '+', *algorithms.HINTS),
    lambda length: 4 * length + 1,
    lambda length: 2 * length + 2,
  ),
  'associative_recall': Algorithm(
    algorithms.associative_recall, (*algorithms.KEYS, *algorithms.VALUES), _operands, _one
  ),
  'copy': Algorithm(algorithms.copy, _LETTERS, _same, _same),
  'copy_repeats': Algorithm(algorithms.copy_repeats, _LETTERS[:2], _same, _same),
  'copy_unique': Algorithm(algorithms.copy_unique, algorithms.KEYS, _same, _same),
  'dyck': Algorithm(algorithms.dyck, algorithms.BRACKETS, _same, _same, varies=True),
  'needle_retrieval': Algorithm(
    algorithms.needle_retrieval, (*_LETTERS, algorithms.NEEDLE), _more, _one
  ),
  'parity': Algorithm(algorithms.parity, _BITS, _same, _one),
  'reverse': Algorithm(algorithms.reverse, _LETTERS, _same, _same),
  'sort': Algorithm(algorithms.sort, _LETTERS, _same, _same),
  'summation': Algorithm(algorithms.summation, _DIGITS, _same, _one),
}

# The Chomsky hierarchy, level by level.
_REGULAR = {
  'even_pairs': Algorithm(context_free.even_pairs, _BITS, _same, _one),
  'modular_arithmetic': Algorithm(
    context_free.modular_arithmetic, context_free.ARITHMETIC, _odd, _one
  ),
  'parity_check': _ALGORITHMS['parity'],
  'cycle_navigation': Algorithm(context_free.cycle_navigation, context_free.MOVES, _same, _one),
}
_CONTEXT_FREE = {
  'stack_manipulation': Algorithm(
    context_free.stack_manipulation, context_free.STACK, _same, _same, varies=True
  ),
  'reverse_string': Algorithm(context_free.reverse_string, _BITS, _same, _same),
  'modular_arithmetic_brackets': Algorithm(
    context_free.modular_arithmetic_brackets, context_free.BRACKETED, _same, _one
  ),
  'solve_equation': Algorithm(
    context_free.solve_equation, context_free.EQUATION, _same, _one, shortest=3
  ),
}
_CONTEXT_SENSITIVE = {
  'duplicate_string': Algorithm(context_sensitive.duplicate_string, _BITS, _same, _twice),
  'missing_duplicate': Algorithm(
    context_sensitive.missing_duplicate, context_sensitive.MISSING, _same, _one, shortest=2
  ),
  'odds_first': Algorithm(context_sensitive.odds_first, _BITS, _same, _same),
  'binary_addition': Algorithm(
    context_sensitive.binary_addition,
    context_sensitive.SUM,
    _same,
    _less,
    varies=True,
    shortest=3,
  ),
  'binary_multiplication': Algorithm(
    context_sensitive.binary_multiplication,
    context_sensitive.PRODUCT,
    _same,
    _less,
    varies=True,
    shortest=3,
  ),
  'compute_sqrt': Algorithm(context_sensitive.compute_sqrt, _BITS, _same, _half),
  'bucket_sort': Algorithm(context_sensitive.bucket_sort, _BUCKETS, _same, _same),
}
CHOMSKY = {
  'regular': tuple(_REGULAR),
  'deterministic context-free': tuple(_CONTEXT_FREE),
  'context-sensitive': tuple(_CONTEXT_SENSITIVE),
}
_ALGORITHMS |= _REGULAR | _CONTEXT_FREE | _CONTEXT_SENSITIVE


def names() -> tuple[str, ...]:
  """The names of all algorithms.

  Returns:
    Sorted names.
  """
  return tuple(sorted(_ALGORITHMS))


def get(name: str) -> Algorithm:
  """The algorithm of this name.

  Args:
    name: one of `names()`.

  Returns:
    An `Algorithm`.

  Raises:
    ValueError: there is none of this name.
  """
  check_known('algorithm', name, names())
  return _ALGORITHMS[name]
