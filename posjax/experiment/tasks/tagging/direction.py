"""Generated sentences in which only left or right decides: `synthetic:direction`.

A sentence has 5 to 12 words: the marker `here`, a name (`Name0` to `Name7`) that is neither its
first nor its last word, and words that say nothing. The name is an entity (`S-NAME`) if the marker
is on its left, and `O` if it is on its right; every other word is `O`. With each sentence
comes the same sentence backwards, in which the name has the other tag.

**An encoding that is even in the distance cannot solve this.** If attention sees of positions only
the distance |i - j|, then a sentence backwards gives the outputs of the sentence, backwards: every
layer is a sum over all words whose terms depend on their contents and distances, which reversing
does not change, and the other layers see one word at a time. So a name gets the same scores in a
sentence and in its reversal, and at most one of the two is right: half of all names (`chance`).

A CRF does not help, though its transitions know left from right. The tags that are correct are `O`
throughout, or `O` with one `S-NAME` that is neither first nor last; so the scores of these two
sequences differ by the same number in a sentence and in its reversal, and the same one of them is
better in both. Of each sentence and its reversal at most one is therefore tagged without a mistake.
If the name is found, there is then a wrong entity in one of the two, and if it is not, it is
missing: with p the share of names that are found, F1 is at most 2p / (2p + 1), so at most 2/3.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from posjax.experiment.tasks.tagging.files import Raw

MARKER = 'here'
NAMES = tuple(f'Name{number}' for number in range(8))
FILLERS = tuple(f'word{number}' for number in range(20))
INSIDE, OUTSIDE = 'S-NAME', 'O'
BEST_F1 = 2 / 3  # of an even encoding
_COUNTS = (1024, 256)  # sentences without their reversals
_LENGTHS = (5, 12)  # words, both included


def sentences() -> tuple[list[Raw], list[Raw]]:
  """The same sentences every time: 2,048 training ones and 512 held-out ones.

  Each sentence comes before its reversal. No two are equal.
  """
  rng = np.random.default_rng(0)
  made: dict[tuple[str, ...], None] = {}
  while len(made) < 2 * sum(_COUNTS):
    words = _words(rng)
    made |= {words: None, words[::-1]: None}
  found = [
    [(word, tag, f'synthetic:direction, sentence {number}') for word, tag in _tagged(words)]
    for number, words in enumerate(made, start=1)
  ]
  return found[: 2 * _COUNTS[0]], found[2 * _COUNTS[0] :]


def chance(tokens: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> float:
  """The largest share of sentences that an even encoding can tag without a mistake.

  Such an encoding tags a sentence and its reversal alike, the latter backwards. So of each two of
  them it can at best have those right whose tags are the more frequent ones.

  Args:
    tokens: words of each sentence.
    tags: of each sentence.

  Example:
    >>> words, tags = ('here', 'Name1', 'word2'), ('O', 'S-NAME', 'O')
    >>> chance([words, words[::-1]], [tags, ('O', 'O', 'O')])
    0.5
  """
  alike: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
  for words, given in zip(map(tuple, tokens), map(tuple, tags), strict=True):
    backwards = words > words[::-1]
    alike[min(words, words[::-1])].append(given[::-1] if backwards else given)
  most = [max(map(given.count, given)) for given in alike.values()]
  return sum(most) / len(tokens)


def _words(rng: np.random.Generator) -> tuple[str, ...]:
  """One sentence, as likely as its reversal; no sentence is its own one, as it has one marker."""
  length = int(rng.integers(_LENGTHS[0], _LENGTHS[1] + 1))
  words = [str(word) for word in rng.choice(FILLERS, length)]
  name = int(rng.integers(1, length - 1))
  marker = int(rng.choice([place for place in range(length) if place != name]))
  words[name], words[marker] = str(rng.choice(NAMES)), MARKER
  return tuple(words)


def _tagged(words: Sequence[str]) -> list[tuple[str, str]]:
  marker = words.index(MARKER)
  return [
    (word, INSIDE if word in NAMES and marker < place else OUTSIDE)
    for place, word in enumerate(words)
  ]
