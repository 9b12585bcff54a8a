"""Generated pairs in which order decides: `synthetic:reversed`, `:reordered` and `:agreement`.

A sentence is of 3 to 6 distinct words out of 24, two of them nouns (capital letters, of which there
are 12), in an order in which every one is equally likely:

- `reversed`: the target is the sentence backwards.
- `reordered`: first the words at odd places, then those at even ones.
- `agreement`: all words by the alphabet, each with a mark. The noun that comes first and the words
  before the second noun have the mark 1; the second noun and the words after it have the mark 2.

Which words there are tells nothing about their order. So a decoder that sees a bag of words, as
behind an encoder without positions, cannot be right more often than `chance` says: 1/n! of the
sentences of n words where the target shows the whole order, 1/n where it shows the marks alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

Example = tuple[str, str, str]

NOUNS, OTHERS = 'ABCDEFGHIJKL', 'mnopqrstuvwx'
TRAIN, HELD_OUT = 4096, 512  # pairs
LENGTHS = (3, 6)  # words, both included


def pairs(name: str) -> tuple[list[Example], list[Example], str]:
  """The same pairs every time: training ones, held-out ones, and how these were chosen, in words.

  No training sentence has the same words as a held-out one, in whatever order: another order of
  them would tell what it is not. No two training sentences are equal, nor have two held-out ones
  the same words.

  Args:
    name: one of `NAMES`.

  Returns:
    (source, target, where) of each pair. Which pairs these are is part of a run's sha256.
  """
  rng = np.random.default_rng(0)
  translate = NAMES[name]
  held_out: dict[frozenset[str], Sequence[str]] = {}
  while len(held_out) < HELD_OUT:
    words = _sentence(rng)
    held_out.setdefault(frozenset(words), words)
  train: dict[tuple[str, ...], None] = {}
  while len(train) < TRAIN:
    words = _sentence(rng)
    if frozenset(words) not in held_out:
      train[words] = None
  made = [
    (' '.join(words), ' '.join(translate(words)), f'synthetic:{name}, pair {number}')
    for number, words in enumerate([*train, *held_out.values()], start=1)
  ]
  share = chance(name, [source for source, _, _ in made[TRAIN:]])
  cut = f'of other words; without their order at most {share:.1%} can be translated'
  return made[:TRAIN], made[TRAIN:], cut


def chance(name: str, sources: Sequence[str]) -> float:
  """The largest share of sentences that can be translated without knowing the order of their words.

  The share is that of whole sentences. It is reached by always saying the likeliest translation of
  a bag of words: for `agreement`, that all words but one noun have the mark 1.

  Args:
    name: one of `NAMES`.
    sources: sentences, one or more.

  Example:
    >>> chance('reversed', ['B A m'])  # one order of six
    0.16666666666666666
  """
  lengths = [len(source.split()) for source in sources]
  orders = [length if name == 'agreement' else math.factorial(length) for length in lengths]
  return sum(1 / count for count in orders) / len(orders)


def _sentence(rng: np.random.Generator) -> tuple[str, ...]:
  length = rng.integers(LENGTHS[0], LENGTHS[1] + 1)
  words = [*rng.choice([*NOUNS], 2, replace=False)]
  words += [*rng.choice([*OTHERS], length - 2, replace=False)]
  return tuple(str(word) for word in rng.permutation(words))


def _reversed(words: Sequence[str]) -> list[str]:
  return [*reversed(words)]


def _reordered(words: Sequence[str]) -> list[str]:
  return [*words[::2], *words[1::2]]


def _agreement(words: Sequence[str]) -> list[str]:
  second = [place for place, word in enumerate(words) if word in NOUNS][1]
  return sorted(f'{word}{1 + (place >= second)}' for place, word in enumerate(words))


NAMES: Mapping[str, Callable[[Sequence[str]], list[str]]] = MappingProxyType(
  {'reversed': _reversed, 'reordered': _reordered, 'agreement': _agreement}
)
