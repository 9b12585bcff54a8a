"""Labelled precision, recall and F1 of constituents over a corpus, by the rules of EVALB.

The rules are those of EVALB with its parameters COLLINS.prm:

- Each node of a tree is a bracket: its label, its first and its last word. A chain of nodes over
  the same words is as many brackets. TOP, or whatever the outermost bracket is called, is none.
- Words with the tag of punctuation (`,` `:` double quotes `.`), and traces, are deleted first. Then
  brackets are counted in words; one that has no word left is none, and two that differed in
  punctuation alone are equal. Brackets, question marks and dashes stay, if their tags are others.
- Brackets of the same label and words count as often as they occur on both sides.
- ADVP and PRT are one label. Functions behind a hyphen or an equals sign are no part of a label.

EVALB deletes from each of two trees what the tags of that tree say, and skips a sentence if other
words are left. Here the tags of the reference decide for both, so that no sentence is skipped: a
parser without tags is judged as one with the right tags.

Reference: Sekine & Collins 1997, Evalb, https://nlp.cs.nyu.edu/evalb/.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from posjax.experiment import f_scores
from posjax.experiment.f_scores import Counts, ratio
from posjax.experiment.task import Arrays, Batch, Metric
from posjax.experiment.tasks.parsing.spans import JOIN, TOP, Sentence, Span, check_tags
from posjax.experiment.tasks.parsing.tree import EMPTY, without_functions

DELETED = frozenset({TOP, EMPTY, ',', ':', '``', "''", '.'})  # labels and tags
EQUAL = {'PRT': 'ADVP'}
_TREE = 'tree'
# The spans that a model predicts in a batch, those of each sentence with its number; chains are
# spans with '::' in their labels, and padding has none.
Predicted = Callable[[Arrays, Batch], list[tuple[int, Sequence[Span]]]]
PredictedTags = Callable[[Arrays, Batch], list[tuple[int, Sequence[str]]]]


def scores(predicted: Predicted, references: Sequence[Sentence]) -> dict[str, Metric]:
  """F1, precision and recall of brackets.

  Args:
    predicted: the spans of a batch, those of each sentence with the number of its reference.
    references: the correct trees.
  """
  units = 'labelled F1', '% of predicted brackets right', '% of brackets found'
  counted = _counted(predicted, references)
  return f_scores.scores(counted, len(references), _TREE, units)


def exact(predicted: Predicted, references: Sequence[Sentence]) -> Metric:
  """The share of sentences with all of the correct brackets and no other; arguments as of `scores`.

  Sentences of deleted words alone are left out.
  """
  counted = _counted(predicted, references)

  def judged(arrays: Arrays, batch: Batch) -> list[tuple[int, bool | None]]:
    return [
      (row, right == guessed == there if set(references[row].tags) - DELETED else None)
      for row, (right, guessed, there) in counted(arrays, batch)
    ]

  score = lambda each: ratio(each.count(True), len(each) - each.count(None))
  return f_scores.scored(judged, score, len(references), '% of trees right', _TREE)


def right_tags(predicted: PredictedTags, references: Sequence[Sentence]) -> Metric:
  """The share of words with the right tag, of those that EVALB does not delete.

  Args:
    predicted: the tags of a batch, those of each sentence with the number of its reference.
    references: the correct trees.
  """

  def counted(arrays: Arrays, batch: Batch) -> list[tuple[int, tuple[int, int]]]:
    return [(row, count_tags(tags, references[row])) for row, tags in predicted(arrays, batch)]

  score = lambda each: ratio(sum(right for right, _ in each), sum(words for _, words in each))
  return f_scores.scored(counted, score, len(references), '% of tags right', 'sentence of tags')


def count(predicted: Iterable[Span], reference: Sentence) -> Counts:
  """How many brackets of a sentence are right, were predicted, and there are.

  Args:
    predicted: spans, in words of the sentence.
    reference: its correct tree.

  Raises:
    ValueError: a span has words that the sentence has not, or none.

  Example:
    >>> reference = Sentence(('Go', '!'), ('VB', '.'), (Span(0, 2, 'S::VP'),))
    >>> count([Span(0, 1, 'S'), Span(0, 2, 'FRAG')], reference)
    (1, 2, 2)
  """
  found, expected = (brackets(spans, reference.tags) for spans in (predicted, reference.spans))
  return (found & expected).total(), found.total(), expected.total()


def count_tags(predicted: Sequence[str], reference: Sentence) -> tuple[int, int]:
  """How many tags of a sentence are right, and how many there are, without deleted words.

  Raises:
    ValueError: there are not as many tags as words.
  """
  check_tags(reference.words, predicted, reference.where)
  judged = [
    tag == right
    for tag, right in zip(predicted, reference.tags, strict=True)
    if right not in DELETED
  ]
  return sum(judged), len(judged)


def brackets(spans: Iterable[Span], tags: Sequence[str]) -> Counter[Span]:
  """The brackets of a sentence as they are compared, each with how often it occurs.

  Args:
    spans: a chain of nodes may be one span.
    tags: of the words of the sentence.

  Raises:
    ValueError: a span has words that the sentence has not, or none.
  """
  before = [0]  # of each fencepost, how many words before it are left
  for tag in tags:
    before.append(before[-1] + (tag not in DELETED))
  found: Counter[Span] = Counter()
  for start, end, chain in spans:
    if not 0 <= start < end <= len(tags):
      raise ValueError(
        f'A sentence of {len(tags)} words should have spans in it, but one is {start} to {end}.'
      )
    if before[start] < before[end]:
      for label in map(without_functions, chain.split(JOIN)):
        if label not in DELETED:
          found[Span(before[start], before[end], EQUAL.get(label, label))] += 1
  return found


def _counted(predicted: Predicted, references: Sequence[Sentence]) -> f_scores.Counted:
  def counted(arrays: Arrays, batch: Batch) -> list[tuple[int, Counts]]:
    return [(row, count(spans, references[row])) for row, spans in predicted(arrays, batch)]

  return counted
