"""Generated pairs whose label is a distance: `synthetic:near`, with 1, 4 or 16 thousand pairs.

A premise has three nouns, and the word `not` near one of them: before or after it, with at most one
filler word between, so that their distance is 1 or 2. Fillers are between the nouns, so that
`not` is 4 or more words away from the others. A hypothesis is one of the nouns among fillers. It is
contradicted where `not` is near this noun in the premise, and entailed where it is far:

    contradiction   um cat not so er uh er dog hm well ..   the hypothesis: oh cat
    entailment      um cat hm so er uh er dog not well ..   the hypothesis: oh cat

So the noun of the hypothesis must be aligned with that of the premise, and the word near it be
known. Pairs come in twins, as above: one hypothesis, and premises of the same words, in which `not`
and a filler have changed places. So the words alone tell nothing, nor does which word of the one
sentence is aligned with which of the other: a model whose encoder does not know positions reads
both twins alike, says the same of them, and is right about one of the two, exactly half of the
time. Which word comes first tells nothing either: a distance does, and it may be an even function,
as of a Gaussian prior.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

Example = tuple[str, str, str, str]

NOUNS = ('cat', 'dog', 'cow', 'fox', 'owl', 'pig', 'hen', 'bee')
MARK = 'not'
FILLERS = ('um', 'er', 'so', 'uh', 'well', 'oh', 'ah', 'hm')
GROUPS = 3
NEAR, FAR = 2, 4  # the mark is at most NEAR words from one noun, and at least FAR from the others
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
    at, other = rng.permutation(GROUPS)[:2].tolist()  # the nouns near which `not` stands
    layout = [(int(rng.integers(2)), int(rng.integers(NEAR))) for _ in range(GROUPS)]
    gaps = [int(rng.integers(3)), *rng.integers(FAR - 1, FAR + 1, GROUPS - 1).tolist()]
    fillers = rng.choice(FILLERS, sum(gaps) + 2 * GROUPS + 4).tolist()
    hypothesis = [nouns[at], *fillers[: int(rng.integers(3))]]
    hypothesis = ' '.join(rng.permutation(hypothesis).tolist())
    near, far = MARK, fillers[3]
    rest = fillers[4:]
    yield [
      ('contradiction', _premise(nouns, {at: near, other: far}, layout, gaps, rest), hypothesis),
      ('entailment', _premise(nouns, {at: far, other: near}, layout, gaps, rest), hypothesis),
    ]


def _premise(
  nouns: Sequence[str],
  beside: Mapping[int, str],
  layout: Sequence[tuple[int, int]],
  gaps: Sequence[int],
  fillers: Sequence[str],
) -> str:
  """The words of a premise: fillers in their order, and each noun with a word beside it.

  Args:
    nouns: in their order.
    beside: the word near a noun, by the noun's number; the others have a filler.
    layout: for each noun, whether that word comes first, and how many fillers are between.
    gaps: how many fillers come before each noun and its word.
    fillers: as many as there is room for, and perhaps more.
  """
  rest, words = iter(fillers), []
  for number, (noun, (first, between), gap) in enumerate(zip(nouns, layout, gaps, strict=True)):
    words += [next(rest) for _ in range(gap)]
    inner, own = [next(rest) for _ in range(between)], next(rest)
    own = beside.get(number, own)
    words += [own, *inner, noun] if first else [noun, *inner, own]
  return ' '.join(words)
