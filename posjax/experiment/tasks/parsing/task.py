"""Parsing: the constituents of a sentence, as a tree in brackets.

Held-out sentences are judged by labelled F1 of constituents, by the rules of EVALB. Beside it stand
precision, recall, the share of trees that are right as a whole, and the loss of the evaluation
'held out'. Whether a model has learned is asked of 'training sentences' instead, as many as are
held out. A model with partitioned layers can also be judged with content or position silent in some
of its layers, as in Kitaev and Klein 2018, https://arxiv.org/abs/1805.01052.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from posjax.experiment import losses, metrics
from posjax.experiment.data.buckets import check_widths
from posjax.experiment.data.sentences import examples
from posjax.experiment.data.spelling import Spelling
from posjax.experiment.task import Answer, Ask, Evaluation, Example, Task, Unit
from posjax.experiment.tasks import supervised
from posjax.experiment.tasks.parsing import chart
from posjax.experiment.tasks.parsing import data as trees
from posjax.experiment.tasks.parsing import drawing as tree_drawing
from posjax.experiment.tasks.parsing import metrics as bracket_metrics
from posjax.experiment.tasks.parsing.baseline import right_branching
from posjax.experiment.tasks.parsing.batches import Coded
from posjax.experiment.tasks.parsing.batches import batch as make_batch
from posjax.experiment.tasks.parsing.drawing import strength
from posjax.experiment.tasks.parsing.facts import facts
from posjax.experiment.tasks.parsing.model import Parser, Sizes, parser_keys
from posjax.experiment.tasks.parsing.spans import Sentence, spans_of
from posjax.experiment.tasks.parsing.spans import tree as tree_of
from posjax.experiment.tasks.parsing.split import split
from posjax.experiment.tasks.parsing.tree import write
from posjax.experiment.tasks.parsing.vocabulary import Vocabulary, learn
from posjax.keys import Count, Section, Seed
from posjax.models.sentences import Sentences
from posjax.scheme import PRNGKey, Scheme

EXAMPLES = 2  # held-out sentences that a run parses at its end
UNKNOWN_TAG = 'XX'  # of words whose tags are unknown, as the Penn Treebank has it
HALVES = ('content', 'position')
LOSSES = {
  'hinge': (chart.hinge, 'margin per sentence'),
  'nll': (chart.nll, 'nats per sentence'),
}


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Annotated[Mapping[str, Any], Section(parser_keys)],
  *,
  seed: Seed,
  batch_size: Count,
  data: str,
  held_out: str | None,
  traces: bool,
  functions: bool,
  widths: Sequence[Count],
  min_count: Count,
  lower: bool,
  zero_digits: bool,
  longest_word: Count,
  tags: bool,
  loss: Literal['hinge', 'nll'],
  silence: bool,
) -> Task:
  """A parser of sentences.

  Args:
    scheme: one scheme; for an encoder with attention, perhaps a repeating pattern.
    model: arguments of `Parser`.
    seed: of the data's order.
    batch_size: sentences per step, all hosts together.
    data: 'file:PATH' or 'synthetic:brackets', as in `posjax.experiment.tasks.parsing.data`.
    held_out: a file of held-out trees; None for those of the data.
    traces: whether empty nodes are taken off the trees.
    functions: whether function tags and indices are taken off their labels.
    widths: of rows, in words, rising: a program is compiled for each. Training sentences that are
      longer than the last are left out, and counted; no other is, and none is cut.
    min_count: a word or letter that occurs less often in training is unknown.
    lower: whether words are looked up in lower case; letters are not.
    zero_digits: whether every digit is read as 0.
    longest_word: letters of a word that are read, where the model reads letters: the first ones.
      The run says how many words are longer.
    tags: whether the tags of words are read; those of the data are, and a text to ask needs them.
    loss: 'hinge', the margin of trees with Hamming distance; or 'nll', how unlikely the tree is.
    silence: whether the model is judged, at the end of a run, with content or position silent: in
      each layer, and from each layer upward. It needs the encoder 'partitioned'.

  Raises:
    ValueError: if a number is out of range, a file cannot be understood, or nothing can be silent.
    FileNotFoundError: if there is no file.
  """
  widths = check_widths(widths)
  if silence:
    _check_silence(model)
  read = trees.read(data, held_out=held_out, traces=traces, functions=functions)
  spelled = learn(
    read.train,
    read.labels,
    min_count=min_count,
    characters=model.get('characters') is not None,
    tags=tags,
    spelling=Spelling(longest_word, lower, zero_digits),
  )
  train, judged = spelled.encode_all(read.train), spelled.encode_all(read.held_out)
  sizes = {'widths': widths, 'batch_size': batch_size}
  measure, unit = LOSSES[loss]
  make = lambda rngs, **changes: Parser(_sizes(spelled), scheme, rngs=rngs, **{**model, **changes})
  structure = supervised.Structure(
    'labels',
    lambda model, scores, batch, lengths: measure(scores, batch['gold'], lengths),
    lambda model, scores, lengths: chart.best(scores, lengths)[0],
  )
  judge = functools.partial(_evaluation, spelled.labels, sizes, structure, unit)
  silent = _silent(int(model['num_layers'])) if silence else {}
  return Task(
    facts={
      **facts(read, spelled, train, judged, widths[-1]),
      'baseline': _baseline(read),
    },
    model=make,
    train_batches=supervised.train_batches(examples(train, make_batch), seed, sizes),
    loss=structure.mean_loss,
    weight=losses.count_rows,
    unit=Unit(unit),
    evaluations=_evaluations(judge, make, read, train, judged, silent),
    ask=_ask(read, spelled, widths, tags),
  )


def _evaluations(
  judge: Any,
  make: Any,
  read: trees.Trees,
  train: Sequence[Coded],
  judged: Sequence[Coded],
  silent: Mapping[str, Mapping[str, Any]],
) -> tuple[Evaluation, ...]:
  """On held-out sentences, as many of the training, and held-out ones in models with silence.

  Args:
    judge: makes an evaluation of a name, sentences in numbers, and their trees.
    make: makes a model with changed keys.
    read: the trees.
    train: the training sentences in numbers.
    judged: the held-out ones.
    silent: by the name of an evaluation, the changed keys of its model.
  """
  again = supervised.as_many(train, judged)
  rows, right = [train[i] for i in again], [read.train[i] for i in again]
  return (
    judge('held out', judged, read.held_out)._replace(during=True),
    judge('training sentences', rows, right)._replace(role='training rows'),
    *(
      judge(name, judged, read.held_out)._replace(
        role='other', model=functools.partial(make, **changes)
      )
      for name, changes in silent.items()
    ),
  )


def _ask(read: trees.Trees, spelled: Vocabulary, widths: tuple[int, ...], tags: bool) -> Ask:
  """How the parser is asked, with held-out sentences as examples."""
  examples = (
    Example(_asked_for(one, tags), write(tree_of(one))) for one in read.held_out[:EXAMPLES]
  )
  return Ask(functools.partial(answer, Asked(spelled, widths)), tuple(examples))


def _check_silence(model: Mapping[str, Any]) -> None:
  """Raises ValueError if a model cannot be tested with content or position silent."""
  if model['encoder'] != 'partitioned':
    raise ValueError(
      "task.silence needs model.encoder='partitioned', whose content and position are apart, but "
      f'got {model["encoder"]!r}.'
    )
  for half in HALVES:
    if model.get(f'silent_{half}'):
      raise ValueError(
        f'task.silence needs a model that hears both, but got model.silent_{half}='
        f'{tuple(model[f"silent_{half}"])}.'
      )


def _silent(layers: int) -> dict[str, dict[str, tuple[int, ...]]]:
  """Names of evaluations, and the keys of the model with which each is made.

  Example:
    >>> list(_silent(2))[:3]
    ['content silent in layer 1', 'content silent in layer 2', 'content silent from layer 1']
  """
  made: dict[str, dict[str, tuple[int, ...]]] = {}
  numbers = range(1, layers + 1)
  for half in HALVES:
    for one in numbers:
      made[f'{half} silent in layer {one}'] = {f'silent_{half}': (one,)}
    for first in numbers[:-1]:  # from the last layer is in the last layer
      made[f'{half} silent from layer {first}'] = {f'silent_{half}': tuple(numbers[first - 1 :])}
  return made


def _baseline(read: trees.Trees) -> str:
  """F1 of trees that branch to the right."""
  predicted = right_branching(read.train, [len(one.words) for one in read.held_out])
  right, guessed, there = np.sum(
    [
      bracket_metrics.count(spans, one) for spans, one in zip(predicted, read.held_out, strict=True)
    ],
    axis=0,
  ).tolist()
  share = 2 * right / (guessed + there) if guessed + there else 0.0
  return f'F1 {share:.1%} held out by trees that branch to the right'


def _sizes(spelled: Vocabulary) -> Sizes:
  size = supervised.size_of
  return Sizes(
    size(spelled.words), len(spelled.labels), size(spelled.characters), size(spelled.tags)
  )


def _evaluation(
  labels: Sequence[str],
  sizes: Mapping[str, Any],
  structure: supervised.Structure,
  unit: str,
  name: str,
  coded: Sequence[Coded],
  references: Sequence[Sentence],
) -> Evaluation:
  """How sentences are judged: F1 of constituents first."""
  predicted = supervised.by_sentence(
    lambda arrays, _: (spans_of(row, labels) for row in arrays['labels'])
  )
  measured = {
    **bracket_metrics.scores(predicted, references),
    'exact': bracket_metrics.exact(predicted, references),
    'loss': metrics.mean_loss(unit),
  }
  rows = examples(coded, make_batch)
  return supervised.sentence_evaluation(name, rows, sizes, structure.predict, measured)


class Asked(NamedTuple):
  """All that is needed to parse a text."""

  vocabulary: Vocabulary
  widths: tuple[int, ...]

  def read(self, text: str) -> Sentence:
    """The words of a text, with their tags where the parser reads tags; no tree yet.

    Raises:
      ValueError: if the text has no word, or a word has no tag that should have one.
    """
    if self.vocabulary.tags is None:
      words = split(text)
      tags = [UNKNOWN_TAG] * len(words)
    else:
      pairs = [piece.rpartition('/') for piece in text.split()]
      if bad := next((each for each in pairs if not (each[0] and each[2])), None):
        raise ValueError(
          "This parser reads tags, so that a text has each word with its own, as in 'the/DT "
          f"dog/NN', but one is {bad[0] or bad[2]!r}."
        )
      words, tags = [word for word, _, _ in pairs], [tag for _, _, tag in pairs]
    supervised.ask_for_words(text, words)
    return Sentence(tuple(words), tuple(tags), ())

  def encode(self, texts: Sequence[Sentence]) -> Sentences:
    """A batch of sentences, in rows as wide as the longest of them needs."""
    coded = [self.vocabulary.encode(one.words, one.tags) for one in texts]
    return supervised.encoded(coded, self.widths, make_batch)


def answer(asked: Asked, model: Any, texts: Sequence[str], key: PRNGKey) -> list[Answer]:
  """The tree of each text, as `Ask.answer`.

  Args:
    asked: of the task.
    model: a trained `Parser`.
    texts: one sentence each, which `data.trees.split` splits; or 'the/DT dog/NN' for a parser that
      reads tags.
    key: random key of place 0.

  Raises:
    ValueError: if a text has no word, or no tags where it needs them.
  """
  read = [asked.read(text) for text in texts]
  graph, state = nnx.split(model)
  labels, values, margins = map(np.asarray, _parsed(graph, state, asked.encode(read), key))
  return [
    _answer(one._replace(spans=spans_of(best, asked.vocabulary.labels)), value, won)
    for one, best, value, won in zip(read, labels, values.tolist(), margins, strict=True)
  ]


@functools.partial(jax.jit, static_argnames='graph')
def _parsed(graph: Any, state: Any, read: Sentences, key: PRNGKey) -> tuple[Array, Array, Array]:
  """The best trees with their scores, and by how much each constituent wins."""
  scores = nnx.merge(graph, state)(read, ids_key=key).astype(jnp.float32)
  return *chart.best(scores, read.lengths), chart.margins(scores, read.lengths)


def _answer(parsed: Sentence, value: float, margins: np.ndarray) -> Answer:
  if np.isnan(value):
    return Answer('(no tree: positions lie beyond a table of the scheme)')
  won = {(start, end): float(margins[start, end - 1]) for start, end, _ in parsed.spans}
  # Every tree has a constituent whose margin is infinite.
  strengths = {span: 1.0 if np.isinf(one) else strength(one) for span, one in won.items()}
  return Answer(
    write(tree_of(parsed)),
    tree_drawing.text(parsed, strengths),
    {'tree': functools.partial(tree_drawing.draw, sentence=parsed, strengths=strengths)},
  )


def _asked_for(one: Sentence, tags: bool) -> str:
  """The text that asks for the tree of a sentence."""
  if tags:
    return ' '.join('/'.join(pair) for pair in zip(one.words, one.tags, strict=True))
  return ' '.join(one.words)
