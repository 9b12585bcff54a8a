"""Precision, recall and F1 of entities over a whole corpus, as conlleval counts them.

An entity is right if its type, its first and its last token are. Entities are read from tags by the
rule of conlleval, legal or not (`data.columns.tags.spans`), which is the default mode of the Python
package seqeval. `f_scores` makes scores of the counts.
"""

from collections.abc import Callable, Sequence

from posjax.experiment import f_scores
from posjax.experiment.f_scores import Counts
from posjax.experiment.task import Arrays, Batch, Metric
from posjax.experiment.tasks.tagging.tags import spans

# The tags that a model says to a batch, a sentence with its number each. Padding has no tags.
Say = Callable[[Arrays, Batch], list[tuple[int, Sequence[str]]]]
_WHAT = 'sentence of tags'


def f1(say: Say, references: Sequence[Sequence[str]]) -> Metric:
  """The harmonic mean of precision and recall: twice what is right, by what is said and there is.

  Args:
    say: the tags of a batch, of any notation, each sentence with the number of its reference.
    references: the correct tags of each sentence.
  """
  return f_scores.f1(_counted(say, references), len(references), 'span F1', _WHAT)


def precision(say: Say, references: Sequence[Sequence[str]]) -> Metric:
  """The share of the entities said that are right.

  Args:
    say: as of `f1`.
    references: as of `f1`.
  """
  unit = '% of spans said right'
  return f_scores.precision(_counted(say, references), len(references), unit, _WHAT)


def recall(say: Say, references: Sequence[Sequence[str]]) -> Metric:
  """The share of the correct entities that were said.

  Args:
    say: as of `f1`.
    references: as of `f1`.
  """
  unit = '% of spans found'
  return f_scores.recall(_counted(say, references), len(references), unit, _WHAT)


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


def _counted(say: Say, references: Sequence[Sequence[str]]) -> f_scores.Counted:
  def counted(arrays: Arrays, batch: Batch) -> list[tuple[int, Counts]]:
    return [(row, count([tags], [references[row]])) for row, tags in say(arrays, batch)]

  return counted
