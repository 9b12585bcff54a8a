"""Language modelling over bytes: predict each byte of real text from those before it.

Train at one length L, evaluate at multiples of it on held-out text. Reported in bits per byte, at
each length and at each position. With `eval_window`, each length is scored once more with the same
weights, every layer attending to the last L tokens only: what a scheme gains beyond that is gained
from far tokens, and what it loses is lost to them. (Through several layers, what lies further back
than L still has its influence.)
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from posjax.experiment.data import get_text
from posjax.experiment.data.pipeline import batches, windows
from posjax.experiment.generate import generate
from posjax.experiment.losses import next_token
from posjax.experiment.models.transformer import Transformer
from posjax.experiment.tasks import Batch, Task
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
  eval_window: bool = False,
) -> Task:
  """A decoder on bytes.

  Args:
    scheme: one scheme, or a repeating pattern.
    model: arguments of `Transformer`.
    seed: of the data's order.
    batch_size: rows per step, all hosts together.
    data: 'python_docs', 'file:PATH' or 'tfds:NAME'.
    length: tokens per training row.
    eval_factors: evaluation lengths, in training lengths; 1 first, each a divisor of the largest.
    eval_tokens: held-out tokens to score: the same ones at each length, with more or less context.
    prompt: what the sample continues.
    sample_length: bytes to say.
    eval_window: whether to score each length with a sliding window of `length` tokens as well.

  Raises:
    ValueError: if a number is out of range, or the text is too short for an evaluation length.
  """
  if eval_window and model.get('window') is not None:
    raise ValueError(
      'eval_window compares with a sliding window, so model.window must be None, but got '
      f'{model["window"]}.'
    )
  lengths = evaluation_lengths(length, eval_factors)
  text = get_text(data)
  count = eval_tokens // max(lengths)
  if count < 1:
    raise ValueError(
      f'eval_tokens must hold the longest evaluation of {max(lengths)}, but got {eval_tokens}.'
    )
  held_out = list(windows(text.held_out, length=max(lengths), batch_size=1, count=count))

  def train_batches(shard_index, shard_count):
    rows = batch_size // shard_count
    shard = {'shard_index': shard_index, 'shard_count': shard_count}
    return batches(text.train, length=length, batch_size=rows, seed=seed, **shard)

  def eval_batches(each):
    return cut(held_out, each, rows=max(batch_size * length // each, 1))

  def make(arguments, rngs):
    return Transformer(VOCAB, scheme, rngs=rngs, **arguments)

  return Task(
    facts={
      'data': data,
      'training bytes': f'{sum(map(len, text.train)):,}',
      'held-out bytes': f'{sum(map(len, text.held_out)):,}',
      'sha256': text.sha256,
    },
    model=lambda rngs: make(model, rngs),
    train_batches=train_batches,
    losses=next_token,
    lengths=lengths,
    eval_batches=eval_batches,
    unit='bits per byte',
    per_nat=1 / math.log(2),
    exact=False,
    sample=lambda model, key: say(model, prompt, sample_length, key),
    windowed=(lambda rngs: make({**model, 'window': length}, rngs)) if eval_window else None,
  )


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


def say(model: nnx.Module, prompt: str, length: int, key: jax.Array) -> str:
  """The prompt, continued by `length` sampled bytes; what is not UTF-8 is shown as a mark."""
  tokens = jnp.asarray([list(prompt.encode())], jnp.int32)
  said = generate(model, tokens, length, key)
  return prompt + bytes(said[0].tolist()).decode('utf-8', errors='replace')
