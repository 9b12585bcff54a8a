"""Algorithms to learn, as pure generators of questions with one right answer.

Each is `(rng, length) -> (prompt, answer)`: lists of symbols, small integers from 0 that the
algorithm's alphabet names. What `length` counts is the algorithm's to say. The same state of `rng`
gives the same question. A length below 1 raises ValueError.

Example:
  >>> import numpy as np
  >>> from posjax.experiment.tasks.algorithmic import algorithms
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
HINTS = tuple(f'h{index}' for index in range(128))
NEEDLE = 'needle'
PLUS = len(DIGITS)


def copy(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says the prompt again: `b a d` gives `b a d`.

  Args:
    rng: source of chance.
    length: number of symbols in the prompt, 1 or more; each is one of 16 letters, uniformly.

  Returns:
    Prompt (`length` symbols) and answer (`length`).
  """
  prompt = uniform(rng, len(LETTERS), length)
  return prompt, list(prompt)


def copy_repeats(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Copies a prompt full of repeats: `a b b a b` gives `a b b a b`.

  With two letters, what follows a letter or a few of them says little about the place: copying by
  finding what was just generated fails. Reference: Zhou et al. 2023, https://arxiv.org/abs/2310.16028
  (copy with repeat tokens).

  Args:
    rng: source of chance.
    length: number of symbols in the prompt, 1 or more; each is `a` or `b`, uniformly.

  Returns:
    Prompt (`length` symbols) and answer (`length`).
  """
  prompt = uniform(rng, 2, length)
  return prompt, list(prompt)


def copy_unique(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Copies a prompt without repeats: `k7 k1 k4` gives `k7 k1 k4`.

  Reference: Zhou et al. 2023, https://arxiv.org/abs/2310.16028 (copy with unique tokens).

  Args:
    rng: source of chance.
    length: number of symbols in the prompt, 1 to 128; they differ, of 128.

  Returns:
    Prompt (`length` symbols) and answer (`length`).

  Raises:
    ValueError: there are not so many symbols.
  """
  check_length(length, 1)
  _check_most('copy_unique', f'{len(KEYS)} keys', len(KEYS), length, 'symbols')
  prompt = rng.permutation(len(KEYS))[:length].tolist()
  return prompt, list(prompt)


def reverse(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says the prompt from its end: `b a d` gives `d a b`.

  Args:
    rng: source of chance.
    length: number of symbols in the prompt, 1 or more; each is one of 16 letters, uniformly.

  Returns:
    Prompt (`length` symbols) and answer (`length`).
  """
  prompt = uniform(rng, len(LETTERS), length)
  return prompt, prompt[::-1]


def sort(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says the symbols of the prompt in ascending order: `b a d a` gives `a a b d`.

  Args:
    rng: source of chance.
    length: number of symbols in the prompt, 1 or more; each is one of 16 letters, uniformly.

  Returns:
    Prompt (`length` symbols) and answer (`length`).
  """
  prompt = uniform(rng, len(LETTERS), length)
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
  left, right = uniform(rng, len(DIGITS), length), uniform(rng, len(DIGITS), length)
  answer, carry = [], 0
  for total in (a + b for a, b in zip(left, right, strict=True)):
    carry, digit = divmod(total + carry, 10)
    answer.append(digit)
  return [*left, PLUS, *right], [*answer, carry]


def addition_hints(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Adds as `addition`, each digit named by its place: `h5 7 h6 2 + h5 5 h6 0` (27 + 5).

  The hints, the same for the same place, rise from one that is drawn, so that a digit is found by
  its name and far names are met at short lengths: the answer here is `h5 2 h6 3 h7 0`. Reference:
  Zhou et al. 2023, https://arxiv.org/abs/2310.16028 (index hints).

  Args:
    rng: source of chance.
    length: digits per operand, 1 to 127; the first hint is uniform among those of 128 after which
      there are enough for the answer.

  Returns:
    Prompt (`4 * length + 1` symbols) and answer (`2 * length + 2`).

  Raises:
    ValueError: there are not so many hints.
  """
  _check_most('addition_hints', f'{len(HINTS)} hints', len(HINTS) - 1, length, 'digits')
  prompt, answer = addition(rng, length)
  first = PLUS + 1 + int(rng.integers(len(HINTS) - length))

  def hinted(digits):
    return [symbol for i, digit in enumerate(digits) for symbol in (first + i, digit)]

  return [*hinted(prompt[:length]), PLUS, *hinted(prompt[length + 1 :])], hinted(answer)


def summation(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Adds digits modulo 10: `3 9 4` gives `6`.

  Reference: Kazemnejad et al. 2023, https://arxiv.org/abs/2305.19466 (summation, without the plus
  signs).

  Args:
    rng: source of chance.
    length: number of digits in the prompt, 1 or more; each is one of 0 to 9, uniformly.

  Returns:
    Prompt (`length` digits) and answer (one digit).
  """
  prompt = uniform(rng, len(DIGITS), length)
  return prompt, [sum(prompt) % len(DIGITS)]


def parity(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says whether the number of ones is odd: `1 0 1 1` gives `1`.

  Args:
    rng: source of chance.
    length: number of bits in the prompt, 1 or more; each is 0 or 1, uniformly.

  Returns:
    Prompt (`length` bits) and answer (one bit).
  """
  prompt = uniform(rng, 2, length)
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
  opens, kinds = uniform(rng, 2, length), uniform(rng, 2, length)
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
  _check_most('associative_recall', f'{len(KEYS)} keys', len(KEYS), length, 'pairs')
  values = [len(KEYS) + value for value in uniform(rng, len(VALUES), length)]
  keys = rng.permutation(len(KEYS))[:length].tolist()
  asked = int(rng.integers(length))
  pairs = [symbol for pair in zip(keys, values, strict=True) for symbol in pair]
  return [*pairs, keys[asked]], [values[asked]]


def needle_retrieval(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says the letter that a mark announced: `b a needle d c` gives `d`.

  The letter looks like all others: only the mark before it tells. In the manner of the passkeys of
  Mohtashami & Jaggi 2023, https://arxiv.org/abs/2305.16300.

  Args:
    rng: source of chance.
    length: letters in the prompt, 1 or more, each one of 16, uniformly; the mark comes before any
      of them, uniformly.

  Returns:
    Prompt (`length + 1` symbols) and answer (one letter).
  """
  letters = uniform(rng, len(LETTERS), length)
  place = int(rng.integers(length))
  return [*letters[:place], len(LETTERS), *letters[place:]], [letters[place]]


def uniform(rng: np.random.Generator, choices: int, length: int) -> list[int]:
  """`length` symbols below `choices`, each as likely.

  Raises:
    ValueError: the length is below 1.
  """
  check_length(length, 1)
  return rng.integers(choices, size=length).tolist()


def check_length(length: int, least: int) -> None:
  """An algorithm begins at some length.

  Raises:
    ValueError: this one is below it.
  """
  if length < least:
    raise ValueError(f'length should be at least {least}, but is {length}.')


def _check_most(name: str, has: str, most: int, length: int, what: str) -> None:
  if length > most:
    raise ValueError(f'{name} has {has}, too few for {length} {what}.')
