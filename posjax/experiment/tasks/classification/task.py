"""Labels of texts: the kind of a question, what a review thinks.

Held-out texts are judged together, whatever their lengths: reported are the share of right labels
and the loss, nats a text, of the evaluation 'held out'. Whether a model has learned is asked of
'training texts' instead, as many as are held out.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from posjax.experiment import metrics
from posjax.experiment.data import vectors as word_vectors
from posjax.experiment.data import words
from posjax.experiment.data.buckets import check_widths
from posjax.experiment.data.fingerprint import fingerprint
from posjax.experiment.label_answers import ranked
from posjax.experiment.losses import Losses, cross_entropy
from posjax.experiment.task import Answer, Ask, Batch, Evaluation, Example, Task, Unit
from posjax.experiment.tasks.classification import batches as bucketed
from posjax.experiment.tasks.classification import data as labelled
from posjax.experiment.tasks.classification.data import Example as Labelled
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
  longer = _longer(read.train + read.held_out, split[0] + split[1], widths[-1], cut)
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
  again = [train[i] for i in np.random.default_rng(0).permutation(len(train))[: len(held_out)]]
  judge = lambda name, texts, **changes: evaluation(
    name, lambda: bucketed.examples(texts).in_order(**sizes), **changes
  )
  example = Example(' '.join(split[1][0][: widths[-1]]), read.held_out[0].label)
  return Task(
    facts={
      'data': data,
      **_facts(read, split, coder, (train, held_out), longer, min_count),
      'vectors': 'drawn' if table is None else f'{found:,} words have one in {vectors}',
      'sha256': fingerprint([read.sha256.encode(), given], []) if given else read.sha256,
    },
    model=lambda rngs: Classifier(
      len(vocabulary.names), len(read.labels), scheme, vectors=table, rngs=rngs, **model
    ),
    train_batches=lambda index, count: bucketed.examples(train).batches(
      seed=seed, shard_index=index, shard_count=count, **sizes
    ),
    loss=mean_label_loss,
    unit=Unit('nats per text'),
    evaluations=(
      judge('held out', held_out, during=True),
      judge('training texts', again, role='training rows'),
    ),
    ask=Ask(functools.partial(answer, coder), (example,)),
  )


def evaluation(name: str, batches: Callable[[], Iterable[Batch]], **changes) -> Evaluation:
  """How texts are judged: the share of right labels, and the loss."""
  measured = {
    'accuracy': metrics.answer_accuracy(),
    'loss': metrics.mean_loss('nats per text'),
  }
  judged = Evaluation(name, batches, predict_label, measured, metrics.count_answers)
  return judged._replace(**changes)


class Coder(NamedTuple):
  """Turns texts into rows of tokens, and logits into labels."""

  vocabulary: words.Words
  labels: tuple[str, ...]
  widths: tuple[int, ...]

  def encode(self, split: Sequence[str]) -> np.ndarray:
    """Numbers of the first words, as many as a row holds."""
    return self.vocabulary.encode(split[: self.widths[-1]])


def label_losses(
  model, batch: Batch, ids_key: PRNGKey | None = None, train_key: PRNGKey | None = None
) -> Losses:
  """Cross-entropy of each text's label, in nats, [B, 1].

  Args:
    model: a `Classifier`.
    batch: as in `bucketed.batch`.
    ids_key: random key of place 0.
    train_key: random key of dropout; None evaluates.
  """
  logits = _logits(model, batch, ids_key, train_key)
  return cross_entropy(logits[:, None], batch['labels'], batch['weights'])


def mean_label_loss(
  model, batch: Batch, state: Any, ids_key: PRNGKey | None, train_key: PRNGKey | None
) -> tuple[jax.Array, Any]:
  """The mean of `label_losses`, as `Task.loss`."""
  return label_losses(model, batch, ids_key, train_key).mean(), state


def predict_label(
  model, batch: Batch, state: Any, key: PRNGKey
) -> tuple[dict[str, jax.Array], Any]:
  """The arrays of `label_losses`, as `Evaluation.predict`."""
  return label_losses(model, batch, key)._asdict(), state


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
    ranked(coder.labels, row)
    for row in np.asarray(jax.nn.softmax(_logits(model, batch, key, None))).tolist()
  ]


def _logits(model, batch: Batch, ids_key, train_key):
  logits = model(
    batch['inputs'],
    batch['positions'],
    segments=batch['segments'],
    ids_key=ids_key,
    train_key=train_key,
  )
  return logits.astype(jnp.float32)


def _longer(
  examples: Sequence[Labelled], split: Sequence[list[str]], longest: int, cut: bool
) -> int:
  """How many texts are longer than the widest row.

  Raises:
    ValueError: if there are any, and they must not be cut.
  """
  longer = [
    (len(one), example.where)
    for one, example in zip(split, examples, strict=True)
    if len(one) > longest
  ]
  if longer and not cut:
    count, where = max(longer)
    raise ValueError(
      f'{len(longer)} texts are longer than {longest} words, the last of task.widths ({where} has '
      f'{count}): give a wider one, or set task.cut.'
    )
  return len(longer)


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
  return {
    'texts': f'{len(train):,} to learn from, {len(held_out):,} held out ({read.cut})',
    'labels': ', '.join(read.labels),
    'words': f'{len(coder.vocabulary.names) - 2:,} that occur {min_count} times or more',
    'unknown words': f'{_unknown(train):.1%} in training texts, {_unknown(held_out):.1%} held out',
    'seen before': f'{_seen(split):,} held-out texts equal a training text',
    'longest text': f'{max(len(text) for part in split for text in part)} words'
    + (f'; {longer} texts cut to {coder.widths[-1]}' if longer else ''),
  }


def _unknown(texts: Sequence[bucketed.Text]) -> float:
  return float(np.mean(np.concatenate([text.tokens for text in texts]) == 1))


def _seen(split: Sequence[Sequence[list[str]]]) -> int:
  train, held_out = ([tuple(one) for one in part] for part in split)
  known = set(train)
  return sum(one in known for one in held_out)
