"""Metrics of all sentences together: BLEU and chrF by sacrebleu, and the share of equal sentences.

Hypotheses and references are plain, detokenized text; sacrebleu cuts them into its own tokens, and
its signature says how. Nothing of it is computed here.

Reference: Post 2018, A Call for Clarity in Reporting BLEU Scores, https://arxiv.org/abs/1804.08771;
chrF after Popovic 2015, https://aclanthology.org/W15-3049.
"""

from collections.abc import Callable, Sequence
from typing import Any

from posjax.experiment.task import Arrays, Batch, Metric

# The sentences that a model says to a batch, each with its number: what `Metric.update` returns.
Predicted = Callable[[Arrays, Batch], list[tuple[int, str]]]


def bleu(predicted: Predicted, references: Sequence[str]) -> Metric:
  """Corpus BLEU, from 0 to 100: cased, of detokenized text, tokens as in mteval's version 13a.

  Args:
    predicted: the sentences of a batch, each with the number of its reference.
    references: one for each sentence.
  """
  return _scored(_library().BLEU(references=[list(references)]), predicted, len(references), 'BLEU')


def chrf(predicted: Predicted, references: Sequence[str]) -> Metric:
  """chrF2, from 0 to 100: an F-score of character n-grams, n = 1 to 6, recall twice as heavy.

  Args:
    predicted: as of `bleu`.
    references: as of `bleu`.
  """
  return _scored(_library().CHRF(references=[list(references)]), predicted, len(references), 'chrF')


def equal_sentences(predicted: Predicted, references: Sequence[str]) -> Metric:
  """The share of sentences that are their references, letter for letter.

  Args:
    predicted: as of `bleu`.
    references: as of `bleu`.
  """

  def finish(generated: list[tuple[int, str]]) -> float:
    hypotheses = in_order(generated, len(references))
    return sum(map(str.__eq__, hypotheses, references)) / len(references)

  return Metric(predicted, finish, '% of sentences right', True, best=1.0, scale=100.0, digits=1)


def signatures(references: Sequence[str]) -> str:
  """How sacrebleu computes the two scores, in its own words, so that others can repeat them."""
  made = {'BLEU': _library().BLEU, 'chrF': _library().CHRF}
  return '; '.join(
    f'{name} {metric(references=[list(references)]).get_signature()}'
    for name, metric in made.items()
  )


def in_order(generated: Sequence[tuple[int, str]], count: int) -> list[str]:
  """All sentences in the order of their references.

  Args:
    generated: each with the number of its reference.
    count: of the references.

  Raises:
    ValueError: if a reference has no sentence, or two.

  Example:
    >>> in_order([(1, 'world'), (0, 'hello')], 2)
    ['hello', 'world']
  """
  if sorted(number for number, _ in generated) != list(range(count)):
    raise ValueError(
      f'Each of the {count} references needs one sentence, but got {len(generated)}.'
    )
  return [text for _, text in sorted(generated)]


def _scored(library: Any, predicted: Predicted, count: int, unit: str) -> Metric:
  finish = lambda generated: float(library.corpus_score(in_order(generated, count), None).score)
  return Metric(predicted, finish, unit, True, best=100.0, digits=1)


def _library() -> Any:
  try:
    from sacrebleu import metrics
  except ModuleNotFoundError as error:
    raise ImportError(
      "Translations are scored by sacrebleu: pip install 'posjax[train]'."
    ) from error
  return metrics
