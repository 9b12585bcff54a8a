"""Algorithms to learn, as pure generators of questions with one right answer.

Each is `(rng, length) -> (prompt, answer)`: lists of symbols, small integers from 0 that the
algorithm's alphabet names. What `length` counts is the algorithm's to say. The same state of `rng`
gives the same question. A length below 1 raises ValueError.

Example:
  >>> import numpy as np
  >>> from posjax.experiment.data import algorithms
  >>> prompt, answer = algorithms.sort(np.random.default_rng(0), length=5)
  >>> answer == sorted(prompt)
  True
"""

import numpy as np

LETTERS = tuple('abcdefghijklmnop')
DIGITS = tuple('0123456789')
BRACKETS = ('(', ')', '[', ']')
KEYS = tuple(f'k{index}' for index in range(128))
VALUES = tuple(f'v{index}' for index in range(16))
PLUS = len(DIGITS)


def copy(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says the prompt again: `b a d` gives `b a d`.

  Args:
    rng: source of chance.
    length: number of symbols in the prompt, 1 or more; each is one of 16 letters, uniformly.

  Returns:
    Prompt (`length` symbols) and answer (`length`).
  """
  prompt = _uniform(rng, len(LETTERS), length)
  return prompt, list(prompt)


def reverse(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says the prompt from its end: `b a d` gives `d a b`.

  Args:
    rng: source of chance.
    length: number of symbols in the prompt, 1 or more; each is one of 16 letters, uniformly.

  Returns:
    Prompt (`length` symbols) and answer (`length`).
  """
  prompt = _uniform(rng, len(LETTERS), length)
  return prompt, prompt[::-1]


def sort(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says the symbols of the prompt in ascending order: `b a d a` gives `a a b d`.

  Args:
    rng: source of chance.
    length: number of symbols in the prompt, 1 or more; each is one of 16 letters, uniformly.

  Returns:
    Prompt (`length` symbols) and answer (`length`).
  """
  prompt = _uniform(rng, len(LETTERS), length)
  return prompt, sorted(prompt)


def addition(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Adds two numbers, least significant digit first: `7 2 + 5 0` (27 + 5) gives `2 3 0`.

  All three numbers start at their units, the order in which carries flow, and are filled up with
  zeros, so that a digit's place alone says what it adds to.

  Args:
    rng: source of chance.
    length: digits per operand, 1 or more; each is one of 0 to 9, uniformly.

  Returns:
    Prompt (`2 * length + 1` symbols: operand, `+`, operand) and answer (`length + 1` digits).
  """
  left, right = _uniform(rng, len(DIGITS), length), _uniform(rng, len(DIGITS), length)
  answer, carry = [], 0
  for total in (a + b for a, b in zip(left, right, strict=True)):
    carry, digit = divmod(total + carry, 10)
    answer.append(digit)
  return [*left, PLUS, *right], [*answer, carry]


def parity(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says whether the number of ones is odd: `1 0 1 1` gives `1`.

  Args:
    rng: source of chance.
    length: number of bits in the prompt, 1 or more; each is 0 or 1, uniformly.

  Returns:
    Prompt (`length` bits) and answer (one bit).
  """
  prompt = _uniform(rng, 2, length)
  return prompt, [sum(prompt) % 2]


def dyck(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Closes what is open, the innermost first: `( [ ] [` gives `] )`.

  The prompt is the beginning of a word of Dyck-2, the well nested words over `()` and `[]`. Where
  brackets are open, the next one opens or closes with equal chance; otherwise it opens. Both kinds
  are as likely. So the answer has as many brackets as are open, from none to `length`.

  Args:
    rng: source of chance.
    length: number of brackets in the prompt, 1 or more.

  Returns:
    Prompt (`length` brackets) and answer (0 to `length` closing brackets).
  """
  opens, kinds = _uniform(rng, 2, length), _uniform(rng, 2, length)
  prompt, unclosed = [], []
  for is_open, kind in zip(opens, kinds, strict=True):
    if is_open or not unclosed:
      prompt.append(2 * kind)
      unclosed.append(2 * kind + 1)
    else:
      prompt.append(unclosed.pop())
  return prompt, unclosed[::-1]


def associative_recall(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says which value came with a key: `k7 v3 k1 v0 k4 v3 k1` gives `v0`.

  Args:
    rng: source of chance.
    length: number of pairs in the prompt, 1 to 128; their keys differ, of 128; each value is one of
      16, uniformly; any of the keys may be asked for.

  Returns:
    Prompt (`2 * length + 1` symbols: key, value, ..., key) and answer (one value).

  Raises:
    ValueError: there are not so many keys.
  """
  if length > len(KEYS):
    raise ValueError(f'associative_recall has {len(KEYS)} keys, too few for {length} pairs.')
  values = [len(KEYS) + value for value in _uniform(rng, len(VALUES), length)]
  keys = rng.permutation(len(KEYS))[:length].tolist()
  asked = int(rng.integers(length))
  pairs = [symbol for pair in zip(keys, values, strict=True) for symbol in pair]
  return [*pairs, keys[asked]], [values[asked]]


def _uniform(rng: np.random.Generator, choices: int, length: int) -> list[int]:
  if length < 1:
    raise ValueError(f'length should be at least 1, but is {length}.')
  return rng.integers(choices, size=length).tolist()
