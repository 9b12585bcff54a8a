"""The sentences that taggers and parsers read, with whatever is known of their words.

B batch, W words, L letters of a word.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, Int


class Sentences(NamedTuple):
  """The sentences of a batch, each at the left of its row.

  What a model does not read may be None.

  Attributes:
    words: numbers of the words, 0 in the padding.
    segments: 1 at a word, 0 in the padding.
    characters: numbers of the letters of each word, 0 behind them.
    tags: the number of each word's tag, 0 in the padding.
    bigrams: the number of each word with the next one, 0 in the padding.
  """

  words: Int[Array, 'B W']
  segments: Int[Array, 'B W']
  characters: Int[Array, 'B W L'] | None = None
  tags: Int[Array, 'B W'] | None = None
  bigrams: Int[Array, 'B W'] | None = None

  @property
  def lengths(self) -> Int[Array, ' B']:
    """The words of each sentence."""
    return (self.segments != 0).sum(1)


def sentences_of(batch: Mapping[str, Any]) -> Sentences:
  """The sentences of a batch whose arrays are named as in `data.columns` and `data.trees`.

  Args:
    batch: its entry `inputs` holds the words, `segments` where they are; those of the other fields
      have their names, and may be missing.
  """
  known = {name: batch.get(name) for name in ('characters', 'tags', 'bigrams')}
  return Sentences(batch['inputs'], batch['segments'], **known)
