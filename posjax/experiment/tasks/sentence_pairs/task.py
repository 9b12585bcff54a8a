"""Labels of sentence pairs: does a premise entail a hypothesis, do two questions ask the same?

Held-out pairs are judged together, whatever their lengths: reported are the share of right labels
and the loss, nats a pair, of the evaluation 'held out'. Whether a model has learned is asked of
'training pairs' instead, as many as are held out.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from posjax.experiment import attention_maps
from posjax.experiment.data import vectors as word_vectors
from posjax.experiment.data import words
from posjax.experiment.data.buckets import check_widths
from posjax.experiment.task import Answer, Ask, Batch, Example, Task, Unit
from posjax.experiment.tasks import supervised
from posjax.experiment.tasks.sentence_pairs import data as pairs
from posjax.experiment.tasks.sentence_pairs import ngrams as character_ngrams
from posjax.experiment.tasks.sentence_pairs.batches import NAMES, Coded, examples
from posjax.experiment.tasks.sentence_pairs.batches import batch as make_batch
from posjax.experiment.tasks.sentence_pairs.data import Pair, Pairs
from posjax.experiment.tasks.sentence_pairs.esim import ESIM
from posjax.experiment.tasks.sentence_pairs.gaussian_transformer import GaussianTransformer
from posjax.experiment.tasks.sentence_pairs.model import Sentence
from posjax.experiment.tasks.sentence_pairs.one_row import OneRow
from posjax.keys import Count, Keys, Section, Seed, check_section, keys_of
from posjax.models import encoders
from posjax.models.layer_sets import check_without_transformer
from posjax.scheme import PRNGKey, Scheme

ARCHITECTURES: Mapping[str, Callable[..., nnx.Module]] = {
  'gaussian_transformer': GaussianTransformer,
  'esim': ESIM,
  'one_row': OneRow,
}
BETWEEN = ' ||| '  # the premise and the hypothesis of a question, where there is no tab
GIVEN = ('vocab', 'ngrams', 'labels', 'scheme', 'vectors', 'rngs', 'options')

Split = tuple[list[str], list[str]]


def model_keys() -> Keys:
  """The keys of `config.model` that the architectures take, all of them together."""
  known = {}
  for make in ARCHITECTURES.values():
    known |= keys_of(make, without=GIVEN).known
  known |= encoders.option_keys()
  return Keys({name: key._replace(required=False) for name, key in known.items()})


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Annotated[Mapping[str, Any], Section(model_keys)],
  *,
  seed: Seed,
  batch_size: Count,
  architecture: Literal['gaussian_transformer', 'esim', 'one_row'],
  data: str,
  widths: Sequence[Count],
  cut: bool,
  min_count: Count,
  vectors: str | None,
  ngrams: Sequence[Count],
  ngrams_per_word: Count,
) -> Task:
  """A classifier of sentence pairs.

  Args:
    scheme: one scheme, or a repeating pattern for layers of attention.
    model: arguments of the architecture's model. Those that only other architectures take are not
      used.
    seed: of the data's order, and of rows that no file of vectors gives.
    batch_size: pairs per step, all hosts together.
    architecture: 'gaussian_transformer', a `GaussianTransformer`; 'esim', an `ESIM`; or 'one_row',
      an encoder of texts that reads both sentences in one row, `OneRow`.
    data: 'file:PATH', 'tfds:NAME' or 'synthetic:near' and its other sizes, as in
      `posjax.experiment.tasks.sentence_pairs.data`.
    widths: of rows, in words, rising: a program is compiled for each. The last is the longest
      sentence.
    cut: whether longer sentences are cut to their first words; the run says how many. Not cut, they
      are an error.
    min_count: a word that occurs less often in the training pairs is unknown.
    vectors: a file of word vectors, as in `posjax.experiment.data.vectors`, of model.word_width
      numbers each; None draws all.
    ngrams: letters of the character n-grams of a word that are read; () reads none.
    ngrams_per_word: how many n-grams of a word are read; the run says how many words have more.

  Raises:
    ValueError: if a number is out of range, a file cannot be understood, or a sentence is too long.
    FileNotFoundError: if there is no file.
  """
  widths = check_widths(widths)
  make, chosen = ARCHITECTURES[architecture], _options(architecture, model)
  read = pairs.read(data)
  split = [[_split(pair) for pair in part] for part in (read.train, read.held_out)]
  lengths = (max(map(len, one)) for one in split[0] + split[1])
  everything = read.train + read.held_out
  what = 'pairs have a sentence'
  longer = supervised.count_longer(what, lengths, everything, widths[-1], cut)
  shortened = [[_cut(one, widths[-1]) for one in part] for part in split]
  learned = [side for one in split[0] for side in one]
  vocabulary = words.vocabulary(learned, min_count)
  spelling = character_ngrams.learn(
    (word for side in learned for word in side), ngrams, ngrams_per_word
  )
  coder = Coder(vocabulary, spelling, read.labels, widths)
  labels = [read.labels.index(pair.label) for pair in read.train + read.held_out]
  coded, spelled = coder.encode(shortened[0] + shortened[1], labels)
  train, held_out = coded[: len(read.train)], coded[len(read.train) :]
  table, found, given = word_vectors.initial(vectors, vocabulary.ids, chosen['word_width'], seed)
  sizes = {'widths': widths, 'batch_size': batch_size}
  examples_of = lambda coded: examples(coded, spelled)
  return Task(
    facts={
      'data': data,
      **_facts(read, split, coder, coded, longer),
      'vectors': 'drawn' if table is None else f'{found:,} words have one in {vectors}',
      'sha256': supervised.hash_with(read.sha256, [given]),
    },
    model=lambda rngs: make(
      len(vocabulary.names),
      spelling.size,
      len(read.labels),
      scheme,
      vectors=table,
      rngs=rngs,
      **chosen,
    ),
    train_batches=supervised.train_batches(examples_of(train), seed, sizes),
    loss=functools.partial(supervised.mean_label_loss, logits_of),
    weight=lambda batch: batch['weights'].sum(),
    unit=Unit('nats per pair'),
    evaluations=supervised.label_evaluations(
      logits_of, 'pair', examples_of, train, held_out, sizes
    ),
    ask=Ask(functools.partial(answer, coder), (_example(shortened[1][0], read.held_out[0]),)),
  )


def _options(architecture: str, model: Mapping[str, Any]) -> dict[str, Any]:
  """The arguments of an architecture's model.

  Raises:
    ValueError: if one is missing, or ESIM should compute as Transformers can.
  """
  keys = keys_of(ARCHITECTURES[architecture], without=GIVEN)
  if architecture == 'esim':
    check_without_transformer('ESIM', model.get('dtype', 'float32'), model.get('implementation'))
  options = encoders.option_keys() if keys.further else {}
  chosen = {name: value for name, value in model.items() if name in {*keys.known, *options}}
  check_section('model', chosen, keys)
  return chosen


class Coder(NamedTuple):
  """Turns pairs into rows of numbers."""

  vocabulary: words.Words
  spelling: character_ngrams.Ngrams
  labels: tuple[str, ...]
  widths: tuple[int, ...]

  def encode(self, split: Sequence[Split], labels: Sequence[int]) -> tuple[list[Coded], np.ndarray]:
    """Pairs as numbers, and the n-grams of each word that they spell, [U, G]."""
    every = sorted({word for one in split for side in one for word in side})
    row = {word: at for at, word in enumerate(every, start=1)}
    known = self.spelling.encode(every)
    ngrams = np.concatenate([np.zeros_like(known, shape=(1, known.shape[1])), known])
    spelled = lambda side: np.array([row[word] for word in side], np.int32)
    encode = self.vocabulary.encode
    coded = [
      Coded((encode(one), encode(other)), (spelled(one), spelled(other)), label)
      for (one, other), label in zip(split, labels, strict=True)
    ]
    return coded, ngrams


def sides(batch: Batch) -> tuple[Sentence, Sentence]:
  """The premises and the hypotheses of a batch as `data.pairs.batches` has it."""
  nothing = lambda tokens: jnp.zeros((*tokens.shape, 0), jnp.int32)
  side = lambda name: Sentence(batch[name], batch.get(f'{name}_ngrams', nothing(batch[name])))
  premise, hypothesis = map(side, NAMES)
  return premise, hypothesis


def logits_of(model: Any, batch: Batch, ids_key=None, train_key=None) -> jax.Array:
  """The logits of the labels, [B, labels]; arguments as of `supervised.label_losses`."""
  return model(*sides(batch), ids_key=ids_key, train_key=train_key)


def answer(coder: Coder, model: Any, texts: Sequence[str], key: PRNGKey) -> list[Answer]:
  """Every label of each pair with its probability, the likeliest first, as `Ask.answer`.

  Args:
    coder: of the task.
    model: a trained `PairModel`.
    texts: a premise and a hypothesis each, with a tab or ' ||| ' between.
    key: random key of place 0.

  Raises:
    ValueError: if a text is no pair, or a sentence has no word, or more than a row holds.
  """
  split = [_asked(text, coder.widths[-1]) for text in texts]
  coded, ngrams = coder.encode(split, [0] * len(split))
  longest = max(pair.length() for pair in coded)
  width = next(width for width in coder.widths if width >= longest)
  batch = make_batch(coded, ngrams, width)
  inputs = sides({name: jnp.asarray(array) for name, array in batch.items()})
  graph, state = nnx.split(model)
  probabilities, weights = jax.tree.map(np.asarray, _read(graph, state, *inputs, key))
  return [
    _answer(coder.labels, row, one, {name: each[:, at] for name, each in weights.items()})
    for at, (row, one) in enumerate(zip(probabilities.tolist(), split, strict=True))
  ]


@functools.partial(jax.jit, static_argnames='graph')
def _read(graph: Any, state: Any, premise: Sentence, hypothesis: Sentence, key: PRNGKey):
  """The probabilities of all labels, and the alignment of both sentences."""
  model = nnx.merge(graph, state)
  logits = model(premise, hypothesis, ids_key=key).astype(jnp.float32)
  return jax.nn.softmax(logits), model.alignment(premise, hypothesis)


def _asked(text: str, most: int) -> Split:
  """The words of both sentences of a question."""
  sentences = text.split('\t' if '\t' in text else BETWEEN)
  if len(sentences) != 2:
    raise ValueError(
      f'A question should be a premise and a hypothesis with a tab or {BETWEEN!r} between, but is '
      f'{text[:80]!r}.'
    )
  one, other = map(words.split, sentences)
  for name, side in zip(NAMES, (one, other), strict=True):
    if not 1 <= len(side) <= most:
      raise ValueError(
        f'The {name} should have 1 to {most} words, but has {len(side)}: {text[:80]!r}.'
      )
  return one, other


def _answer(
  labels: Sequence[str],
  probabilities: Sequence[float],
  split: Split,
  weights: Mapping[str, np.ndarray],
) -> Answer:
  """An answer in words, as bars, and the alignment of both sentences."""

  def align(name: str, figure) -> None:
    readers, words_read = split if name == NAMES[0] else split[::-1]
    own = weights[name][..., : len(readers), : len(words_read)]
    attention_maps.draw(figure, own, readers, words_read)

  pictures = {f'{name} reads': functools.partial(align, name) for name in weights}
  return supervised.ranked(labels, probabilities, pictures)


def _example(split: Split, pair: Pair) -> Example:
  return Example(BETWEEN.join(' '.join(side) for side in split), pair.label)


def _split(pair: Pair) -> Split:
  return words.split(pair.premise), words.split(pair.hypothesis)


def _cut(split: Split, most: int) -> Split:
  return split[0][:most], split[1][:most]


def _facts(
  read: Pairs, split: Sequence[Sequence[Split]], coder: Coder, coded: Sequence[Coded], longer: int
) -> dict[str, str]:
  """Facts of a run, by name, but for its data's name and hash."""
  train, held_out = coded[: len(read.train)], coded[len(read.train) :]
  unknown = lambda pairs: supervised.unknown(side for pair in pairs for side in pair.words)
  both = [[tuple(map(tuple, one)) for one in part] for part in split]
  premises = [[one[0] for one in part] for part in both]
  label, most = Counter(pair.label for pair in read.held_out).most_common(1)[0]
  every = [word for part in split for one in part for side in one for word in side]
  shown = {
    'pairs': f'{len(train):,} to learn from, {len(held_out):,} held out ({read.cut})',
    'left out': ', '.join(
      f'{count:,} {which} pairs have no label' for which, count in read.left_out.items()
    ),
    'labels': ', '.join(read.labels),
    'most frequent label': f'{label}, {most / len(held_out):.1%} of the held-out pairs',
    'words': f'{len(coder.vocabulary.names) - 2:,} that occur often enough',
    'unknown words': f'{unknown(train):.1%} in training pairs, {unknown(held_out):.1%} held out',
    'seen before': f'{supervised.seen(*both):,} held-out pairs equal a training pair, and '
    f'{supervised.seen(*premises):,} have the premise of one',
    'longest sentence': f'{max(len(side) for part in split for one in part for side in one)} words'
    + (f'; {longer} pairs cut to {coder.widths[-1]}' if longer else ''),
  }
  if coder.spelling.sizes:
    shown['character n-grams'] = (
      f'{coder.spelling.size - 2:,} of {", ".join(map(str, coder.spelling.sizes))} letters; '
      f'{coder.spelling.longer(every):,} words have more than {coder.spelling.most}, of which the '
      'first are read'
    )
  return shown
