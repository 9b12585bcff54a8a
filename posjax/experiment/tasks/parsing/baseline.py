"""The baseline of parsers: every constituent reaches to the end of the sentence."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from posjax.experiment.tasks.parsing.spans import Span

if TYPE_CHECKING:
  from posjax.experiment.tasks.parsing.data import Sentence


def right_branching(train: 'Sequence[Sentence]', lengths: Sequence[int]) -> list[tuple[Span, ...]]:
  """Trees that branch to the right, a bracket from each word but the last to the end.

  Words decide nothing. All words together have the label that they have most often in training;
  every other bracket has the most frequent label of smaller constituents, of two words or more,
  that end with the last word or the one before it, as before a full stop. Of labels that are
  equally frequent it is the first by alphabet.

  Args:
    train: to count in.
    lengths: in words, of the sentences that get a tree.

  Returns:
    The spans of each sentence; one of all words alone where there is but one word.
  """
  whole, inner = Counter(), Counter()
  for one in train:
    for start, end, label in one.spans:
      if end - start == len(one.words):
        whole[label] += 1
      elif end - start > 1 and end >= len(one.words) - 1:
        inner[label] += 1
  first = _most_frequent(whole)
  other = _most_frequent(inner) if inner else first
  return [
    (Span(0, length, first), *(Span(start, length, other) for start in range(1, length - 1)))
    for length in lengths
  ]


def _most_frequent(counts: Counter[str]) -> str:
  return min(counts, key=lambda label: (-counts[label], label))
