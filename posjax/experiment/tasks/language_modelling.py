"""Language modelling over bytes: predict each byte of real text from those before it.

Train at one length, evaluate at multiples of it on held-out text. Reported in bits per byte.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from posjax.experiment.data import get_text
from posjax.experiment.data.pipeline import batches, windows
from posjax.experiment.generate import generate
from posjax.experiment.losses import next_token
from posjax.experiment.models.transformer import Transformer
from posjax.experiment.tasks import Task
from posjax.scheme import Scheme

VOCAB = 256


def task(
  scheme: Scheme | Sequence[Scheme],
  model: Mapping[str, Any],
  *,
  seed: int,
  batch_size: int,
  data: str,
  length: int,
  eval_factors: Sequence[int],
  eval_tokens: int,
  prompt: str,
  sample_length: int,
) -> Task:
  """A decoder on bytes.

  Args:
    scheme: one scheme, or a repeating pattern.
    model: arguments of `Transformer`.
    seed: of the data's order.
    batch_size: rows per step, all hosts together.
    data: 'python_docs', 'file:PATH' or 'tfds:NAME'.
    length: tokens per training row.
    eval_factors: evaluation lengths, in training lengths; 1 first.
    eval_tokens: held-out tokens per evaluation length: the same spread of text for each.
    prompt: what the sample continues.
    sample_length: bytes to say.

  Raises:
    ValueError: if a number is out of range, or the text is too short for an evaluation length.
  """
  if not eval_factors or eval_factors[0] != 1 or min(eval_factors) < 1:
    raise ValueError(
      f'eval_factors must begin with 1, the training length, but got {eval_factors}.'
    )
  text = get_text(data)
  lengths = tuple(factor * length for factor in eval_factors)

  def train_batches(shard_index, shard_count):
    rows = batch_size // shard_count
    shard = {'shard_index': shard_index, 'shard_count': shard_count}
    return batches(text.train, length=length, batch_size=rows, seed=seed, **shard)

  def eval_batches(length):
    count = max(eval_tokens // length, 1)
    rows = min(count, max(batch_size * lengths[0] // length, 1))
    return windows(text.held_out, length=length, batch_size=rows, count=count)

  for each in lengths:
    eval_batches(each)  # what does not fit is said before training, not after
  return Task(
    facts={
      'data': data,
      'training bytes': f'{sum(map(len, text.train)):,}',
      'held-out bytes': f'{sum(map(len, text.held_out)):,}',
      'sha256': text.sha256,
    },
    model=lambda rngs: Transformer(VOCAB, scheme, rngs=rngs, **model),
    train_batches=train_batches,
    losses=next_token,
    lengths=lengths,
    eval_batches=eval_batches,
    unit='bits per byte',
    per_nat=1 / math.log(2),
    exact=False,
    sample=lambda model, key: say(model, prompt, sample_length, key),
  )


def say(model: nnx.Module, prompt: str, length: int, key: jax.Array) -> str:
  """The prompt, continued by `length` sampled bytes; what is not UTF-8 is shown as a mark."""
  tokens = jnp.asarray([list(prompt.encode())], jnp.int32)
  said = generate(model, tokens, length, key)
  return prompt + bytes(said[0].tolist()).decode('utf-8', errors='replace')
