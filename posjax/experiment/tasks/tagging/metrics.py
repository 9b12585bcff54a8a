"""Precision, recall and F1 of entities over a whole corpus, as conlleval counts them.

An entity is right if its type, its first and its last token are. Entities are read from tags by the
rule of conlleval, legal or not (`tags.spans`), which is the default mode of the Python
package seqeval. `f_scores` makes scores of the counts.
"""

from collections.abc import Callable, Sequence

from posjax.experiment import f_scores
from posjax.experiment.f_scores import Counts
from posjax.experiment.task import Arrays, Batch, Metric
from posjax.experiment.tasks.tagging.tags import spans

# The tags that a model predicts in a batch, a sentence with its number each; padding has no tags.
Predicted = Callable[[Arrays, Batch], list[tuple[int, Sequence[str]]]]


def scores(predicted: Predicted, references: Sequence[Sequence[str]]) -> dict[str, Metric]:
  """F1, precision and recall of entities.

  Args:
    predicted: the tags of a batch, of any notation, each sentence with the number of its reference.
    references: the correct tags of each sentence.
  """

  def counted(arrays: Arrays, batch: Batch) -> list[tuple[int, Counts]]:
    return [(row, count([tags], [references[row]])) for row, tags in predicted(arrays, batch)]

  units = 'span F1', '% of predicted spans right', '% of spans found'
  return f_scores.scores(counted, len(references), 'sentence of tags', units)


def count(predicted: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Counts:
  """How many entities are right, were predicted, and there are, in all sentences together.

  Args:
    predicted: tags of each sentence.
    references: the correct tags of each sentence.

  Raises:
    ValueError: a sentence has more or fewer tags than its reference, or there are not as many
      sentences as references.

  Example:
    >>> count([['S-LOC', 'O', 'B-PER', 'E-PER']], [['S-LOC', 'S-LOC', 'B-PER', 'E-PER']])
    (2, 2, 3)
  """
  hits = guessed = there = 0
  for tags, correct in zip(predicted, references, strict=True):
    if len(tags) != len(correct):
      raise ValueError(
        f'A sentence of {len(correct)} tokens needs as many tags, but got {len(tags)}.'
      )
    found, expected = set(spans(tags)), set(spans(correct))
    hits += len(found & expected)
    guessed += len(found)
    there += len(expected)
  return hits, guessed, there
