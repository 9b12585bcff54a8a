"""The context-sensitive tasks of the Chomsky hierarchy.

Duplicate string, missing duplicate, odds first, binary addition, binary multiplication, compute
sqrt, bucket sort. Each is `(rng, length) -> (prompt, answer)` as in `algorithms`, and `length`
counts the symbols of the prompt. Numbers are drawn bit by bit, so that no length overflows.

Reference: Delétang et al. 2023, https://arxiv.org/abs/2207.02098, table 1; binary strings and five
buckets as in Ruoss et al. 2023, https://arxiv.org/abs/2305.16843. DeepMind's code makes up
questions where a length is too short for a task, which are refused here, and puts the even places
first in `odds_first`, against the paper.

Example:
  >>> import numpy as np
  >>> from posjax.experiment.tasks.algorithmic import context_sensitive
  >>> prompt, answer = context_sensitive.odds_first(np.random.default_rng(0), length=5)
  >>> answer == prompt[0::2] + prompt[1::2]
  True
"""

import math

import numpy as np

from posjax.experiment.tasks.algorithmic.algorithms import check_length, uniform

BITS = ('0', '1')
BUCKETS = tuple('01234')
MISSING = ('0', '1', '?', '_')
SUM = ('0', '1', '+')
PRODUCT = ('0', '1', '*')


def duplicate_string(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says bits twice: `0 1 1` gives `0 1 1 0 1 1`.

  Args:
    rng: source of chance.
    length: bits in the prompt, 1 or more, uniform.

  Returns:
    Prompt (`length` bits) and answer (`2 * length`).
  """
  prompt = uniform(rng, 2, length)
  return prompt, prompt * 2


def missing_duplicate(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says which bit is hidden in a string that occurs twice: `1 0 1 1 ? 1` gives `0`.

  Args:
    rng: source of chance.
    length: symbols in the prompt, 2 or more: `length // 2` uniform bits, twice, one of them `?`,
      uniformly; an odd length ends in `_`.

  Returns:
    Prompt (`length` symbols) and answer (one bit).

  Raises:
    ValueError: the length is below 2.
  """
  check_length(length, 2)
  prompt = uniform(rng, 2, length // 2) * 2
  place = int(rng.integers(len(prompt)))
  answer = prompt[place]
  prompt[place] = MISSING.index('?')
  return prompt + [MISSING.index('_')] * (length % 2), [answer]


def odds_first(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says the first, third, .. bit, then the second, fourth, ..: `0 1 1 0 1` gives `0 1 1 1 0`.

  Args:
    rng: source of chance.
    length: bits in the prompt, 1 or more, uniform.

  Returns:
    Prompt and answer (`length` bits each).
  """
  prompt = uniform(rng, 2, length)
  return prompt, prompt[::2] + prompt[1::2]


def binary_addition(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Adds binary numbers, units first: `0 1 + 1 1` (2 + 3) gives `1 0 1`.

  Args:
    rng: source of chance.
    length: symbols in the prompt, 3 or more; the place of the `+` is uniform, and so is each number
      among those from 1 that fit its places.

  Returns:
    Prompt (`length` symbols) and answer (the sum without zeros at its end, 1 to `length - 1` bits).

  Raises:
    ValueError: the length is below 3.
  """
  left, right = _operands(rng, length)
  total = _number(left) + _number(right)
  return [*left, SUM.index('+'), *right], _bits(total)


def binary_multiplication(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Multiplies binary numbers, units first: `0 1 * 1 1` (2 times 3) gives `0 1 1`.

  Args:
    rng: source of chance.
    length: as for `binary_addition`.

  Returns:
    Prompt (`length` symbols) and answer (the product without zeros at its end, 1 to `length - 1`
    bits).

  Raises:
    ValueError: the length is below 3.
  """
  left, right = _operands(rng, length)
  product = _number(left) * _number(right)
  return [*left, PRODUCT.index('*'), *right], _bits(product)


def compute_sqrt(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says the integer part of a square root, in binary, units last: `1 0 0 1 0 1` gives `1 1 0`.

  Args:
    rng: source of chance.
    length: bits of the number, 1 or more; it is uniform among those from 1.

  Returns:
    Prompt (`length` bits) and answer (half as many, rounded up, with zeros before it).
  """
  prompt = _positive(rng, length)
  root = _bits(math.isqrt(_number(prompt[::-1])))[::-1]
  return prompt, [0] * (-(-length // 2) - len(root)) + root


def bucket_sort(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says digits of 0 to 4 in ascending order: `1 0 4 1` gives `0 1 1 4`.

  Args:
    rng: source of chance.
    length: digits in the prompt, 1 or more, uniform.

  Returns:
    Prompt and answer (`length` digits each).
  """
  prompt = uniform(rng, len(BUCKETS), length)
  return prompt, sorted(prompt)


def _operands(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  check_length(length, 3)
  first = int(rng.integers(1, length - 1))
  return _positive(rng, first), _positive(rng, length - 1 - first)


def _positive(rng: np.random.Generator, length: int) -> list[int]:
  """Bits, uniform among all but the zeros."""
  bits = uniform(rng, 2, length)
  while not any(bits):
    bits = uniform(rng, 2, length)
  return bits


def _number(bits: list[int]) -> int:
  """The number whose bits are given from the units up."""
  return int(''.join(map(str, reversed(bits))), 2)


def _bits(number: int) -> list[int]:
  """From the units up, no zeros at the end."""
  return [int(bit) for bit in reversed(f'{number:b}')]
