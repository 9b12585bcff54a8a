"""Algorithms learned from examples: train at lengths 1 to N, test at longer ones.

A decoder (`model.causal`) reads `<bos> prompt <sep>` and says `answer <eos>`, as in Kazemnejad et
al. 2023, https://arxiv.org/abs/2305.19466. An encoder reads the prompt and empty places, and says
what belongs into all of them at once, as in Ruoss et al. 2023, https://arxiv.org/abs/2305.16843;
where answers vary in length, `<eos>` ends them and what follows counts for nothing (there, the
filling is learned, but not scored either).

An answer is right (`accuracy`) if every token of it is, its `<eos>` too; chance is about 0 where
answers are long, and 1/2 where they are one bit.
`token_accuracy` is the share of right tokens: of a decoder, each after the right ones before it.
With `greedy`, the decoder goes on from its own words: `greedy_token_accuracy` is another number,
and lower. Whole answers are the same either way: the first wrong token ends both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posjax.experiment.data import questions
from posjax.experiment.data.questions.framing import BOS, DECODER, ENCODER, EOS, MARKS, SEP
from posjax.experiment.generate import generate
from posjax.experiment.losses import next_token
from posjax.experiment.models.transformer import Transformer
from posjax.experiment.tasks import Batch, Task
from posjax.scheme import Scheme


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Mapping[str, Any],
  *,
  seed: int,
  batch_size: int,
  data: str,
  shortest: int | None,
  longest: int,
  eval_factors: Sequence[int],
  eval_examples: int,
  eval_lengths: Sequence[int] = (),
  greedy: bool = False,
) -> Task:
  """A decoder, or an encoder, on one algorithm.

  Args:
    scheme: one scheme, or a repeating pattern.
    model: arguments of `Transformer`; `causal` makes it a decoder.
    seed: of the questions.
    batch_size: questions per step, all hosts together.
    data: 'synthetic:NAME', a name of `posjax.experiment.data.questions.catalogue`; or 'file:PATH',
      questions and answers as in `posjax.experiment.data.questions.pairs`, where a length is that
      of the answer.
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
  if eval_examples < 1:
    raise ValueError(f'eval_examples must be at least 1, but got {eval_examples}.')
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

  def eval_batches(length):
    return asked.judged(length, rows, eval_examples)

  def sample(model, key):
    first = {name: array[:1] for name, array in next(iter(eval_batches(asked.lengths[0]))).items()}
    said = continued(model, first, key) if causal else at_once(model, first, key)
    return _shown(first, said, asked.vocabulary, causal)

  def ask(model, text, key):
    width = next(iter(asked.judged(asked.lengths[-1], 1, 1)))['inputs'].shape[1]
    return answer(model, text, asked.vocabulary, width, key)

  return Task(
    facts={'data': data, 'form': 'decoder' if causal else 'encoder', **asked.facts},
    model=lambda rngs: Transformer(len(asked.vocabulary), scheme, rngs=rngs, **model),
    train_batches=lambda index, count: asked.train(batch_size // count, index, count),
    losses=next_token,
    lengths=asked.lengths,
    eval_batches=eval_batches,
    unit='nats per answer token',
    per_nat=1.0,
    exact=True,
    sample=sample,
    continued=continued if greedy else None,
    ask=ask if causal else None,  # an encoder would have to be told how long the answer is
  )


def continued(model, batch: Batch, key: jax.Array) -> np.ndarray:
  """What a decoder says after each prompt of a batch, each token the most likely one.

  Args:
    model: a causal `Transformer`.
    batch: rows as in `framing`, for a decoder.
    key: random key of place 0.

  Returns:
    Tokens [B, W], where the targets that count stand; 0 elsewhere.
  """
  counts = np.asarray(batch['weights'] > 0)
  starts = np.where(counts.any(1), counts.argmax(1) + 1, 1)
  width = int(starts.max())
  prompts = np.zeros((len(starts), width), np.int32)
  for prompt, row, start in zip(prompts, np.asarray(batch['inputs']), starts, strict=True):
    prompt[width - start :] = row[:start]
  length = max(int(counts.sum(1).max()), 1)
  lengths = jnp.asarray(starts, jnp.int32)
  tokens = jnp.asarray(prompts)
  said = generate(model, tokens, length, key, prompt_lengths=lengths, temperature=0.0)
  whole = np.zeros(counts.shape, np.int32)
  for row, mask, tokens in zip(whole, counts, np.asarray(said), strict=True):
    row[mask] = tokens[: mask.sum()]
  return whole


def answer(model, question: str, vocabulary: Sequence[str], most: int, key: jax.Array) -> str:
  """What a decoder answers to a question, each token the most likely one, up to its `<eos>`.

  Args:
    model: a causal `Transformer`.
    question: symbols with spaces between them.
    vocabulary: the name of each token, the four marks first.
    most: tokens to say where there is no `<eos>`.
    key: random key of place 0.

  Raises:
    ValueError: if a symbol is none of the vocabulary, or there is none.
  """
  symbols, known = question.split(), vocabulary[len(MARKS) :]
  strange = [symbol for symbol in symbols if symbol not in known]
  if strange or not symbols:
    got = repr(strange[0]) if strange else 'none'
    raise ValueError(
      f'A question is symbols with spaces between them, of {" ".join(known)}, but got {got}.'
    )
  prompt = [BOS, *map(vocabulary.index, symbols), SEP]
  said = generate(model, jnp.array([prompt], jnp.int32), most, key, temperature=0.0)[0].tolist()
  if EOS not in said:
    return ' '.join(vocabulary[token] for token in said if token >= 0) + ' ... (without an end)'
  return ' '.join(vocabulary[token] for token in said[: said.index(EOS)])


def at_once(model, batch: Batch, key: jax.Array) -> np.ndarray:
  """What an encoder says in every empty place that counts; arguments as for `continued`."""
  tokens, pos = jnp.asarray(batch['inputs']), jnp.asarray(batch['positions'])
  logits = model(tokens, pos, segments=jnp.asarray(batch['segments']), ids_key=key)
  return np.where(batch['weights'] > 0, logits.argmax(-1), 0)


def _shown(batch: Batch, said: np.ndarray, vocabulary: Sequence[str], causal: bool) -> str:
  """A question, the model's answer, and the right one."""
  counts = batch['weights'][0] > 0
  question = batch['inputs'][0][: int(np.argmax(counts)) + causal]
  lines = {'question': question, 'answer': said[0][counts], 'right': batch['targets'][0][counts]}
  show = lambda tokens: ' '.join(vocabulary[int(token)] for token in tokens)
  return '\n'.join(f'{name:8s} {show(tokens)}' for name, tokens in lines.items())
