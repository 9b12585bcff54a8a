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
  return _scored(_library().BLEU(), predicted, references, 'BLEU')


def chrf(predicted: Predicted, references: Sequence[str]) -> Metric:
  """chrF2, from 0 to 100: an F-score of character n-grams, n = 1 to 6, recall twice as heavy.

  Args:
    predicted: as of `bleu`.
    references: as of `bleu`.
  """
  return _scored(_library().CHRF(), predicted, references, 'chrF')


def equal_sentences(predicted: Predicted, references: Sequence[str]) -> Metric:
  """The share of sentences that are their references, letter for letter.

  Args:
    predicted: as of `bleu`.
    references: as of `bleu`.
  """

  def finish(generated: list[tuple[int, str]]) -> float:
    hypotheses, theirs = paired(generated, references)
    return sum(map(str.__eq__, hypotheses, theirs)) / len(theirs)

  return Metric(predicted, finish, '% of sentences right', True, best=1.0, scale=100.0, digits=1)


def signatures(references: Sequence[str]) -> str:
  """How sacrebleu computes the two scores, in its own words, so that others can repeat them."""
  made = {'BLEU': _library().BLEU, 'chrF': _library().CHRF}
  return '; '.join(
    f'{name} {metric(references=[list(references)]).get_signature()}'
    for name, metric in made.items()
  )


def paired(
  generated: Sequence[tuple[int, str]], references: Sequence[str]
) -> tuple[list[str], list[str]]:
  """Translated sentences beside their references, in the order of the references.

  Args:
    generated: each with the number of its reference; all of them, or a part to be scored alone.
    references: all of them.

  Raises:
    ValueError: if a sentence has no reference, or a reference has two sentences.

  Example:
    >>> paired([(2, 'world'), (0, 'hello')], ['Hello', 'my', 'world'])
    (['hello', 'world'], ['Hello', 'world'])
  """
  numbers = [number for number, _ in generated]
  if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(len(references))):
    raise ValueError(
      f'Each sentence needs one of the {len(references)} references of its own, but the numbers '
      f'are {", ".join(map(str, sorted(numbers)[:20]))}.'
    )
  ordered = sorted(generated)
  return [text for _, text in ordered], [references[number] for number, _ in ordered]


def _scored(library: Any, predicted: Predicted, references: Sequence[str], unit: str) -> Metric:
  def finish(generated: list[tuple[int, str]]) -> float:
    hypotheses, theirs = paired(generated, references)
    return float(library.corpus_score(hypotheses, [theirs]).score)

  return Metric(predicted, finish, unit, True, best=100.0, digits=1)


def _library() -> Any:
  try:
    from sacrebleu import metrics
  except ModuleNotFoundError as error:
    raise ImportError(
      "Translations are scored by sacrebleu: pip install 'posjax[train]'."
    ) from error
  return metrics
