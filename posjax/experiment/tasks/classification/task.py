"""Labels of texts: the kind of a question, what a review thinks.

Held-out texts are judged together, whatever their lengths: reported are the share of right labels
and the loss, nats a text, of the evaluation 'held out'. Whether a model has learned is asked of
'training texts' instead, as many as are held out.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from posjax.experiment.data import vectors as word_vectors
from posjax.experiment.data import words
from posjax.experiment.data.buckets import check_widths
from posjax.experiment.task import Answer, Ask, Batch, Example, Task, Unit
from posjax.experiment.tasks import supervised
from posjax.experiment.tasks.classification import batches as bucketed
from posjax.experiment.tasks.classification import data as labelled
from posjax.experiment.tasks.classification.model import Classifier, classifier_keys
from posjax.keys import Count, Section, Seed, Whole
from posjax.scheme import PRNGKey, Scheme


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Annotated[Mapping[str, Any], Section(classifier_keys)],
  *,
  seed: Seed,
  batch_size: Count,
  data: str,
  folds: Whole,
  fold: Whole,
  widths: Sequence[Count],
  cut: bool,
  min_count: Count,
  vectors: str | None,
) -> Task:
  """A classifier of texts.

  Args:
    scheme: one scheme; for a Transformer, perhaps a repeating pattern.
    model: arguments of `Classifier`.
    seed: of the data's order, and of rows that no file of vectors gives.
    batch_size: texts per step, all hosts together.
    data: 'file:PATH', 'tfds:NAME' or 'synthetic:order', as in `data`.
    folds: parts of a cross-validation; 0: what the data holds out, or one text in ten.
    fold: the part that is held out.
    widths: of rows, in words, rising: a program is compiled for each. The last is the longest text.
    cut: whether longer texts are cut to their first words; the run says how many. Not cut, they are
      an error.
    min_count: a word that occurs less often in the training texts is unknown.
    vectors: a file of word vectors, as in `posjax.experiment.data.vectors`; None draws all.

  Raises:
    ValueError: if a number is out of range, a file cannot be understood, or a text is too long.
    FileNotFoundError: if there is no file.
  """
  widths = check_widths(widths)
  read = labelled.read(data, folds, fold)
  split = [[words.split(each.text) for each in part] for part in (read.train, read.held_out)]
  vocabulary = words.vocabulary(split[0], min_count)
  lengths = map(len, split[0] + split[1])
  everything = read.train + read.held_out
  longer = supervised.count_longer('texts are', lengths, everything, widths[-1], cut)
  coder = Coder(vocabulary, read.labels, widths)
  train, held_out = (
    [
      bucketed.Text(coder.encode(one), read.labels.index(example.label))
      for one, example in zip(part, examples, strict=True)
    ]
    for part, examples in zip(split, (read.train, read.held_out), strict=True)
  )
  table, found, given = word_vectors.initial(vectors, vocabulary.ids, model['width'], seed)
  sizes = {'widths': widths, 'batch_size': batch_size}
  example = Example(' '.join(split[1][0][: widths[-1]]), read.held_out[0].label)
  return Task(
    facts={
      'data': data,
      **_facts(read, split, coder, (train, held_out), longer, min_count),
      'vectors': 'drawn' if table is None else f'{found:,} words have one in {vectors}',
      'sha256': supervised.hash_with(read.sha256, [given]),
    },
    model=lambda rngs: Classifier(
      len(vocabulary.names), len(read.labels), scheme, vectors=table, rngs=rngs, **model
    ),
    train_batches=supervised.train_batches(bucketed.examples(train), seed, sizes),
    loss=functools.partial(supervised.mean_label_loss, logits_of),
    weight=lambda batch: batch['weights'].sum(),
    unit=Unit('nats per text'),
    evaluations=supervised.label_evaluations(
      logits_of, 'text', bucketed.examples, train, held_out, sizes
    ),
    ask=Ask(functools.partial(answer, coder), (example,)),
  )


class Coder(NamedTuple):
  """Turns texts into rows of tokens, and logits into labels."""

  vocabulary: words.Words
  labels: tuple[str, ...]
  widths: tuple[int, ...]

  def encode(self, split: Sequence[str]) -> np.ndarray:
    """Numbers of the first words, as many as a row holds."""
    return self.vocabulary.encode(split[: self.widths[-1]])


def answer(coder: Coder, model: nnx.Module, texts: Sequence[str], key: PRNGKey) -> list[Answer]:
  """Every label of each text with its probability, the likeliest first, as `Ask.answer`.

  Args:
    coder: of the task.
    model: a trained `Classifier`.
    texts: of a word or more each.
    key: random key of place 0.

  Raises:
    ValueError: if a text has no word, or more than a row holds.
  """
  rows = [words.split(text) for text in texts]
  for text, row in zip(texts, rows, strict=True):
    if not 1 <= len(row) <= coder.widths[-1]:
      raise ValueError(
        f'A text should have 1 to {coder.widths[-1]} words, but has {len(row)}: {text[:40]!r}.'
      )
  width = next(width for width in coder.widths if width >= max(map(len, rows)))
  batch = bucketed.batch([bucketed.Text(coder.encode(row), 0) for row in rows], width)
  batch = {name: jnp.asarray(array) for name, array in batch.items()}
  return [
    supervised.ranked(coder.labels, row)
    for row in np.asarray(jax.nn.softmax(logits_of(model, batch, key, None))).tolist()
  ]


def logits_of(model, batch: Batch, ids_key=None, train_key=None) -> jax.Array:
  """The logits of the labels, [B, labels]; arguments as of `supervised.label_losses`."""
  logits = model(
    batch['inputs'],
    batch['positions'],
    segments=batch['segments'],
    ids_key=ids_key,
    train_key=train_key,
  )
  return logits.astype(jnp.float32)


def _facts(
  read: labelled.Labelled,
  split: Sequence[Sequence[list[str]]],
  coder: Coder,
  coded: Sequence[Sequence[bucketed.Text]],
  longer: int,
  min_count: int,
) -> dict[str, str]:
  """Facts about the texts of a run and their words, by name."""
  train, held_out = coded
  both = ([tuple(one) for one in part] for part in split)
  unknown = lambda texts: supervised.unknown(text.tokens for text in texts)
  return {
    'texts': f'{len(train):,} to learn from, {len(held_out):,} held out ({read.cut})',
    'labels': ', '.join(read.labels),
    'words': f'{len(coder.vocabulary.names) - 2:,} that occur {min_count} times or more',
    'unknown words': f'{unknown(train):.1%} in training texts, {unknown(held_out):.1%} held out',
    'seen before': f'{supervised.seen(*both):,} held-out texts equal a training text',
    'longest text': f'{max(len(text) for part in split for text in part)} words'
    + (f'; {longer} texts cut to {coder.widths[-1]}' if longer else ''),
  }
