"""Translation: sentences of one language to sentences of another.

A model reads a source sentence and says its translation token by token. It is scored on held-out
sentences by BLEU and chrF of what beam search finds, and of what greedy search does ('greedy').
'right tokens' is teacher forcing, the loss and accuracy of each token after the reference's own
tokens, and runs during training; 'own tokens' has the tokens before it from the model instead, as
far as the model goes on: the difference is exposure bias. Whether a model has learned is asked of
'training sentences', as many as are held out.

The training loss is smoothed where `label_smoothing` says so; every other loss is not.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from posjax.experiment import attention_maps, metrics
from posjax.experiment.data.buckets import check_widths, longer, width_of
from posjax.experiment.losses import cross_entropy
from posjax.experiment.task import Answer, Ask, Batch, Evaluation, Example, Metric, Task, Unit
from posjax.experiment.tasks.translation import data as parallel
from posjax.experiment.tasks.translation import metrics as corpus_metrics
from posjax.experiment.tasks.translation.batches import batch as make_batch
from posjax.experiment.tasks.translation.batches import examples, lengths
from posjax.experiment.tasks.translation.facts import facts
from posjax.experiment.tasks.translation.recurrent import RecurrentEncoderDecoder
from posjax.experiment.tasks.translation.search import Found, beam_search, greedy
from posjax.experiment.tasks.translation.vocabulary import (
  END,
  START,
  Coded,
  Language,
  Vocabulary,
  learn_or_restore,
)
from posjax.keys import (
  Count,
  Keys,
  Range,
  Section,
  Seed,
  Share,
  check_section,
  keys_of,
)
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.models.layer_sets import check_without_transformer
from posjax.models.sides import Side
from posjax.scheme import PRNGKey, Scheme

ARCHITECTURES: Mapping[str, Callable[..., nnx.Module]] = {
  'transformer': EncoderDecoder,
  'recurrent': RecurrentEncoderDecoder,
}
EXAMPLES = 2  # held-out sentences that a run translates at its end
Alpha = Annotated[float, Range(0, 10)]
Beams = Annotated[int, Range(1, 100)]
Extra = Annotated[int, Range(1, 10_000)]


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Annotated[Mapping[str, Any], Section(lambda: all_model_keys())],
  *,
  seed: Seed,
  batch_size: Count,
  architecture: Literal['transformer', 'recurrent'],
  data: str,
  source: str | None,
  target: str | None,
  held_out: str | None,
  tokens: Literal['sentencepiece', 'words', 'characters', 'bytes'],
  vocab_size: Count | None,
  joint: bool,
  widths: Sequence[Count],
  label_smoothing: Share,
  beams: Beams,
  alpha: Alpha,
  extra_length: Extra,
  vocabulary: Mapping[str, Any] | None = None,
) -> Task:
  """A model that translates.

  Args:
    scheme: one scheme, or a repeating pattern, of the self-attention on both sides.
    model: arguments of the architecture's model.
    seed: of the data's order.
    batch_size: rows of the last width per step, all hosts together; of rows of which two fit into
      one of those, a batch has twice as many.
    architecture: 'transformer', an `EncoderDecoder`; or 'recurrent', a
      `RecurrentEncoderDecoder`.
    data: 'file:PATH', 'tfds:NAME' or 'synthetic:reversed' and others, as in
      `posjax.experiment.tasks.translation.data`.
    source: the language to translate from; None for generated sentences.
    target: the language to translate to; None for generated sentences.
    held_out: the files or the split to be scored on; by default those whose name says so.
    tokens: 'sentencepiece', 'words', 'characters' or 'bytes'.
    vocab_size: how many tokens there are, as in `data.parallel.vocabulary.learn`.
    joint: whether both languages share one vocabulary.
    widths: of rows, in tokens, rising: a program is compiled for each. Training pairs that are
      longer than the last are left out, and counted.
    label_smoothing: share of the target distribution that all tokens have alike, in training.
    beams: hypotheses of each sentence that the search keeps.
    alpha: exponent of the length penalty; 0 has none.
    extra_length: a translation may have so many tokens more than its source.
    vocabulary: one that an earlier run stored; by default it is learned from the training pairs.

  Raises:
    ValueError: if a number is out of range, or a file cannot be understood.
    FileNotFoundError: if there is no file.
  """
  widths = check_widths(widths)
  make = ARCHITECTURES[architecture]
  if architecture == 'recurrent':
    computing = model.get('dtype', 'float32'), model.get('implementation')
    check_without_transformer('A recurrent model', *computing)
  check_section('model', model, model_keys(make))
  if model.get('shared') and not joint:
    raise ValueError(
      'model.shared has one table for the words of both languages, so it needs task.joint, but '
      'task.joint is False.'
    )
  chosen = _schemes_of(architecture, scheme)
  read = parallel.read(data, source=source, target=target, held_out=held_out)
  spelled = learn_or_restore(tokens, read.train, vocabulary, joint=joint, vocab_size=vocab_size)
  train, judged = spelled.encode(read.train), spelled.encode(read.held_out)
  _check_fitting(train, widths, batch_size)
  sizes = {'widths': widths, 'batch_size': batch_size}
  search = Search(beams, alpha, extra_length)
  return Task(
    facts={
      **facts(read, spelled, train, judged, widths),
      'scores': corpus_metrics.signatures([pair.target for pair in read.held_out]),
    },
    model=lambda rngs: make(spelled.source.size, spelled.target.size, chosen, rngs=rngs, **model),
    train_batches=lambda index, count: examples(train).batches(
      seed=seed, shard_index=index, shard_count=count, **sizes
    ),
    loss=functools.partial(mean_loss, label_smoothing),
    weight=lambda batch: (batch['segments'] != 0).sum(),
    unit=Unit(f'nats per {spelled.target.unit}'),
    evaluations=_evaluations(read, spelled.target, train, judged, search, sizes),
    ask=Ask(
      functools.partial(answer, Asked(spelled, search, widths)),
      tuple(Example(pair.source, pair.target) for pair in read.held_out[:EXAMPLES]),
      empty=True,
    ),
    vocabulary=spelled.stored,
  )


def _schemes_of(
  architecture: str, scheme: Scheme | Sequence[Scheme]
) -> Scheme | tuple[Scheme, ...]:
  """The schemes as an architecture takes them.

  Raises:
    ValueError: if there are several for a recurrent model.
  """
  schemes = (scheme,) if isinstance(scheme, Scheme) else tuple(scheme)
  if architecture != 'recurrent':
    return schemes
  if len(schemes) > 1:
    raise ValueError(
      f'A recurrent model takes one scheme, for its embeddings, but got {len(schemes)}: patterns '
      'are for the layers of a Transformer.'
    )
  return schemes[0]


def model_keys(make: Callable[..., Any]) -> Keys:
  """The keys of `config.model` that one of the architectures takes."""
  return keys_of(make, without=('source_vocab', 'target_vocab', 'scheme', 'rngs'))


def all_model_keys() -> Keys:
  """The keys of all architectures; `task` checks that those of the chosen one are there."""
  known = {
    name: key._replace(required=False)
    for make in ARCHITECTURES.values()
    for name, key in model_keys(make).known.items()
  }
  return Keys(known)


def mean_loss(
  smoothing: float,
  model: Any,
  batch: Batch,
  state: Any,
  ids_key: PRNGKey | None,
  train_key: PRNGKey | None,
) -> tuple[Array, Any]:
  """The mean loss of the target's tokens, with smoothed labels, as `Task.loss`."""
  logits = model(*sides(batch), ids_key=ids_key, train_key=train_key)
  losses = cross_entropy(logits, batch['targets'], batch['segments'] != 0, smoothing)
  return losses.mean(), state


def sides(batch: Batch) -> tuple[Side, Side]:
  """The source and the target of a batch, as `data.parallel.batches` has it."""
  source = Side(batch['source'], batch['source_segments'])
  return source, Side(batch['inputs'], batch['segments'])


def predict_after_right_tokens(
  model: Any, batch: Batch, state: Any, key: PRNGKey
) -> tuple[dict[str, Array], Any]:
  """The losses of the target's tokens after those of the target, as `Evaluation.predict`."""
  logits = model(*sides(batch), ids_key=key)
  return cross_entropy(logits, batch['targets'], batch['segments'] != 0)._asdict(), state


class Search(NamedTuple):
  """How translations are searched for; arguments of `task`."""

  beams: int
  alpha: float
  extra_length: int

  def predict(
    self, model: Any, batch: Batch, state: Any, key: PRNGKey
  ) -> tuple[dict[str, Array], Any]:
    """The translations that beam search finds, as `Evaluation.predict`."""
    source, limits = _searched(batch, self.extra_length)
    found = beam_search(model, source, beams=self.beams, alpha=self.alpha, key=key, **limits)
    return _told(batch, found), state

  def predict_greedy(
    self, model: Any, batch: Batch, state: Any, key: PRNGKey
  ) -> tuple[dict[str, Array], Any]:
    """The translations of greedy search, as `Evaluation.predict`."""
    source, limits = _searched(batch, self.extra_length)
    return _told(batch, greedy(model, source, key=key, **limits)), state

  def predict_after_own_tokens(
    self, model: Any, batch: Batch, state: Any, key: PRNGKey
  ) -> tuple[dict[str, Array], Any]:
    """The losses of the target's tokens after tokens of greedy search.

    They count as far as the model goes on: beyond its own end mark it was never trained.
    """
    source, limits = _searched(batch, self.extra_length)
    found = greedy(model, source, key=key, **limits)
    width = batch['inputs'].shape[1]
    generated = jnp.concatenate([batch['inputs'][:, :1], found.tokens[:, : width - 1]], axis=1)
    going = (jnp.arange(width)[None] < found.lengths[:, None]) & (batch['segments'] != 0)
    target = Side(jnp.where(going, generated, 0), going.astype(jnp.int32))
    logits = model(source, target, ids_key=key)
    losses = cross_entropy(logits, batch['targets'], going)
    nothing = jnp.isnan(found.scores) & (batch['row'] >= 0)
    return losses._replace(loss=jnp.where(nothing[:, None], jnp.nan, losses.loss))._asdict(), state


def _searched(batch: Batch, extra: int) -> tuple[Side, dict[str, Any]]:
  """The side that is read, and the limits of a search."""
  source, _ = sides(batch)
  lengths = (source.segments != 0).sum(1)
  limits = jnp.where(lengths > 0, lengths + extra, 1)  # rows that are filled up generate one token
  capacity = source.tokens.shape[1] + extra
  return source, {'start': START, 'end': END, 'max_lengths': limits, 'capacity': capacity}


def _told(batch: Batch, found: Found) -> dict[str, Array]:
  """The arrays of a search that metrics read; a row that is filled up has no NaN."""
  there = batch['row'] >= 0
  return {
    'generated': found.tokens,
    'scores': jnp.where(there, found.scores, 0),
    'finished': found.finished,
  }


def _evaluations(
  read: parallel.Parallel,
  language: Language,
  train: Sequence[Coded],
  judged: Sequence[Coded],
  search: Search,
  sizes: Mapping[str, Any],
) -> tuple[Evaluation, ...]:
  """All evaluations: beam search first, and last that of as many training pairs as are held out."""
  unit = f'nats per {language.unit}'
  references = [pair.target for pair in read.held_out]
  again = np.random.default_rng(0).permutation(len(train))[: len(judged)]
  judge = functools.partial(_evaluation, language, judged, references, sizes)
  force = functools.partial(_forced, judged, sizes, unit)
  return (
    judge(f'beam {search.beams}', search.predict),
    judge('greedy', search.predict_greedy, role='other'),
    force('right tokens', predict_after_right_tokens)._replace(during=True),
    force('own tokens', search.predict_after_own_tokens),
    _evaluation(
      language,
      [train[i] for i in again],
      [read.train[i].target for i in again],
      sizes,
      'training sentences',
      search.predict_greedy,
      role='training rows',
    ),
  )


def _evaluation(
  language: Language,
  pairs: Sequence[Coded],
  references: Sequence[str],
  sizes: Mapping[str, Any],
  name: str,
  predict: Callable[..., Any],
  **changes: Any,
) -> Evaluation:
  """How translations are judged: BLEU first."""

  def predicted(arrays, batch):
    rows = zip(batch['row'].tolist(), arrays['generated'], strict=True)
    return [(number, language.decode(ids)) for number, ids in rows if number >= 0]

  measured = {
    'bleu': corpus_metrics.bleu(predicted, references),
    'chrf': corpus_metrics.chrf(predicted, references),
    'right': corpus_metrics.equal_sentences(predicted, references),
    'ended': metrics.share(_ended, '% of sentences ended'),
  }
  batches = lambda: examples(pairs).in_order(**sizes)
  judged = Evaluation(name, batches, predict, measured, _sentences)
  return judged._replace(**changes)


def _ended(arrays, batch) -> tuple[int, int]:
  there = batch['row'] >= 0
  return int((arrays['finished'] & there).sum()), int(there.sum())


def _sentences(arrays, batch) -> int:
  return int((batch['row'] >= 0).sum())


def _forced(
  pairs: Sequence[Coded],
  sizes: Mapping[str, Any],
  unit: str,
  name: str,
  predict: Callable[..., Any],
) -> Evaluation:
  """How tokens are judged after given ones."""
  measured: dict[str, Metric] = {
    'loss': metrics.mean_loss(unit, targets='targets'),
    'accuracy': metrics.token_accuracy(),
  }
  batches = lambda: examples(pairs).in_order(**sizes)
  return Evaluation(name, batches, predict, measured, metrics.count_weights, role='other')


class Asked(NamedTuple):
  """The settings with which a line is translated."""

  vocabulary: Vocabulary
  search: Search
  widths: tuple[int, ...]

  def encode(self, texts: Sequence[str], generated: Sequence[np.ndarray] | None = None) -> Batch:
    """A batch of texts, in rows as wide as the longest of them needs; perhaps with translations."""
    none = np.zeros(0, np.int32)
    ids = [self.vocabulary.source.encode(text) for text in texts]
    pairs = [Coded(*both) for both in zip(ids, generated or [none] * len(ids), strict=True)]
    width = width_of(max(pair.length() for pair in pairs), self.widths)
    return {name: jnp.asarray(each) for name, each in make_batch(pairs, width).items()}


def answer(asked: Asked, model: Any, texts: Sequence[str], key: PRNGKey) -> list[Answer]:
  """The translation of each text, as `Ask.answer`, with maps of attention for pictures.

  Args:
    asked: of the task.
    model: a trained model.
    texts: one sentence each; an empty one is translated, too.
    key: random key of place 0.
  """
  batch = asked.encode(texts)
  source, limits = _searched(batch, asked.search.extra_length)
  found = beam_search(
    model, source, beams=asked.search.beams, alpha=asked.search.alpha, key=key, **limits
  )
  rows = zip(texts, *(np.asarray(each) for each in found), strict=True)
  return [_answer(asked, model, *row) for row in rows]


def _answer(asked, model, text, tokens, length, score, log_prob, finished) -> Answer:
  if np.isnan(score):
    return Answer('(no translation: positions lie beyond a table of the scheme)')
  plain = asked.vocabulary.target.decode(tokens[:length])
  if not finished:
    plain += f' (not ended after {length} tokens)'
  generated = tokens[: length - 1] if finished else tokens[:length]
  maps = _Maps(asked, model, text, generated)
  names = ('cross',) if isinstance(model, RecurrentEncoderDecoder) else maps.NAMES
  return Answer(plain, pictures={name: functools.partial(maps.draw, name) for name in names})


class _Maps:
  """Maps of the attention of one sentence, computed when the first of them is drawn."""

  NAMES = ('encoder', 'decoder', 'cross')

  def __init__(self, asked: Asked, model: nnx.Module, text: str, generated: np.ndarray):
    self.asked, self.model, self.text, self.generated = asked, model, text, generated

  def draw(self, name: str, figure: Any) -> None:
    """Draws the maps of one kind of layers."""
    weights = self.weights[name][:, 0]
    batch = self.asked.encode([self.text], [self.generated])
    both = self.asked.vocabulary
    read = both.source.names(batch['source'][0][: int(batch['source_segments'].sum())].tolist())
    generated = both.target.names(batch['inputs'][0][: len(self.generated) + 1].tolist())
    queries, keys = {
      'encoder': (read, read),
      'decoder': (generated, generated),
      'cross': (generated, read),
    }[name]
    attention_maps.draw(figure, weights[..., : len(queries), : len(keys)], queries, keys)

  @functools.cached_property
  def weights(self) -> Mapping[str, np.ndarray]:
    """The weights of each kind of layers, [L, 1, H, T, S]."""
    batch = self.asked.encode([self.text], [self.generated])
    graph, state = nnx.split(self.model)
    return jax.tree.map(np.asarray, _attention(graph, state, *sides(batch)))


@functools.partial(jax.jit, static_argnames='graph')
def _attention(graph: Any, state: Any, source: Side, target: Side) -> Mapping[str, Any]:
  return nnx.merge(graph, state).attention(source, target)


def _check_fitting(train: Sequence[Coded], widths: Sequence[int], batch_size: int) -> None:
  fitting = len(train) - longer(lengths(train), widths[-1])
  if fitting < batch_size:
    raise ValueError(
      f'A batch of {batch_size} rows needs as many training pairs of up to {widths[-1]} tokens, '
      f'the last of task.widths, but only {fitting} of {len(train)} are so short.'
    )
