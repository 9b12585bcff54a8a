"""Precision, recall and F1 of a whole corpus, from how many pieces of each sentence are right.

Counts are those of all sentences together ("micro"), so sentences with many pieces weigh more.
Where nothing can be divided by, the share is 0.
"""

from collections.abc import Callable
from typing import Any

from posjax.experiment.task import Arrays, Batch, Metric

Counts = tuple[int, int, int]  # correct, predicted and gold pieces
# The counts of the sentences of a batch, each with its number: what `Metric.update` returns.
Counted = Callable[[Arrays, Batch], list[tuple[int, Counts]]]


def scores(
  counted: Counted, number: int, what: str, units: tuple[str, str, str]
) -> dict[str, Metric]:
  """F1, precision and recall, in percent.

  Precision is the share of what was predicted that is right, recall that of what there is, and F1
  their harmonic mean.

  Args:
    counted: the counts of the sentences of a batch.
    number: of sentences.
    what: each sentence needs one of, in words.
    units: of the three metrics.
  """

  def share(whole: Callable[[int, int], int], twice: int = 1) -> Callable[[list[Counts]], float]:
    return lambda each: ratio(
      twice * sum(right for right, _, _ in each),
      sum(whole(predicted, gold) for _, predicted, gold in each),
    )

  wholes = {
    'f1': share(lambda predicted, gold: predicted + gold, twice=2),
    'precision': share(lambda predicted, gold: predicted),
    'recall': share(lambda predicted, gold: gold),
  }
  return {
    name: scored(counted, score, number, unit, what)
    for (name, score), unit in zip(wholes.items(), units, strict=True)
  }


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
    number: of sentences.
    unit: of the metric.
    what: each sentence needs one of, in words.
  """

  def finish(found: list[tuple[int, Any]]) -> float:
    if sorted(row for row, _ in found) != list(range(number)):
      raise ValueError(f'Each of the {number} references needs one {what}, but got {len(found)}.')
    return score([counts for _, counts in found])

  return Metric(counted, finish, unit, True, best=1.0, scale=100.0, digits=2)


def ratio(part: int, whole: int) -> float:
  """A share; 0 of nothing."""
  return part / whole if whole else 0.0
