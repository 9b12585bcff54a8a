"""Tagging: the named entities in a sentence, by a tag for each word.

Held-out sentences are judged by F1 of whole entities, as conlleval counts them: type, first and
last word must all be right. Also reported are precision, recall, the share of words whose tag is
right, and the loss, nats a sentence, of the evaluation 'held out'. Whether a model has learned is
asked of 'training sentences' instead, as many as are held out.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.text import Text

from posjax.experiment import attention_maps, losses, metrics
from posjax.experiment.data import vectors as word_vectors
from posjax.experiment.data.buckets import check_widths
from posjax.experiment.data.sentences import examples
from posjax.experiment.data.spelling import Spelling
from posjax.experiment.task import Answer, Ask, Evaluation, Example, Task, Unit
from posjax.experiment.tasks import supervised
from posjax.experiment.tasks.tagging import data as columns
from posjax.experiment.tasks.tagging import metrics as span_metrics
from posjax.experiment.tasks.tagging.baseline import most_frequent_tags
from posjax.experiment.tasks.tagging.batches import Coded
from posjax.experiment.tasks.tagging.batches import batch as make_batch
from posjax.experiment.tasks.tagging.facts import facts
from posjax.experiment.tasks.tagging.model import Sizes, Tagger, tagger_keys
from posjax.experiment.tasks.tagging.tags import spans
from posjax.experiment.tasks.tagging.vocabulary import Vocabulary, learn
from posjax.keys import Count, Section, Seed
from posjax.models.sentences import Sentences
from posjax.scheme import PRNGKey, Scheme

EXAMPLES = 2  # held-out sentences that a run tags at its end
COLOURS = ('green', 'cyan', 'magenta', 'yellow', 'blue', 'red')  # of types, in turn


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Annotated[Mapping[str, Any], Section(tagger_keys)],
  *,
  seed: Seed,
  batch_size: Count,
  data: str,
  notation: Literal['IOB1', 'IOB2', 'BIOES', 'BMES'] | None,
  widths: Sequence[Count],
  min_count: Count,
  lower: bool,
  zero_digits: bool,
  longest_word: Count,
  vectors: str | None,
  bigram_vectors: str | None,
) -> Task:
  """A tagger of sentences.

  Args:
    scheme: one scheme; for a Transformer, perhaps a repeating pattern.
    model: arguments of `Tagger`.
    seed: of the data's order, and of rows that no file of vectors gives.
    batch_size: sentences per step, all hosts together.
    data: 'file:PATH', 'tfds:NAME' or 'synthetic:direction', as in `data`.
    notation: that of the tags in the data; None tells it from them.
    widths: of rows, in words, rising: a program is compiled for each. Training sentences that are
      longer than the last are left out, and counted; no other is, and none is cut.
    min_count: a word, letter or bigram that occurs less often in training is unknown.
    lower: whether words are looked up in lower case; letters are not.
    zero_digits: whether every digit is read as 0.
    longest_word: letters of a word that are read, where the model reads letters: the first ones.
      The run says how many words are longer.
    vectors: a file of word vectors, as in `posjax.experiment.data.vectors`; None draws all.
    bigram_vectors: the same of bigrams, which are words of two tokens without a space.

  Raises:
    ValueError: if a number is out of range, or a file cannot be understood.
    FileNotFoundError: if there is no file.
  """
  widths = check_widths(widths)
  read = columns.read(data, notation=notation)
  spelled = learn(
    read.train,
    read.types,
    min_count=min_count,
    characters=model.get('characters') is not None,
    bigrams=model.get('bigram_width') is not None,
    spelling=Spelling(longest_word, lower, zero_digits),
  )
  train, held_out = (
    [spelled.encode(each.tokens, each.tags) for each in part]
    for part in (read.train, read.held_out)
  )
  initial = _vectors(spelled, model, vectors, bigram_vectors, seed)
  tables: dict[str, Any] = {name: each.table for name, each in initial.items()}
  sizes = {'widths': widths, 'batch_size': batch_size}
  return Task(
    facts={
      **facts(read, spelled, train, held_out, widths[-1]),
      'baseline': _baseline(read),
      'vectors': '; '.join(each.fact for each in initial.values()),
      'sha256': supervised.hash_with(read.sha256, [each.given for each in initial.values()]),
    },
    model=lambda rngs: Tagger(_sizes(spelled), spelled.tags, scheme, **tables, rngs=rngs, **model),
    train_batches=supervised.train_batches(examples(train, make_batch), seed, sizes),
    loss=TAGS.mean_loss,
    weight=losses.count_rows,
    unit=Unit('nats per sentence'),
    evaluations=_evaluations(read, spelled.tags, train, held_out, sizes),
    ask=Ask(
      functools.partial(answer, Asked(spelled, widths, tuple(read.types))),
      tuple(_example(spelled, one) for one in read.held_out[:EXAMPLES]),
    ),
  )


def _example(spelled: Vocabulary, one: columns.Sentence) -> Example:
  return Example(spelled.joined(one.tokens), bracketed(spelled, one.tokens, one.tags))


def _baseline(read: columns.Columns) -> str:
  """F1 where each word has its most frequent tag."""
  tokens, right = zip(*((one.tokens, one.tags) for one in read.held_out), strict=True)
  predicted = most_frequent_tags(read.train, tokens, read.notation)
  found, guessed, there = span_metrics.count(predicted, right)
  return f'F1 {2 * found / (guessed + there):.1%} held out by the most frequent tag of each token'


class _Initial(NamedTuple):
  """Initial vectors, what the run reports of them, and the bytes of those of a file."""

  table: np.ndarray | None
  fact: str
  given: bytes


def _vectors(
  spelled: Vocabulary,
  model: Mapping[str, Any],
  vectors: str | None,
  bigram_vectors: str | None,
  seed: int,
) -> dict[str, _Initial]:
  """Those of words, and of bigrams if there are any, under the names of the `Tagger`.

  Raises:
    ValueError: if a file cannot be understood, or is one of bigrams that the model does not read.
  """
  if spelled.bigrams is None and bigram_vectors is not None:
    raise ValueError(
      'task.bigram_vectors needs a model that reads bigrams, but model.bigram_width is None.'
    )
  kinds = [('vectors', 'words', spelled.words, vectors, 'word_width')]
  if spelled.bigrams is not None:
    kinds.append(('bigram_vectors', 'bigrams', spelled.bigrams, bigram_vectors, 'bigram_width'))
  made = {}
  for name, what, known, path, width in kinds:
    table, found, given = word_vectors.initial(path, known.ids, model[width], seed)
    fact = f'{what}: drawn' if path is None else f'{found:,} {what} have one in {path}'
    made[name] = _Initial(table, fact, given)
  return made


def _sizes(spelled: Vocabulary) -> Sizes:
  rows = (spelled.words, spelled.characters, spelled.bigrams)
  return Sizes(*map(supervised.size_of, rows))


TAGS = supervised.Structure(
  'tags',
  lambda model, emissions, batch, lengths: model.field.nll(emissions, batch['labels'], lengths),
  lambda model, emissions, lengths: model.field.decode(emissions, lengths)[0],
)


def _evaluations(
  read: columns.Columns,
  tags: Sequence[str],
  train: Sequence[Coded],
  held_out: Sequence[Coded],
  sizes: Mapping[str, Any],
) -> tuple[Evaluation, ...]:
  """On held-out sentences, and on as many of the training: F1 of entities first."""
  predicted = supervised.by_sentence(
    lambda arrays, _: ([tags[tag] for tag in row if tag >= 0] for row in arrays['tags'].tolist())
  )

  def judge(name: str, coded: Sequence[Coded], references: Sequence[Sequence[str]]) -> Evaluation:
    measured = {
      **span_metrics.scores(predicted, references),
      'accuracy': metrics.share(_right_tags, '% of tags right'),
      'loss': metrics.mean_loss('nats per sentence'),
    }
    rows = examples(coded, make_batch)
    return supervised.sentence_evaluation(name, rows, sizes, TAGS.predict, measured)

  again = supervised.as_many(train, held_out)
  rows, right = [train[i] for i in again], [read.train[i].tags for i in again]
  return (
    judge('held out', held_out, [one.tags for one in read.held_out])._replace(during=True),
    judge('training sentences', rows, right)._replace(role='training rows'),
  )


def _right_tags(arrays, batch) -> tuple[int, int]:
  words = batch['segments'] != 0
  return int(((arrays['tags'] == batch['labels']) & words).sum()), int(words.sum())


class Asked(NamedTuple):
  """All that is needed to tag a text."""

  vocabulary: Vocabulary
  widths: tuple[int, ...]
  types: tuple[str, ...]

  def encode(self, texts: Sequence[Sequence[str]]) -> Sentences:
    """A batch of sentences, in rows as wide as the longest of them needs."""
    coded = [self.vocabulary.encode(tokens) for tokens in texts]
    return supervised.encoded(coded, self.widths, make_batch)


def answer(asked: Asked, model: Any, texts: Sequence[str], key: PRNGKey) -> list[Answer]:
  """The entities of each text in brackets, or in colour, as `Ask.answer`.

  Args:
    asked: of the task.
    model: a trained `Tagger`.
    texts: one sentence each, with spaces between its words, or of letters (`Vocabulary.tokens`).
    key: random key of place 0.

  Raises:
    ValueError: if a text has no word.
  """
  split = [asked.vocabulary.tokens(text) for text in texts]
  for text, tokens in zip(texts, split, strict=True):
    supervised.ask_for_words(text, tokens)
  read = asked.encode(split)
  emissions = model(read, ids_key=key).astype(jnp.float32)
  tags, scores = (np.asarray(each) for each in model.field.decode(emissions, read.lengths))
  return [
    _answer(asked, model, tokens, [asked.vocabulary.tags[tag] for tag in row[: len(tokens)]], score)
    for tokens, row, score in zip(split, tags, scores, strict=True)
  ]


def _answer(asked, model, tokens, tags, score) -> Answer:
  if np.isnan(score):
    return Answer('(no tags: positions lie beyond a table of the scheme)')
  pictures = {}
  if model.attends:
    pictures['attention'] = functools.partial(_draw_attention, asked, model, tokens)
  return Answer(bracketed(asked.vocabulary, tokens, tags), _coloured(asked, tokens, tags), pictures)


def bracketed(vocabulary: Vocabulary, tokens: Sequence[str], tags: Sequence[str]) -> str:
  """A sentence with its entities in brackets, as 'in [location New York] today'."""
  parts = [
    f'[{name} {vocabulary.joined(each)}]' if name else vocabulary.joined(each)
    for name, each in _pieces(tokens, tags)
  ]
  return vocabulary.joined(parts)


def _coloured(asked: Asked, tokens: Sequence[str], tags: Sequence[str]) -> Text:
  """A sentence with its entities in the colours of their types, which follow them."""
  text, space = Text(), '' if asked.vocabulary.by_letter else ' '
  for name, each in _pieces(tokens, tags):
    text.append(space if text else '')
    words = asked.vocabulary.joined(each)
    if name is None:
      text.append(words)
    else:
      colour = COLOURS[asked.types.index(name) % len(COLOURS)]
      text.append(words, f'bold {colour}').append(f' {name}', f'italic {colour}')
  return text


def _pieces(tokens: Sequence[str], tags: Sequence[str]) -> list[tuple[str | None, Sequence[str]]]:
  """The sentence in pieces: entities with their types, and what is between them with None."""
  made, at = [], 0
  for name, first, last in spans(tags):
    made += [(None, tokens[at:first])] if at < first else []
    made.append((name, tokens[first : last + 1]))
    at = last + 1
  return made + ([(None, tokens[at:])] if at < len(tokens) else [])


def _draw_attention(asked: Asked, model: nnx.Module, tokens: Sequence[str], figure: Any) -> None:
  """Draws the maps of attention of one sentence, computed here, with its words."""
  graph, state = nnx.split(model)
  weights = np.asarray(_attention(graph, state, asked.encode([tokens])))[:, 0]
  attention_maps.draw(figure, weights[..., : len(tokens), : len(tokens)], tokens, tokens)


@functools.partial(jax.jit, static_argnames='graph')
def _attention(graph: Any, state: Any, read: Sentences) -> Any:
  return nnx.merge(graph, state).weigh(read).own
