"""Precision, recall and F1 of entities over a whole corpus, as conlleval counts them.

An entity is right if its type, its first and its last token are. Entities are read from tags by the
rule of conlleval, legal or not (`data.columns.tags.spans`), which is the default mode of the Python
package seqeval. Counts are those of all sentences together ("micro"), so sentences with many
entities weigh more. Where nothing can be divided by, the share is 0.
"""

from collections.abc import Callable, Sequence

from posjax.experiment.data.columns.tags import spans
from posjax.experiment.tasks import Arrays, Batch, Metric

# The tags that a model says to a batch, a sentence with its number each. Padding has no tags.
Say = Callable[[Arrays, Batch], list[tuple[int, Sequence[str]]]]
Counts = tuple[int, int, int]  # entities that are right, that were said, and that there are


def f1(say: Say, references: Sequence[Sequence[str]]) -> Metric:
  """The harmonic mean of precision and recall: twice what is right, by what is said and there is.

  Args:
    say: the tags of a batch, of any notation, each sentence with the number of its reference.
    references: the correct tags of each sentence.
  """
  return _scored(
    say, references, 'span F1', lambda hits, said, there: _ratio(2 * hits, said + there)
  )


def precision(say: Say, references: Sequence[Sequence[str]]) -> Metric:
  """The share of the entities said that are right.

  Args:
    say: as of `f1`.
    references: as of `f1`.
  """
  return _scored(say, references, '% of spans said right', lambda hits, said, _: _ratio(hits, said))


def recall(say: Say, references: Sequence[Sequence[str]]) -> Metric:
  """The share of the correct entities that were said.

  Args:
    say: as of `f1`.
    references: as of `f1`.
  """
  return _scored(say, references, '% of spans found', lambda hits, _, there: _ratio(hits, there))


def count(said: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Counts:
  """How many entities are right, were said, and there are, in all sentences together.

  Args:
    said: tags of each sentence.
    references: the correct tags of each sentence.

  Raises:
    ValueError: a sentence has more or fewer tags than its reference, or there are not as many
      sentences as references.

  Example:
    >>> count([['S-LOC', 'O', 'B-PER', 'E-PER']], [['S-LOC', 'S-LOC', 'B-PER', 'E-PER']])
    (2, 2, 3)
  """
  hits = guessed = there = 0
  for tags, correct in zip(said, references, strict=True):
    if len(tags) != len(correct):
      raise ValueError(
        f'A sentence of {len(correct)} tokens needs as many tags, but got {len(tags)}.'
      )
    found, expected = set(spans(tags)), set(spans(correct))
    hits += len(found & expected)
    guessed += len(found)
    there += len(expected)
  return hits, guessed, there


def _scored(
  say: Say,
  references: Sequence[Sequence[str]],
  unit: str,
  score: Callable[[int, int, int], float],
) -> Metric:
  """A metric of the counts over the corpus, in percent."""

  def update(arrays: Arrays, batch: Batch) -> list[tuple[int, Counts]]:
    return [(row, count([tags], [references[row]])) for row, tags in say(arrays, batch)]

  def finish(said: list[tuple[int, Counts]]) -> float:
    if sorted(row for row, _ in said) != list(range(len(references))):
      raise ValueError(
        f'Each of the {len(references)} references needs one sentence of tags, but got {len(said)}.'
      )
    return score(*(sum(part) for part in zip(*(counts for _, counts in said), strict=True)))

  return Metric(update, finish, unit, True, best=1.0, scale=100.0, digits=2)


def _ratio(part: int, whole: int) -> float:
  return part / whole if whole else 0.0
