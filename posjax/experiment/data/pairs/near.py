"""Generated pairs whose label is a distance: `synthetic:near`, with 1, 4 or 16 thousand pairs.

A premise has three nouns and three colours, each colour near one of the nouns: before or after it,
with at most one filler word between, so that their distance is 1 or 2. Three or four fillers stand
between such groups, so that any other noun and colour are at a distance of 4 or more. A hypothesis
is one of the colours and one of the nouns, in any order. It is entailed where their distance in the
premise is at most 2, and contradicted where it is 4 or more:

    entailment      cat red um er so uh dog well blue ..    the hypothesis: red cat
    contradiction   cat blue um er so uh dog well red ..    the hypothesis: red cat

Pairs come in twins, as above: one hypothesis, and premises of the same words, in which the colours
have changed places. So the words alone tell nothing, nor does which word of the one sentence is
aligned with which of the other: a model whose encoder does not know positions reads both twins
alike, says the same of them, and is right about one of the two, exactly half of the time. Which
word comes first tells nothing either: a distance does, and it may be an even function, as of a
Gaussian prior.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

Example = tuple[str, str, str, str]

NOUNS = ('cat', 'dog', 'cow', 'fox', 'owl', 'pig', 'hen', 'bee')
COLOURS = ('red', 'blue', 'green', 'white', 'black', 'brown', 'pink', 'gold')
FILLERS = ('um', 'er', 'so', 'uh', 'well', 'oh', 'ah', 'hm')
GROUPS = 3
NEAR, FAR = 2, 4  # a colour is at most NEAR words from its noun, and at least FAR from another
SIZES: Mapping[str, int] = MappingProxyType(
  {'near': 4000, 'near_1k': 1000, 'near_4k': 4000, 'near_16k': 16000}
)
HELD_OUT = 1000


def pairs(name: str) -> tuple[list[Example], list[Example]]:
  """The same pairs every time: training ones and held-out ones, in twins.

  The held-out pairs are the same for all sizes, and the training pairs of a smaller size are the
  first ones of a larger. No premise occurs twice.

  Args:
    name: one of `SIZES`, which says how many training pairs there are; `near` is `near_4k`.

  Returns:
    Training pairs and held-out ones: (label, premise, hypothesis, where).
  """
  twins = _twins(np.random.default_rng(0))
  seen: set[str] = set()
  parts = []
  for count in (HELD_OUT, SIZES[name]):
    part: list[tuple[str, str, str]] = []
    while len(part) < count:
      both = next(twins)
      premises = {premise for _, premise, _ in both}
      if not premises & seen:
        seen |= premises
        part += both
    parts.append(part)
  held_out, train = parts
  made = [
    (*each, f'synthetic:{name}, pair {number}')
    for number, each in enumerate([*train, *held_out], start=1)
  ]
  return made[: len(train)], made[len(train) :]


def _twins(rng: np.random.Generator) -> Iterator[list[tuple[str, str, str]]]:
  """Two pairs at a time, of one hypothesis and of premises of the same words."""
  while True:
    nouns = rng.permutation(NOUNS)[:GROUPS].tolist()
    colours = rng.permutation(COLOURS)[:GROUPS].tolist()
    groups = [(rng.integers(2), rng.integers(NEAR)) for _ in range(GROUPS)]
    gaps = [
      int(rng.integers(0, 3)),
      *(int(rng.integers(FAR - 1, FAR + 1)) for _ in range(GROUPS - 1)),
      int(rng.integers(0, 3)),
    ]
    fillers = rng.choice(FILLERS, sum(gaps) + GROUPS).tolist()
    at = int(rng.integers(GROUPS))  # the noun of the hypothesis
    shift = int(rng.integers(1, GROUPS))
    hypothesis = ' '.join(rng.permutation([nouns[at], colours[at]]).tolist())
    moved = [colours[(i + shift) % GROUPS] for i in range(GROUPS)]
    both = [
      ('entailment', _premise(nouns, colours, groups, gaps, fillers), hypothesis),
      ('contradiction', _premise(nouns, moved, groups, gaps, fillers), hypothesis),
    ]
    yield both


def _premise(
  nouns: Sequence[str],
  colours: Sequence[str],
  groups: Sequence[tuple[int, int]],
  gaps: Sequence[int],
  fillers: Sequence[str],
) -> str:
  """The words of a premise; the fillers are taken in their order, whatever the colours are."""
  rest = iter(fillers)
  words = [next(rest) for _ in range(gaps[0])]
  for noun, colour, (after, between), gap in zip(nouns, colours, groups, gaps[1:], strict=True):
    inner = [next(rest) for _ in range(between)]
    words += [noun, *inner, colour] if after else [colour, *inner, noun]
    words += [next(rest) for _ in range(gap)]
  return ' '.join(words)
