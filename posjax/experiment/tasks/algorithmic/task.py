"""Algorithms learned from examples: train at lengths 1 to N, test at longer ones.

A decoder (`model.causal`) reads `<bos> prompt <sep>` and says `answer <eos>`, as in Kazemnejad et
al. 2023, https://arxiv.org/abs/2305.19466. An encoder reads the prompt and empty places, and says
what belongs into all of them at once, as in Ruoss et al. 2023, https://arxiv.org/abs/2305.16843;
where answers vary in length, `<eos>` ends them and what follows counts for nothing (there, the
filling is learned, but not scored either).

An answer is right (`accuracy`) if every token of it is, its `<eos>` too; chance is about 0 where
answers are long, and 1/2 where they are one bit.
`token_accuracy` is the share of right tokens: of a decoder, each after the right ones before it.
With `greedy`, evaluations called 'length 16, greedy' have the decoder go on from its own words:
their `token_accuracy` is another number, and lower. Whole answers are the same either way: the
first wrong token ends both.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax.experiment import losses, metrics
from posjax.experiment.task import (
  Answer,
  Arrays,
  Ask,
  Batch,
  Evaluation,
  Example,
  Metric,
  Task,
  Unit,
)
from posjax.experiment.tasks.algorithmic import data as questions
from posjax.experiment.tasks.algorithmic import synthetic
from posjax.experiment.tasks.algorithmic.data import Questions
from posjax.experiment.tasks.algorithmic.framing import (
  BOS,
  DECODER,
  ENCODER,
  EOS,
  MARKS,
  PAD,
  SEP,
)
from posjax.keys import Count, Section, Seed, Whole
from posjax.models.generate import generate
from posjax.models.transformer import Transformer, transformer_keys
from posjax.scheme import PRNGKey, Scheme

UNIT = Unit('nats per answer token')


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Annotated[Mapping[str, Any], Section(transformer_keys)],
  *,
  seed: Seed,
  batch_size: Count,
  data: str,
  shortest: Whole | None,
  longest: Whole,
  eval_factors: Sequence[Count],
  eval_examples: Count,
  eval_lengths: Sequence[Whole] = (),
  greedy: bool = False,
) -> Task:
  """A decoder, or an encoder, on one algorithm.

  Args:
    scheme: one scheme, or a repeating pattern.
    model: arguments of `Transformer`; `causal` makes it a decoder.
    seed: of the questions.
    batch_size: questions per step, all hosts together.
    data: 'synthetic:NAME', a name of `catalogue`; or 'file:PATH', questions and answers as in
      `files`, where a length is that of the answer.
    shortest: the shortest training length, as the algorithm counts it; None: the shortest there is.
    longest: the longest, N.
    eval_factors: evaluation lengths, in longest training lengths; 1 first. () for the next but one.
    eval_examples: questions per evaluation length.
    eval_lengths: instead of `eval_factors`, evaluation lengths that rise from N: `(N, N + 1, ..)`.
      Their rows are padded to multiples of 64 tokens, so that few programs are compiled. A file
      judges all lengths that it has where both are ().
    greedy: whether a decoder is also judged by its own continuations: slower.

  Raises:
    ValueError: if a number is out of range, or the algorithm is unknown.
    FileNotFoundError: if there is no file.
  """
  causal = model.get('causal', True)
  if greedy and not causal:
    raise ValueError('An encoder says all at once: greedy needs a causal model.')
  asked = questions.read(
    data,
    DECODER if causal else ENCODER,
    seed=seed,
    shortest=shortest,
    longest=longest,
    eval_factors=eval_factors,
    eval_lengths=eval_lengths,
  )
  rows = min(batch_size, eval_examples)
  kind, _, name = data.partition(':')
  coder = Coder(asked.vocabulary, causal, places_of(kind, name, asked, causal))

  def judge(length: int) -> Evaluation:
    batches = functools.partial(asked.judged, length, rows, eval_examples)
    return evaluation(length, longest, batches)

  evaluations = [judge(length) for length in asked.lengths]
  for each in evaluations[:] if greedy else ():
    sizes = sizes_of(kind, name, each.length or 0)
    evaluations.append(
      each._replace(
        name=f'{each.name}, greedy',
        predict=functools.partial(predict_greedy, sizes),
        metrics=GREEDY,
        role='other',
        series='greedy',
      )
    )
  return Task(
    facts={'data': data, 'form': 'decoder' if causal else 'encoder', **asked.facts},
    model=lambda rngs: Transformer(len(asked.vocabulary), scheme, rngs=rngs, **model),
    train_batches=lambda index, count: asked.train(batch_size // count, index, count),
    loss=losses.mean_next_token,
    weight=losses.count_tokens,
    unit=UNIT,
    evaluations=(evaluations[0]._replace(during=True), *evaluations[1:]),
    ask=Ask(
      functools.partial(answer, coder), (coder.example(next(iter(judge(longest).batches()))),)
    ),
  )


def evaluation(length: int, longest: int, batches: Callable[[], Iterable[Batch]]) -> Evaluation:
  """How questions of a length are judged: by whole answers, by tokens, and by the loss.

  Args:
    length: as the algorithm counts it.
    longest: the longest training length.
    batches: of the questions.
  """
  return Evaluation(
    name=f'length {length}',
    batches=batches,
    predict=losses.predict_next_token,
    metrics={
      'accuracy': metrics.answer_accuracy(),
      'token_accuracy': metrics.token_accuracy(),
      'loss': metrics.mean_loss(*UNIT),
      'loss_by_position': metrics.loss_by_position(*UNIT),
    },
    counted=metrics.count_answers,
    role='unseen' if length > longest else 'trained',
    length=length,
  )


# What a decoder says by itself.


class Sizes(NamedTuple):
  """Tokens of the longest prompt and of the longest answer, marks included.

  `prompt` is None where a prompt fills what the longest answer leaves of a row.
  """

  prompt: int | None
  answer: int


def sizes_of(kind: str, name: str, length: int) -> Sizes:
  """The sizes of questions of one length."""
  if kind != 'synthetic':  # a length is that of an answer
    return Sizes(None, length + 1)
  algorithm = synthetic.get(name)
  return Sizes(algorithm.prompt_symbols(length) + 2, algorithm.answer_symbols(length) + 1)


def predict_greedy(
  sizes: Sizes, model, batch: Batch, state: Any, key: PRNGKey
) -> tuple[dict[str, jax.Array], Any]:
  """The decoder's own answers and the right ones, as `Evaluation.predict`.

  Args:
    sizes: of prompts and answers.
    model: a causal `Transformer`.
    batch: rows as in `framing`, for a decoder.
    state: nothing.
    key: random key of place 0.
  """
  generated = continued(model, batch, key, sizes)
  return {'generated': generated, 'targets': batch['targets'], 'weights': batch['weights']}, state


def continued(model, batch: Batch, key: PRNGKey, sizes: Sizes) -> jax.Array:
  """A decoder's own answer to each prompt of a batch, each token the most likely one.

  Args:
    model: a causal `Transformer`.
    batch: rows as in `framing`, for a decoder.
    key: random key of place 0.
    sizes: of prompts and answers.

  Returns:
    Tokens [B, W], of the targets that count; 0 elsewhere.
  """
  inputs, counts = jnp.asarray(batch['inputs']), jnp.asarray(batch['weights']) > 0
  width = inputs.shape[1] - sizes.answer + 1 if sizes.prompt is None else sizes.prompt
  first = counts.argmax(1)  # the place of the first target; 0 in rows that only fill up a batch
  place = jnp.arange(width)[None] - (width - 1 - first)[:, None]
  prompts = jnp.take_along_axis(inputs, jnp.maximum(place, 0), axis=1)
  prompts = jnp.where(place >= 0, prompts, PAD)
  lengths = (first + 1).astype(jnp.int32)
  generated = generate(model, prompts, sizes.answer, key, prompt_lengths=lengths, temperature=0.0)
  place = jnp.arange(inputs.shape[1])[None] - first[:, None]
  spoken = jnp.take_along_axis(generated, jnp.clip(place, 0, sizes.answer - 1), axis=1)
  return jnp.where(counts, spoken, PAD)


def greedy_right(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
  """Which tokens of a decoder's own answers are right, and which count, both bool [B, W].

  No token is right that follows an end that came too soon.
  """
  counts = arrays['weights'] > 0
  last = counts.shape[1] - 1 - counts[:, ::-1].argmax(1)  # the place of the right end
  ends = np.take_along_axis(arrays['targets'], last[:, None], axis=1)
  has_end = (arrays['generated'] == ends) & counts
  too_soon = np.cumsum(has_end, axis=1) - has_end > 0
  return counts & (arrays['generated'] == arrays['targets']) & ~too_soon, counts


def _greedy_answers(arrays: Arrays, batch: Batch) -> tuple[int, int]:
  right, counts = greedy_right(arrays)
  asked = counts.any(1)
  return int((asked & (right == counts).all(1)).sum()), int(asked.sum())


def _greedy_tokens(arrays: Arrays, batch: Batch) -> tuple[int, int]:
  right, counts = greedy_right(arrays)
  return int(right.sum()), int(counts.sum())


GREEDY: Mapping[str, Metric] = {
  'accuracy': metrics.share(_greedy_answers, '% of answers right'),
  'token_accuracy': metrics.share(_greedy_tokens, '% of tokens right'),
}


# What is asked in words.


class Coder(NamedTuple):
  """Turns questions into rows of tokens, and tokens into answers.

  Attributes:
    vocabulary: the name of each token, the marks first.
    causal: whether the model is a decoder.
    places: `(symbols of a question) ->` tokens of its longest answer, its end included.
  """

  vocabulary: tuple[str, ...]
  causal: bool
  places: Callable[[int], int]

  def read(self, question: str) -> list[int]:
    """The tokens of a question.

    Raises:
      ValueError: if a symbol is none of the vocabulary, or there is none.
    """
    symbols, known = question.split(), self.vocabulary[len(MARKS) :]
    strange = [symbol for symbol in symbols if symbol not in known]
    if strange or not symbols:
      got = repr(strange[0]) if strange else 'none'
      raise ValueError(
        f'A question is symbols with spaces between them, of {" ".join(known)}, but got {got}.'
      )
    return [self.vocabulary.index(symbol) for symbol in symbols]

  def show(self, tokens: Iterable[int]) -> str:
    """The names of tokens."""
    return ' '.join(self.vocabulary[token] for token in tokens)

  def example(self, batch: Batch) -> Example:
    """The first question of a batch, with its answer."""
    counts = batch['weights'][0] > 0
    question = batch['inputs'][0][: int(np.argmax(counts)) + self.causal]
    words = [
      [int(token) for token in tokens if token >= len(MARKS)]
      for tokens in (question, batch['targets'][0][counts])
    ]
    return Example(*map(self.show, words))


def places_of(kind: str, name: str, asked: Questions, causal: bool) -> Callable[[int], int]:
  """How many tokens the answer to a question may have, by the number of its symbols."""
  if kind != 'synthetic':
    return lambda symbols: sizes_of(kind, name, asked.lengths[-1]).answer
  algorithm = synthetic.get(name)

  def places(symbols: int) -> int:
    length = algorithm.shortest
    while algorithm.prompt_symbols(length) < symbols:
      length += 1
    return algorithm.answer_symbols(length) + (causal or algorithm.varies)

  return places


def answer(coder: Coder, model, texts: Sequence[str], key: PRNGKey) -> list[Answer]:
  """The model's answer to each question, each token the most likely one, as `Ask.answer`.

  Args:
    coder: of the task.
    model: a `Transformer`.
    texts: questions, symbols with spaces between them.
    key: random key of place 0.

  Raises:
    ValueError: if a symbol is none of the vocabulary, or a question has none.
  """
  asked = [coder.read(text) for text in texts]
  places = [coder.places(len(question)) for question in asked]
  generate_answers = _say if coder.causal else _fill
  generated = generate_answers(model, asked, places, key)
  return [_told(coder, row, most) for row, most in zip(generated.tolist(), places, strict=True)]


def _say(model, asked: Sequence[Sequence[int]], places: Sequence[int], key: PRNGKey) -> np.ndarray:
  """The tokens that a decoder says after each question, -1 where it has none."""
  prompts = [[BOS, *question, SEP] for question in asked]
  width = max(map(len, prompts))
  rows = jnp.array([[PAD] * (width - len(prompt)) + prompt for prompt in prompts], jnp.int32)
  lengths = jnp.array(list(map(len, prompts)), jnp.int32)
  return np.asarray(
    generate(model, rows, max(places), key, prompt_lengths=lengths, temperature=0.0)
  )


def _fill(model, asked: Sequence[Sequence[int]], places: Sequence[int], key: PRNGKey) -> np.ndarray:
  """The tokens that an encoder puts into the empty places behind each question."""
  width = max(len(question) + most for question, most in zip(asked, places, strict=True))
  rows = [
    ENCODER.row([token - len(MARKS) for token in question], (), most, width)
    for question, most in zip(asked, places, strict=True)
  ]
  batch = {name: jnp.stack([row[name] for row in rows]) for name in rows[0]}
  logits = model(batch['inputs'], batch['positions'], segments=batch['segments'], ids_key=key)
  return np.stack(
    [
      np.pad(row[len(question) : len(question) + most], (0, max(places) - most))
      for row, question, most in zip(np.asarray(logits.argmax(-1)), asked, places, strict=True)
    ]
  )


def _told(coder: Coder, tokens: Sequence[int], places: int) -> Answer:
  """An answer in words, up to its end; -1 stands for no token."""
  known = [token for token in tokens[:places] if token >= 0]
  if EOS in known:
    return Answer(coder.show(known[: known.index(EOS)]))
  return Answer(coder.show(known) + (' ... (without an end)' if coder.causal else ''))
