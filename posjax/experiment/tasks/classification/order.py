"""Texts whose label is an order: does one word come before another?

The words alone tell nothing, nor does where either of the two stands: a model must see both, and
which is first. For trying out, where there is no data.
"""

import numpy as np

WORDS = tuple(f'word{number}' for number in range(20))
FIRST, SECOND = 'one', 'two'
LABELS = ('before', 'after')
_COUNTS = (2048, 256)
_LENGTHS = (4, 16)  # words, both included


def examples() -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
  """The same texts every time: training ones and held-out ones, (label, text, where).

  Example:
    >>> examples()[0][5]
    ('after', 'word11 two word19 one', 'synthetic:order, text 6')
  """
  rng = np.random.default_rng(0)
  texts = [_example(rng, number) for number in range(1, sum(_COUNTS) + 1)]
  return texts[: _COUNTS[0]], texts[_COUNTS[0] :]


def _example(rng: np.random.Generator, number: int) -> tuple[str, str, str]:
  length = rng.integers(_LENGTHS[0], _LENGTHS[1] + 1)
  words = list(rng.choice(WORDS, length))
  first, second = rng.permutation(length)[:2]
  words[first], words[second] = FIRST, SECOND
  return LABELS[int(first > second)], ' '.join(words), f'synthetic:order, text {number}'
