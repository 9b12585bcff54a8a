"""Precision, recall and F1 of a whole corpus, from how many pieces of each sentence are right.

Counts are those of all sentences together ("micro"), so sentences with many pieces weigh more.
Where nothing can be divided by, the share is 0.
"""

from collections.abc import Callable
from typing import Any

from posjax.experiment.task import Arrays, Batch, Metric

Counts = tuple[int, int, int]  # pieces that are right, that were said, and that there are
# The counts of the sentences of a batch, each with its number: what `Metric.update` returns.
Counted = Callable[[Arrays, Batch], list[tuple[int, Counts]]]


def f1(counted: Counted, number: int, unit: str, what: str) -> Metric:
  """The harmonic mean of precision and recall: twice what is right, by what is said and there is.

  Args:
    counted: the counts of the sentences of a batch.
    number: of sentences.
    unit: of the metric.
    what: each sentence needs one of, in words.
  """
  score = lambda each: ratio(
    2 * sum(right for right, _, _ in each), sum(said + there for _, said, there in each)
  )
  return scored(counted, score, number, unit, what)


def precision(counted: Counted, number: int, unit: str, what: str) -> Metric:
  """The share of what was said that is right; arguments as of `f1`."""
  score = lambda each: ratio(sum(right for right, _, _ in each), sum(said for _, said, _ in each))
  return scored(counted, score, number, unit, what)


def recall(counted: Counted, number: int, unit: str, what: str) -> Metric:
  """The share of what there is that was said; arguments as of `f1`."""
  score = lambda each: ratio(sum(right for right, _, _ in each), sum(there for _, _, there in each))
  return scored(counted, score, number, unit, what)


def scored(
  counted: Callable[[Arrays, Batch], list[tuple[int, Any]]],
  score: Callable[[list[Any]], float],
  number: int,
  unit: str,
  what: str,
) -> Metric:
  """A metric of what is counted in each sentence, in percent.

  Args:
    counted: what is counted in the sentences of a batch, each with its number.
    score: of what was counted in all sentences, in no order.
    number: as of `f1`.
    unit: as of `f1`.
    what: as of `f1`.
  """

  def finish(found: list[tuple[int, Any]]) -> float:
    if sorted(row for row, _ in found) != list(range(number)):
      raise ValueError(f'Each of the {number} references needs one {what}, but got {len(found)}.')
    return score([counts for _, counts in found])

  return Metric(counted, finish, unit, True, best=1.0, scale=100.0, digits=2)


def ratio(part: int, whole: int) -> float:
  """A share; 0 of nothing."""
  return part / whole if whole else 0.0
