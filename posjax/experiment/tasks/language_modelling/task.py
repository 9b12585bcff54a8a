"""Language modelling: predict each token of real text from those before it.

Tokens are bytes, characters, words, or pieces that sentencepiece learned (`data/vocabulary.py`).
Train at one length L, evaluate at multiples of it on held-out text. Reported at each length and at
each position: bits per byte or per character; for words and pieces nats per token, and with them
perplexity (e to that power), and the bits per character and per byte of the text that the scored
tokens spell, which compare between vocabularies.

With `eval_window`, each length is scored once more with the same weights, every layer attending to
the last L tokens only: what a scheme gains beyond that is gained from far tokens, and what it loses
is lost to them. (Through several layers, what lies further back than L still has its influence.)

With `memory`, the model reads streams of text in segments of L tokens and remembers
(`recurrence.py`): lengths of evaluation are then what each token sees in a layer.

Evaluations are called 'length 256' and, with a window, 'length 256, windowed'.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.text import Text

import posjax
from posjax.experiment import losses, metrics
from posjax.experiment.data.vocabulary import Vocabulary
from posjax.experiment.task import Answer, Ask, Batch, Evaluation, Example, Metric, Task, Unit
from posjax.experiment.tasks.language_modelling import recurrence
from posjax.experiment.tasks.language_modelling.corpus import (
  Corpus,
  held_out_windows,
  named,
  read,
)
from posjax.experiment.tasks.language_modelling.pipeline import batches
from posjax.experiment.tasks.language_modelling.recurrence import Rows
from posjax.keys import Count, Range, Section, Seed, Whole
from posjax.models.generate import generate
from posjax.models.recurrent import RecurrentTransformer
from posjax.models.transformer import Transformer, transformer_keys
from posjax.scheme import Scheme

Stored = Mapping[str, Any]
SampleLength = Annotated[int, Range(1, 100_000)]
BIT = 1 / math.log(2)  # nats to bits
UNITS = {'byte': Unit('bits per byte', BIT), 'character': Unit('bits per character', BIT)}


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Annotated[Mapping[str, Any], Section(transformer_keys)],
  *,
  seed: Seed,
  batch_size: Count,
  data: str,
  length: Count,
  eval_factors: Sequence[Count],
  eval_tokens: Count,
  prompt: str,
  sample_length: SampleLength,
  eval_window: bool = False,
  tokens: Literal['bytes', 'characters', 'words', 'sentencepiece'] = 'bytes',
  vocab_size: Count | None = None,
  vocabulary: Stored | None = None,
  memory: Whole = 0,
  eval_lengths: Sequence[Count] = (),
  eval_segment: Count | None = None,
  eval_scheme: str | None = None,
) -> Task:
  """A decoder on text.

  Args:
    scheme: one scheme, or a repeating pattern; where it makes complex embeddings, layers are so.
    model: arguments of `Transformer`.
    seed: of the data's order.
    batch_size: rows per step, all hosts together.
    data: what `data` reads, as 'python_docs', 'file:PATH' or 'tfds:NAME'.
    length: tokens per training row.
    eval_factors: evaluation lengths, in training lengths; 1 first, each a divisor of the largest.
    eval_tokens: held-out tokens to score: the same ones at each length, with more or less context.
      Where there are not so many, all that fill whole windows of the longest length.
    prompt: what the sample continues.
    sample_length: tokens to generate; the model holds the keys and values of all of them at once.
    eval_window: whether to score each length with a sliding window of `length` tokens as well.
    tokens: 'bytes', 'characters', 'words' or 'sentencepiece'.
    vocab_size: how many tokens there are, as in `data.vocabulary.learn`.
    vocabulary: one that an earlier run stored; by default it is learned from the training text.
    memory: tokens that each layer remembers of the segments before, in training; 0 is none, and
      rows are then packed and shuffled.
    eval_lengths: with a memory, instead of `eval_factors`, lengths that rise.
    eval_segment: with a memory, tokens that evaluation reads at once; by default `length`.
    eval_scheme: with a memory, the scheme of evaluation, with the parameters of the trained one:
      as with a clamp on distances.

  Raises:
    ValueError: if a number is out of range, the text is too short for an evaluation length, or it
      holds what has no token; the message says where.
  """
  if not model.get('causal', True):
    raise ValueError(
      'A language model must be causal, so that no token sees the one that it is to predict, but '
      'got model.causal=False.'
    )
  if eval_window and model.get('window') is not None:
    raise ValueError(
      'eval_window compares with a sliding window, so model.window must be None, but got '
      f'{model["window"]}.'
    )
  other = None if eval_scheme is None else posjax.get(eval_scheme)
  settings = recurrence.Settings(memory, eval_segment, other)
  recurrence.check(settings, model, eval_window, eval_lengths)
  lengths = tuple(eval_lengths) or evaluation_lengths(length, eval_factors)
  corpus = read(data, tokens, vocab_size, vocabulary)
  schemes = [scheme] if isinstance(scheme, Scheme) else scheme
  spelling = corpus.vocabulary
  prompt_tokens(spelling, prompt)  # a prompt without tokens is refused now, not at the end

  def make(arguments, rngs, other=None):
    made = RecurrentTransformer if memory else Transformer
    return made(spelling.size, other or scheme, rngs=rngs, **arguments)

  sizes = {'length': length, 'batch_size': batch_size, 'longest': max(lengths)}
  sizes |= {'eval_tokens': eval_tokens}
  if memory:
    rows = recurrence.streams_of(corpus, settings, make, model, **sizes)
  else:
    rows = packed_rows(corpus, seed, **sizes)
  scored = np.concatenate([counted(batch) for batch in rows.counted])
  unit = UNITS.get(spelling.unit, Unit(f'nats per {spelling.unit}'))
  measured = measures(spelling, scored, unit)
  judge = lambda each: evaluation(each, lengths[0], measured)._replace(**rows.at_length(each))
  evaluations = [judge(each) for each in lengths]
  if eval_window:
    short = lambda rngs: make({**model, 'window': length}, rngs)
    changes: dict[str, Any] = {'series': 'windowed', 'role': 'other', 'model': short}
    evaluations += [
      judge(each)._replace(name=f'length {each}, windowed', **changes) for each in lengths
    ]
  return Task(
    facts=facts(corpus, scored),
    model=lambda rngs: make(model, rngs),
    train_batches=rows.train_batches,
    loss=losses.mean_next_token,
    weight=losses.count_tokens,
    unit=unit,
    evaluations=(evaluations[0]._replace(during=True), *evaluations[1:]),
    ask=Ask(functools.partial(answer, spelling, sample_length), (Example(prompt),)),
    vocabulary=spelling.stored,
    memory=rows.memory,
    any_order=not memory and not any({*each.traits.mixes} & {'S', 'T'} for each in schemes),
  )


def packed_rows(
  corpus: Corpus, seed: int, *, length: int, batch_size: int, longest: int, eval_tokens: int
) -> Rows:
  """A text as packed, shuffled rows, and windows of it to be judged on.

  Args:
    corpus: the text as token ids.
    seed: of the data's order.
    length: tokens of a training row.
    batch_size: rows per step, all hosts together.
    longest: tokens of the longest evaluation.
    eval_tokens: held-out tokens to score.
  """

  def train_batches(shard_index: int, shard_count: int) -> Any:
    sizes = {'length': length, 'batch_size': batch_size // shard_count, 'seed': seed}
    shard = {'shard_index': shard_index, 'shard_count': shard_count}
    with named(corpus.text.name):
      return batches(corpus.train, **sizes, **shard, encode=np.asarray)

  windows = held_out_windows(corpus, longest, eval_tokens)
  shorter = lambda each: functools.partial(cut, windows, each, max(batch_size * length // each, 1))
  return Rows(train_batches, windows, lambda each: {'batches': shorter(each)})


def evaluation(length: int, trained: int, measured: Mapping[str, Metric]) -> Evaluation:
  """Held-out tokens, each with a context of at most `length` tokens.

  Args:
    length: of the rows; or what each token sees in a layer.
    trained: the length that stands for the training data, the first one.
    measured: the metrics.
  """
  return Evaluation(
    name=f'length {length}',
    batches=tuple,
    predict=losses.predict_next_token,
    metrics=measured,
    counted=metrics.count_weights,
    role='unseen' if length > trained else 'trained',
    length=length,
  )


def measures(made: Vocabulary, scored: np.ndarray, unit: Unit) -> dict[str, Metric]:
  """The metrics of a text: the mean loss in its unit first, and the same in other units."""
  others = {
    name: metrics.mean_loss(name, unit.factor, restate, 'targets')
    for name, restate in restated(made, scored).items()
  }
  return {
    'loss': metrics.mean_loss(*unit, targets='targets'),
    **others,
    'accuracy': metrics.token_accuracy(),
    'loss_by_position': metrics.loss_by_position(*unit),
  }


def counted(batch: Batch) -> np.ndarray:
  """The targets that count."""
  return batch['targets'][batch.get('weights', batch['segments']) > 0]


def facts(corpus: Corpus, scored: np.ndarray) -> dict[str, str]:
  """The facts that a run reports about its text, in tokens."""
  unit, cut = corpus.vocabulary.unit, corpus.vocabulary.cut
  unknown = '' if cut is None else f', {100 * (scored == cut).mean():.2g} % of which are <unk>'
  return {
    'data': corpus.text.name,
    'vocabulary': f'{corpus.vocabulary.size:,} {unit}s',
    f'training {unit}s': f'{sum(map(len, corpus.train)):,}',
    f'held-out {unit}s': f'{sum(map(len, corpus.held_out)):,}',
    'scored': f'{len(scored):,} of them{unknown}',
    'sha256': corpus.text.sha256,
  }


def restated(made: Vocabulary, scored: np.ndarray) -> dict[str, Callable[[float], float]]:
  """The mean loss in other units: what it is per character and byte of the text of these tokens.

  Where `<unk>` stands for what a model need not spell, nothing compares but perplexity.
  """
  unit, per_nat = UNITS.get(made.unit, Unit(''))
  others: dict[str, Callable[[float], float]] = {} if unit else {'perplexity': perplexity}
  if made.cut is not None or made.unit == 'byte':  # whose bytes may be no text
    return others
  text = made.decode(scored.tolist())
  rate = BIT / per_nat * len(scored)  # bits of all, for a mean loss of 1
  for name, size in {'bits per character': len(text), 'bits per byte': len(text.encode())}.items():
    if name != unit:
      others[name] = functools.partial(_share, rate, size)
  return others


def _share(rate: float, size: int, loss: float) -> float:
  return loss * rate / size


def perplexity(nats: float) -> float:
  """e to the power of a mean loss."""
  return math.inf if nats > 700 else math.exp(nats)


def evaluation_lengths(length: int, factors: Sequence[int]) -> tuple[int, ...]:
  """The lengths to score; every one must divide the longest, whose windows are cut up for it.

  Raises:
    ValueError: if they do not, or do not begin with the training length.
  """
  if not factors or factors[0] != 1 or min(factors) < 1 or any(max(factors) % f for f in factors):
    raise ValueError(
      f'eval_factors must begin with 1 and divide the largest of them, but got {factors}.'
    )
  return tuple(factor * length for factor in factors)


def cut(whole: Sequence[Batch], length: int, rows: int) -> list[dict[str, np.ndarray]]:
  """Long windows as batches of shorter ones: the same targets, each with less context."""

  def shorter(name):
    return np.concatenate([window[name] for window in whole]).reshape(-1, length)

  short = {name: shorter(name) for name in ('inputs', 'targets', 'segments')}
  short['positions'] = np.broadcast_to(np.arange(length, dtype=np.int32), short['inputs'].shape)
  starts = range(0, len(short['inputs']), rows)
  return [{name: x[start : start + rows] for name, x in short.items()} for start in starts]


def prompt_tokens(made: Vocabulary, prompt: str) -> np.ndarray:
  """The ids of a prompt.

  Raises:
    ValueError: if it has no token, or holds what has none.
  """
  with named(f'The text {prompt!r} cannot be continued'):
    tokens = made.encode(prompt)
    if not len(tokens):
      raise ValueError(f'it has no {made.unit}.')
  return tokens


def answer(
  made: Vocabulary,
  length: int,
  model: nnx.Module,
  texts: Sequence[str],
  key: jax.Array,
  stop: Sequence[int] = (),
) -> list[Answer]:
  """Each text, continued by sampled tokens, as `Ask.answer`.

  Args:
    made: the vocabulary; bytes that are not UTF-8 are shown as a mark.
    length: how many tokens to generate.
    model: a causal model.
    texts: what to continue.
    key: random key; the answer to a text depends on its place among the texts, not on the others.
    stop: tokens that end an answer.

  Raises:
    ValueError: if a text has no token, or holds what has none.
  """
  prompts = [prompt_tokens(made, text) for text in texts]
  width = max(map(len, prompts))
  padded = np.stack([np.pad(prompt, (width - len(prompt), 0)) for prompt in prompts])
  lengths = jnp.asarray(list(map(len, prompts)), jnp.int32)
  given: dict[str, Any] = {'prompt_lengths': lengths, 'stop': stop}
  generated = generate(model, jnp.asarray(padded, jnp.int32), length, key, **given)
  pairs = zip(prompts, np.asarray(generated), strict=True)
  return [_answer(made, *pair, stop) for pair in pairs]


def _answer(
  made: Vocabulary, prompt: np.ndarray, generated: np.ndarray, stop: Sequence[int]
) -> Answer:
  known = [token for token in generated.tolist() if token >= 0]
  end = (
    ''
    if len(known) == len(generated) or (known and known[-1] in stop)
    else '\n(Further positions lie beyond a table of the scheme.)'
  )
  plain = made.decode([*prompt.tolist(), *known]) + end
  asked = len(made.decode(prompt.tolist()))
  return Answer(plain, Text.assemble((plain[:asked], 'bold'), plain[asked:]))
