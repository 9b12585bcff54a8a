"""The baseline of taggers: each word has the tag that it has most often in training."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from posjax.experiment.tasks.tagging.tags import spans, tags_of

if TYPE_CHECKING:
  from posjax.experiment.tasks.tagging.data import Sentence


def most_frequent_tags(
  train: 'Sequence[Sentence]', words: Sequence[Sequence[str]], notation: str
) -> list[tuple[str, ...]]:
  """The most frequent tag of each word, the first by alphabet of equals; 'O' of an unknown word.

  Args:
    train: to count in.
    words: of the sentences that are tagged.
    notation: in which tags are counted; what they mean then is read as conlleval does.
  """
  counts: dict[str, Counter[str]] = {}
  for each in train:
    tags = tags_of(spans(each.tags), len(each.tags), notation)
    for token, tag in zip(each.tokens, tags, strict=True):
      counts.setdefault(token, Counter())[tag] += 1
  best = {token: min(seen, key=lambda tag: (-seen[tag], tag)) for token, seen in counts.items()}
  return [tuple(best.get(token, 'O') for token in each) for each in words]
