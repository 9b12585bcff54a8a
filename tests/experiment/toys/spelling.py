"""A toy task: a word, and how it is spelled backwards without its vowels.

Its headline is a metric of the whole corpus of strings, and it decodes at the end of a run alone;
during training it has a loss. Sources and targets have different shapes, so batches say their
tokens themselves. A test puts this file into a folder of its own, as a user would.
"""

import functools
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from posjax.experiment import metrics
from posjax.experiment.losses import cross_entropy
from posjax.experiment.task import Answer, Ask, Evaluation, Example, Metric, Task, Unit
from posjax.nnx import Attention

LETTERS = '.abcde'  # the first one is padding
SOURCE, TARGET = 6, 4


def spelled(word):
  return ''.join(letter for letter in reversed(word) if letter not in 'ae')[:TARGET]


def numbers(word, width):
  return np.array([LETTERS.index(letter) for letter in word.ljust(width, '.')], np.int32)


def text(row):
  return ''.join(LETTERS[number] for number in row).rstrip('.')


def words(seed, count):
  """Random words, as many as asked for."""
  rng = np.random.default_rng(seed)
  lengths = rng.integers(2, SOURCE + 1, count)
  return [''.join(rng.choice(list(LETTERS[1:]), length)) for length in lengths]


def batch(some, first=0):
  """Rows of words; `row` says which of the corpus each one is."""
  return {
    'source': np.stack([numbers(word, SOURCE) for word in some]),
    'target': np.stack([numbers(spelled(word), TARGET) for word in some]),
    'row': np.arange(first, first + len(some), dtype=np.int32),
    'tokens': np.array([len(word) + len(spelled(word)) for word in some], np.int32),
  }


class Speller(nnx.Module):
  """Reads all letters, and says all letters of the target at once."""

  def __init__(self, scheme, width, rngs):
    self.embedding = nnx.Embed(len(LETTERS), width, rngs=rngs)
    self.attention = Attention(width, 2, scheme, rngs=rngs)
    self.readout = nnx.Linear(SOURCE * width, TARGET * len(LETTERS), rngs=rngs)

  def __call__(self, source):
    x = self.embedding(source)
    x = x + self.attention(x, jnp.arange(SOURCE))
    return self.readout(x.reshape(len(source), -1)).reshape(-1, TARGET, len(LETTERS))


def losses(model, batch):
  return cross_entropy(model(batch['source']), batch['target'], jnp.ones_like(batch['target']))


def loss(model, batch, state, ids_key, train_key):
  return losses(model, batch).mean(), state


def predict_losses(model, batch, state, key):
  return losses(model, batch)._asdict(), state


def decode(model, batch, state, key):
  return {'said': model(batch['source']).argmax(-1)}, state


def corpus_score(pairs):
  """Clipped precision of letters over the whole corpus, times a penalty for brevity, up to 100."""
  right = sum(((Counter(said) & Counter(true)).total() for said, true in pairs))
  said, true = (sum(len(pair[i]) for pair in pairs) for i in (0, 1))
  return 100 * right / said * min(1.0, said / true) if said else 0.0


def task(scheme, model, *, seed, batch_size, data, held_out):
  import grain

  held = words(1, held_out)
  parts = [batch(held[i : i + batch_size], i) for i in range(0, held_out, batch_size)]
  references = [spelled(word) for word in held]  # strings are no arrays: a row says which is its

  def train_batches(shard_index, shard_count):
    make = lambda index: batch(words((seed, 2, index), batch_size // shard_count))
    steps = grain.MapDataset.range(sys.maxsize)[shard_index::shard_count].map(make)
    return steps.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))

  def sentences(arrays, batch):
    said = [text(row) for row in arrays['said']]
    return [(one, references[row]) for one, row in zip(said, batch['row'], strict=True)]

  @functools.partial(jax.jit, static_argnums=0)
  def spell(graph, state, source):
    return nnx.merge(graph, state)(source).argmax(-1)

  def answer(model, texts, key):
    if not all(set(word) <= set(LETTERS[1:]) and len(word) <= SOURCE for word in texts):
      raise ValueError(f'A word should have up to {SOURCE} letters of {LETTERS[1:]}, got {texts}.')
    source = jnp.stack([numbers(word, SOURCE) for word in texts])
    return [Answer(text(row)) for row in np.asarray(spell(*nnx.split(model), source))]

  return Task(
    facts={'data': data},
    model=lambda rngs: Speller(scheme[0], model['width'], rngs),
    train_batches=train_batches,
    loss=loss,
    unit=Unit('nats per letter'),
    evaluations=(
      Evaluation(
        name='held out',
        batches=lambda: parts,
        predict=decode,
        metrics={'corpus': Metric(sentences, corpus_score, 'corpus score', True, best=100.0)},
        counted=lambda arrays, batch: len(arrays['said']),
      ),
      Evaluation(
        name='forced',
        batches=lambda: parts,
        predict=predict_losses,
        metrics={'loss': metrics.mean_loss('nats per letter')},
        counted=metrics.count_weights,
        role='other',
        during=True,
      ),
    ),
    ask=Ask(answer, (Example('badce', spelled('badce')),)),
  )
