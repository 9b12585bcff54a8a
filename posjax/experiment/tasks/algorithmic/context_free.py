"""The regular and the deterministic context-free tasks of the Chomsky hierarchy.

Regular: even pairs, modular arithmetic, parity check (`algorithms.parity`), cycle navigation.
Deterministic context-free: stack manipulation, reverse string, modular arithmetic with brackets,
solve equation. Each is `(rng, length) -> (prompt, answer)` as in `algorithms`, and `length` counts
the symbols of the prompt.

Reference: Delétang et al. 2023, https://arxiv.org/abs/2207.02098, table 1; five residues and cycles
of five as in Ruoss et al. 2023, https://arxiv.org/abs/2305.16843. DeepMind's code makes up
questions where a length is too short for a task, which are refused here, and takes as unknown of an
equation the next digit after a uniform place, where here any digit is as likely.

Example:
  >>> import numpy as np
  >>> from posjax.experiment.tasks.algorithmic import context_free
  >>> prompt, answer = context_free.even_pairs(np.random.default_rng(0), length=5)
  >>> answer == [int(prompt[0] != prompt[-1])]
  True
"""

import itertools

import numpy as np

from posjax.experiment.tasks.algorithmic.algorithms import check_length, uniform

MODULUS = 5
RESIDUES = tuple('01234')
ARITHMETIC = (*RESIDUES, *'+-*')
BRACKETED = (*ARITHMETIC, *'()')
EQUATION = (*BRACKETED, *'x=')
MOVES = (*RESIDUES, 'left', 'stay', 'right')
STACK = ('0', '1', 'pop', 'push0', 'push1')
_POP, _PUSH = 2, 3  # symbols of STACK


def even_pairs(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says whether `01` and `10` together are odd in number: `0 1 0 1 0 0 1` gives `1`.

  Args:
    rng: source of chance.
    length: bits in the prompt, 1 or more, uniform.

  Returns:
    Prompt (`length` bits) and answer (one bit: 0 if even).
  """
  prompt = uniform(rng, 2, length)
  changes = sum(a != b for a, b in itertools.pairwise(prompt))
  return prompt, [changes % 2]


def modular_arithmetic(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Computes modulo 5, products first: `1 + 2 * 3` gives `2`.

  Args:
    rng: source of chance.
    length: symbols in the prompt, 1 or more; expressions are odd, so an even length gives one
      symbol less. Residues and `+ - *` are uniform.

  Returns:
    Prompt (`length` symbols, or one less) and answer (one residue).
  """
  residues = uniform(rng, MODULUS, length - length // 2)
  operators = rng.integers(3, size=len(residues) - 1).tolist()
  prompt, terms = [residues[0]], [residues[0]]
  for operator, residue in zip(operators, residues[1:], strict=True):
    prompt += [MODULUS + operator, residue]
    if ARITHMETIC[MODULUS + operator] == '*':
      terms[-1] = terms[-1] * residue % MODULUS
    else:
      terms.append(residue if ARITHMETIC[MODULUS + operator] == '+' else -residue)
  return prompt, [sum(terms) % MODULUS]


def cycle_navigation(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says where on a circle of five places a walk from 0 ends: `right right left` gives `1`.

  Args:
    rng: source of chance.
    length: moves, 1 or more; each is `left` (-1), `stay` or `right` (+1), uniformly.

  Returns:
    Prompt (`length` moves) and answer (one of `0` to `4`).
  """
  moves = uniform(rng, 3, length)
  return [MODULUS + move for move in moves], [sum(move - 1 for move in moves) % MODULUS]


def stack_manipulation(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says a stack from its top after some actions: `0 1 push0 pop pop` gives `0`.

  A `pop` of the empty stack does nothing.

  Args:
    rng: source of chance.
    length: symbols in the prompt, 1 or more: a stack from its bottom, of 1 to `length - 1` bits
      (one bit where `length` is 1), then the actions, each `pop`, `push0` or `push1`; all uniform.

  Returns:
    Prompt (`length` symbols) and answer (0 to `length` bits).
  """
  check_length(length, 1)
  bits = int(rng.integers(1, length)) if length > 1 else 1
  stack = uniform(rng, 2, bits)
  actions = [_POP + action for action in rng.integers(3, size=length - bits).tolist()]
  prompt = [*stack, *actions]
  for action in actions:
    if action >= _PUSH:
      stack.append(action - _PUSH)
    elif stack:
      stack.pop()
  return prompt, stack[::-1]


def reverse_string(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says bits from their end: `0 1 1` gives `1 1 0`.

  Args:
    rng: source of chance.
    length: bits in the prompt, 1 or more, uniform.

  Returns:
    Prompt and answer (`length` bits each).
  """
  prompt = uniform(rng, 2, length)
  return prompt, prompt[::-1]


def modular_arithmetic_brackets(
  rng: np.random.Generator, length: int
) -> tuple[list[int], list[int]]:
  """Computes modulo 5 with brackets: `( ( - 2 ) * 4 )` gives `2`.

  An expression of 1 to 4 symbols is `d`, `- d`, `( d )` or `( - d )`, d a residue; a longer one is
  `( left operator right )`, the length of `left` and the operator (`+ - *`) uniform.

  Args:
    rng: source of chance.
    length: symbols in the prompt, 1 or more.

  Returns:
    Prompt (`length` symbols) and answer (one residue).
  """
  prompt, value = _expression(rng, length, operators='+-*')
  return prompt, [value]


def solve_equation(rng: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
  """Says what x is, modulo 5: `( x - 2 ) = 4` gives `1`.

  An expression of `modular_arithmetic_brackets` without products, in which one digit, uniformly, is
  x; then `=` and its value. So there is one solution.

  Args:
    rng: source of chance.
    length: symbols in the prompt, 3 or more.

  Returns:
    Prompt (`length` symbols) and answer (one residue).

  Raises:
    ValueError: the length is below 3.
  """
  check_length(length, 3)
  expression, value = _expression(rng, length - 2, operators='+-')
  digits = [place for place, symbol in enumerate(expression) if symbol < MODULUS]
  place = digits[rng.integers(len(digits))]
  solution = expression[place]
  expression[place] = EQUATION.index('x')
  return [*expression, EQUATION.index('='), value], [solution]


def _expression(rng: np.random.Generator, length: int, operators: str) -> tuple[list[int], int]:
  """Symbols of BRACKETED, and their value modulo 5."""
  if length < 5:
    (digit,) = uniform(rng, MODULUS, min(length, 1))
    signed = [BRACKETED.index('-')] * (length % 2 == 0) + [digit]
    value = digit if length % 2 else -digit % MODULUS
    return (signed if length < 3 else _bracketed(signed)), value
  split = int(rng.integers(1, length - 3))
  left, a = _expression(rng, split, operators)
  right, b = _expression(rng, length - 3 - split, operators)
  operator = operators[rng.integers(len(operators))]
  value = {'+': a + b, '-': a - b, '*': a * b}[operator] % MODULUS
  return _bracketed([*left, BRACKETED.index(operator), *right]), value


def _bracketed(symbols: list[int]) -> list[int]:
  return [BRACKETED.index('('), *symbols, BRACKETED.index(')')]
