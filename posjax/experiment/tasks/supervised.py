"""Shared by tasks with one right answer for each row: labels, and structures of sentences.

A text or a pair of sentences has a label. A sentence has a structure, such as its tags or its tree:
a model gives scores, from which follow the loss of the right structure and the best one.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from rich.text import Text

from posjax.experiment import metrics
from posjax.experiment.data import words
from posjax.experiment.data.buckets import Examples, width_of
from posjax.experiment.data.corpus import fingerprint
from posjax.experiment.losses import Losses, cross_entropy
from posjax.experiment.plain import in_picture
from posjax.experiment.task import Answer, Arrays, Batch, Evaluation, Metric
from posjax.models.sentences import Sentences, sentences_of
from posjax.scheme import PRNGKey


@runtime_checkable
class Labelled(Protocol):
  """An example with a label."""

  @property
  def label(self) -> str:
    """The name of the label."""
    ...

  @property
  def where(self) -> str:
    """The place of the example, for errors."""
    ...


# Data.


def as_many(train: Sized, held_out: Sized) -> list[int]:
  """Indices of as many training rows as are held out, the same ones every time."""
  return np.random.default_rng(0).permutation(len(train))[: len(held_out)].tolist()


def train_batches(examples: Examples, seed: int, sizes: Mapping[str, Any]) -> Any:
  """`Task.train_batches`: shuffled rows of few widths.

  Args:
    examples: those to learn from.
    seed: of their order.
    sizes: `widths` and `batch_size`.
  """
  return lambda index, count: examples.batches(
    seed=seed, shard_index=index, shard_count=count, **sizes
  )


def check_words(where: str, **texts: str) -> None:
  """Raises ValueError if one of the texts of an example has no word."""
  for name, text in texts.items():
    if not words.split(text):
      raise ValueError(f'{where} should have a {name}, but it has no word.')


def labels_of(
  expression: str, what: str, train: Sequence[Labelled], held_out: Sequence[Labelled]
) -> tuple[str, ...]:
  """The labels of the training examples, sorted.

  Raises:
    ValueError: there are fewer than two, or a held-out example has another one.
  """
  labels = tuple(sorted({example.label for example in train}))
  if len(labels) < 2:
    raise ValueError(f'{expression} should have two labels or more, but has only {labels[0]!r}.')
  for example in held_out:
    if example.label not in labels:
      raise ValueError(
        f'{example.where} has the label {example.label!r}, which no training {what} has: they have '
        f'{", ".join(labels[:20])}.'
      )
  return labels


def count_longer(
  what: str, lengths: Iterable[int], examples: Sequence[Labelled], limit: int, cut: bool
) -> int:
  """How many examples are longer than the widest row.

  Args:
    what: the examples, in words: 'texts are'.
    lengths: of the examples, in words.
    examples: with their places.
    limit: the widest row, in words.
    cut: whether longer ones may be cut.

  Raises:
    ValueError: if there are any, and they must not be cut.
  """
  longer = [
    (length, example.where)
    for length, example in zip(lengths, examples, strict=True)
    if length > limit
  ]
  if longer and not cut:
    count, where = max(longer)
    raise ValueError(
      f'{len(longer)} {what} longer than {limit} words, the last of task.widths ({where} has '
      f'{count}): give a wider one, or set task.cut.'
    )
  return len(longer)


def seen(train: Iterable[Any], held_out: Iterable[Any]) -> int:
  """How many held-out examples equal one of the training."""
  known = set(train)
  return sum(one in known for one in held_out)


def unknown(rows: Iterable[np.ndarray]) -> float:
  """The share of all words, 0 to 1, that the vocabulary does not have."""
  return float(np.mean(np.concatenate([*rows]) == 1))


def hash_with(sha256: str, given: Sequence[bytes]) -> str:
  """The hash of data, that of the files of vectors included which were given with it."""
  given = [each for each in given if each]
  return fingerprint([sha256.encode(), *given], []) if given else sha256


# Labels of texts or pairs. `logits_of(model, batch, ids_key, train_key)` returns [B, labels].

LogitsOf = Callable[..., Array]


def label_losses(
  logits_of: LogitsOf,
  model: Any,
  batch: Batch,
  ids_key: PRNGKey | None = None,
  train_key: PRNGKey | None = None,
) -> Losses:
  """Cross-entropy of each row's label, in nats, [B, 1]; no dropout without a train_key."""
  logits = logits_of(model, batch, ids_key, train_key)
  return cross_entropy(logits[:, None], batch['labels'], batch['weights'])


def mean_label_loss(
  logits_of: LogitsOf,
  model: Any,
  batch: Batch,
  state: Any,
  ids_key: PRNGKey | None,
  train_key: PRNGKey | None,
) -> tuple[Array, Any]:
  """The mean of `label_losses`, as `Task.loss`."""
  return label_losses(logits_of, model, batch, ids_key, train_key).mean(), state


def label_evaluations(
  logits_of: LogitsOf,
  what: str,
  examples: Callable[[Sequence[Any]], Examples],
  train: Sequence[Any],
  held_out: Sequence[Any],
  sizes: Mapping[str, Any],
) -> tuple[Evaluation, ...]:
  """On what is held out, and on as many rows of the training: the share of right labels, the loss.

  Args:
    logits_of: see above.
    what: one row, in words: 'text'.
    examples: how encoded rows become batches.
    train: the training rows.
    held_out: the held-out rows.
    sizes: `widths` and `batch_size`.
  """

  def predict(model: Any, batch: Batch, state: Any, key: PRNGKey) -> tuple[dict[str, Array], Any]:
    return label_losses(logits_of, model, batch, key)._asdict(), state

  measured = {
    'accuracy': metrics.answer_accuracy(),
    'loss': metrics.mean_loss(f'nats per {what}', targets='labels'),
  }
  judge = lambda name, rows: Evaluation(
    name, lambda: examples(rows).in_order(**sizes), predict, measured, metrics.count_answers
  )
  again = [train[index] for index in as_many(train, held_out)]
  return (
    judge('held out', held_out)._replace(during=True),
    judge(f'training {what}s', again)._replace(role='training rows'),
  )


def ranked(
  labels: Sequence[str],
  probabilities: Sequence[float],
  pictures: Mapping[str, Callable[[Any], None]] = MappingProxyType({}),
) -> Answer:
  """The labels with their probabilities, the likeliest first, in words and as bars.

  Args:
    labels: all that there are.
    probabilities: one for each label, 0 to 1.
    pictures: further pictures of the answer, by name; that of the bars is 'probabilities'.
  """
  best = sorted(zip(probabilities, labels, strict=True), reverse=True)
  entries = [f'{label} {probability:.1%}' for probability, label in best]

  def draw(figure) -> None:
    axes = figure.subplots()
    axes.barh(
      [in_picture(label) for _, label in best], [100 * probability for probability, _ in best]
    )
    axes.invert_yaxis()
    axes.set(xlabel='probability, %', xlim=(0, 100))

  styled = Text.assemble((entries[0], 'bold'), ', '.join(['', *entries[1:]]))
  return Answer(', '.join(entries), styled, {'probabilities': draw, **pictures})


# Structures of sentences.


class Structure(NamedTuple):
  """The kind of answer that is predicted for a sentence.

  Attributes:
    name: of the array of the best structures.
    loss: `(model, scores, batch, lengths) -> [B]`, of the right structures.
    best: `(model, scores, lengths) -> array`, the best structures.
  """

  name: str
  loss: Callable[..., Array]
  best: Callable[..., Array]

  def mean_loss(
    self, model: Any, batch: Batch, state: Any, ids_key: PRNGKey | None, train_key: PRNGKey | None
  ) -> tuple[Array, Any]:
    """The loss of a sentence, the mean over the batch, as `Task.loss`."""
    read = sentences_of(batch)
    scores = model(read, ids_key=ids_key, train_key=train_key).astype(jnp.float32)
    return self.loss(model, scores, batch, read.lengths).mean(), state

  def predict(
    self, model: Any, batch: Batch, state: Any, key: PRNGKey
  ) -> tuple[dict[str, Array], Any]:
    """The best structure of each sentence, and the loss of the right one, as `Evaluation.predict`.

    Rows that fill up a batch have the weight 0.
    """
    read = sentences_of(batch)
    scores = model(read, ids_key=key).astype(jnp.float32)
    is_sentence = batch['row'] >= 0
    return {
      self.name: self.best(model, scores, read.lengths),
      'loss': jnp.where(is_sentence, self.loss(model, scores, batch, read.lengths), 0)[:, None],
      'weights': is_sentence[:, None].astype(jnp.float32),
    }, state


def by_sentence(
  predicted: Callable[[Arrays, Batch], Iterable[Any]],
) -> Callable[[Arrays, Batch], list[tuple[int, Any]]]:
  """The prediction for each sentence of a batch, with its number; rows that fill up have none.

  Args:
    predicted: of the arrays of a batch, what is predicted in each of its rows.
  """

  def rows(arrays: Arrays, batch: Batch) -> list[tuple[int, Any]]:
    both = zip(batch['row'].tolist(), predicted(arrays, batch), strict=True)
    return [(row, one) for row, one in both if row >= 0]

  return rows


def sentence_evaluation(
  name: str,
  examples: Examples,
  sizes: Mapping[str, Any],
  predict: Any,
  measured: Mapping[str, Metric],
) -> Evaluation:
  """How sentences are evaluated; reported is how many words were read."""
  count = lambda arrays, batch: int((batch['segments'] != 0).sum())
  batches = functools.partial(examples.in_order, **sizes)
  return Evaluation(name, batches, predict, measured, count)


def encoded(coded: Sequence[Any], widths: Sequence[int], batch: Callable[..., Batch]) -> Sentences:
  """A batch of sentences to ask about, in rows as wide as the longest of them needs."""
  width = width_of(max(len(one.words) for one in coded), widths)
  made = batch(coded, width).items()
  return sentences_of({name: jnp.asarray(each) for name, each in made})


def ask_for_words(text: str, tokens: Sequence[str]) -> None:
  """Raises ValueError if a text to ask about has no word."""
  if not tokens:
    raise ValueError(f'A sentence should have a word or more, but has none: {text[:40]!r}.')


def size_of(vocabulary: words.Words | None) -> int:
  """How many rows a table for a vocabulary has; 0 where there is none."""
  return 0 if vocabulary is None else len(vocabulary.names)
