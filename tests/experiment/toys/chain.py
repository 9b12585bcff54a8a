"""A toy task: a tag for each word, by a chain whose loss is of the whole row.

The loss is that of a linear-chain conditional random field: the logarithm of the sum over all
sequences of tags, minus the score of the right one. It is no mean over tokens. A word's tag is
whether it is greater than the word before: no word alone tells it.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.text import Text

from posjax.experiment import metrics
from posjax.experiment.task import Answer, Ask, Evaluation, Example, Metric, Task, Unit
from posjax.nnx import Attention

TAGS = ('up', 'down', 'same')
WORDS = 4
STYLES = ('green', 'red', 'dim')


def tags(row):
  """0 where a word is greater than the one before, 1 where smaller, 2 where equal, and first."""
  steps = np.sign(np.diff(row, prepend=row[0]))
  return np.array([{1: 0, -1: 1, 0: 2}[int(step)] for step in steps], np.int32)


def batch(seed, rows, width):
  inputs = np.random.default_rng(seed).integers(WORDS, size=(rows, width), dtype=np.int32)
  return {'inputs': inputs, 'tags': np.stack([tags(row) for row in inputs])}


class Tagger(nnx.Module):
  """Scores of tags for each word [B, T, K], and of each tag after each other [K, K]."""

  def __init__(self, scheme, width, rngs):
    self.embedding = nnx.Embed(WORDS, width, rngs=rngs)
    self.attention = Attention(width, 2, scheme, causal=True, rngs=rngs)
    self.readout = nnx.Linear(width, len(TAGS), rngs=rngs)
    self.follows = nnx.Param(0.1 * jax.random.normal(rngs.params(), (len(TAGS), len(TAGS))))

  def __call__(self, inputs):
    x = self.embedding(inputs)
    x = x + self.attention(x, jnp.arange(inputs.shape[1]))
    return self.readout(x), self.follows[...]


def row_losses(scores, follows, right):
  """The loss of each row [B]."""
  picked = jnp.take_along_axis(scores, right[..., None], axis=2)[..., 0].sum(1)
  picked = picked + follows[right[:, :-1], right[:, 1:]].sum(1)

  def step(total, now):
    both = total[:, :, None] + follows[None]
    return jax.nn.logsumexp(both, axis=1) + now, None

  total, _ = jax.lax.scan(step, scores[:, 0], scores[:, 1:].swapaxes(0, 1))
  return jax.nn.logsumexp(total, axis=1) - picked


def best_tags(scores, follows):
  """The likeliest sequence of each row [B, T], by Viterbi's algorithm."""

  def forth(total, now):
    both = total[:, :, None] + follows[None]
    return both.max(1) + now, both.argmax(1)

  total, came = jax.lax.scan(forth, scores[:, 0], scores[:, 1:].swapaxes(0, 1))

  def back(tag, came):
    before = jnp.take_along_axis(came, tag[:, None], axis=1)[:, 0]
    return before, before

  last = total.argmax(1)
  _, before = jax.lax.scan(back, last, came, reverse=True)
  return jnp.concatenate([before, last[None]]).T


def loss(model, batch, state, ids_key, train_key):
  return row_losses(*model(batch['inputs']), batch['tags']).mean(), state


def predict(model, batch, state, key):
  scores, follows = model(batch['inputs'])
  found = best_tags(scores, follows)
  return {'found': found, 'nats': row_losses(scores, follows, batch['tags'])}, state


def count_rows(arrays, batch):
  return len(arrays['found'])


def same_rows(arrays, batch):
  return int((arrays['found'] == batch['tags']).all(1).sum()), count_rows(arrays, batch)


METRICS = {
  'rows': metrics.share(same_rows, '% of rows right'),
  'nats': Metric(
    lambda arrays, batch: (arrays['nats'].sum(dtype=np.float64), len(arrays['nats'])),
    lambda sums: sums[0] / sums[1],
    'nats per row',
    higher=False,
  ),
}


def tagged(row, found, scores):
  """One answer: tags in colours, and a picture of their scores."""
  styled = Text(' ').join(
    Text(f'{word}/{TAGS[tag]}', STYLES[tag]) for word, tag in zip(row, found, strict=True)
  )

  def draw(figure):
    axes = figure.subplots()
    axes.imshow(scores.T)
    axes.set_yticks(range(len(TAGS)), TAGS)

  return Answer(styled.plain, styled, {'scores': draw})


def answer(model, texts, key):
  rows = [[int(word) for word in text.split()] for text in texts]
  if len(set(map(len, rows))) != 1 or not all(0 <= word < WORDS for row in rows for word in row):
    raise ValueError(f'Texts should be as long as one another, of 0 to {WORDS - 1}, got {texts}.')
  scores, follows = model(jnp.array(rows, jnp.int32))
  found = np.asarray(best_tags(scores, follows))
  return [tagged(*each) for each in zip(rows, found, np.asarray(scores), strict=True)]


def task(scheme, model, *, seed, batch_size, length, held_out):
  import grain

  def train_batches(shard_index, shard_count):
    rows = batch_size // shard_count
    steps = grain.MapDataset.range(sys.maxsize)[shard_index::shard_count]
    in_turn = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return steps.map(lambda i: batch((seed, 7, i), rows, length)).to_iter_dataset(in_turn)

  def judge(width, **changes):
    return Evaluation(
      name=f'{width} words',
      batches=lambda: [batch((1, i), 7, width) for i in range(held_out // 7)],
      predict=predict,
      metrics=METRICS,
      counted=count_rows,
      length=width,
      **changes,
    )

  return Task(
    facts={'tags': ', '.join(TAGS)},
    model=lambda rngs: Tagger(scheme[0], model['width'], rngs),
    train_batches=train_batches,
    loss=loss,
    unit=Unit('nats per row'),
    evaluations=(judge(length, during=True), judge(2 * length, role='unseen')),
    ask=Ask(answer, (Example('0 3 3 1'),)),
  )
