"""Algorithms learned from examples: train at short lengths, test at longer ones.

The decoder reads `<bos> prompt <sep>` and says `answer <eos>`; an answer is right if every token
of it is. Reported as the share of right answers (chance is about 0).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from posjax.experiment.data import synthetic
from posjax.experiment.generate import generate
from posjax.experiment.losses import next_token
from posjax.experiment.models.transformer import Transformer
from posjax.experiment.tasks import Task
from posjax.scheme import Scheme

_HELD_OUT = 1_000_003  # added to the seed: evaluation draws other questions than training


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Mapping[str, Any],
  *,
  seed: int,
  batch_size: int,
  data: str,
  shortest: int,
  longest: int,
  eval_factors: Sequence[int],
  eval_examples: int,
) -> Task:
  """A decoder on one algorithm.

  Args:
    scheme: one scheme, or a repeating pattern.
    model: arguments of `Transformer`.
    seed: of the questions.
    batch_size: questions per step, all hosts together.
    data: 'synthetic:NAME', a name of `posjax.experiment.data.synthetic`.
    shortest: the shortest training length, as the algorithm counts it.
    longest: the longest.
    eval_factors: evaluation lengths, in longest training lengths; 1 first.
    eval_examples: questions per evaluation length.

  Raises:
    ValueError: if a number is out of range, or the algorithm is unknown.
  """
  kind, _, name = data.partition(':')
  if kind != 'synthetic' or not name:
    known = ', '.join(f'synthetic:{each}' for each in synthetic.names())
    raise ValueError(f'The algorithmic task reads {known}, but got {data!r}.')
  if not 1 <= shortest <= longest:
    raise ValueError(f'Lengths must be 1 <= shortest <= longest, but got {shortest}, {longest}.')
  if not eval_factors or eval_factors[0] != 1 or min(eval_factors) < 1:
    raise ValueError(f'eval_factors must begin with 1, the longest length, but got {eval_factors}.')
  vocabulary = synthetic.vocabulary(name)
  lengths = tuple(factor * longest for factor in eval_factors)

  def train_batches(shard_index, shard_count):
    return synthetic.examples(
      name,
      lengths=range(shortest, longest + 1),
      batch_size=batch_size // shard_count,
      seed=seed,
      width=synthetic.required_width(name, longest),
      shard_index=shard_index,
      shard_count=shard_count,
    )

  def eval_batches(length):
    rows = min(batch_size, eval_examples)
    width = synthetic.required_width(name, length)
    stream = iter(
      synthetic.examples(
        name, lengths=(length,), batch_size=rows, seed=seed + _HELD_OUT, width=width
      )
    )
    return [next(stream) for _ in range(-(-eval_examples // rows))]

  def sample(model, key):
    question = next(iter(eval_batches(longest)))
    return _answered(model, question, vocabulary, key)

  return Task(
    facts={'data': data, 'training lengths': f'{shortest} to {longest}'},
    model=lambda rngs: Transformer(len(vocabulary), scheme, rngs=rngs, **model),
    train_batches=train_batches,
    losses=next_token,
    lengths=lengths,
    eval_batches=eval_batches,
    unit='nats per answer token',
    per_nat=1.0,
    exact=True,
    sample=sample,
  )


def _answered(model, batch: Mapping[str, np.ndarray], vocabulary, key: jax.Array) -> str:
  """The first question of a batch, the model's most likely answer, and the right one."""
  said = batch['weights'][0] > 0
  start, length = int(np.argmax(said)) + 1, int(said.sum())
  prompt = batch['inputs'][:1, :start]
  answer = generate(model, jax.numpy.asarray(prompt), length, key, temperature=0.0)
  lines = {'question': prompt[0], 'answer': answer[0], 'right': batch['targets'][0][said]}
  show = lambda tokens: ' '.join(vocabulary[int(token)] for token in tokens)
  return '\n'.join(f'{name:8s} {show(tokens)}' for name, tokens in lines.items())
