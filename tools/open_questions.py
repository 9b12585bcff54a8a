"""Answers to the open questions of the source texts, as lines of JSON, from trained runs.

  python -m tools.open_questions pattern runs/sinusoidal --steps=0,700,2800
  python -m tools.open_questions table runs/learned
  python -m tools.open_questions periods runs/complex_order --classes=PATH/train.trees
  python -m tools.open_questions prior runs/gaussian --text='I bought a new book .'
  python -m tools.open_questions gradients
  python -m tools.open_questions depth

prints the lines; notebook 06 draws them. RESULTS.md says which runs were asked, and what came out.
"""

import argparse
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx

from posjax.experiment.data import words
from posjax.experiment.loading import Loaded, load
from posjax.experiment.tasks.classification import data as classification
from posjax.experiment.tasks.translation.vocabulary import restore as restored
from posjax.models import encoders
from posjax.models.blocks import Block, Layer, Residual, Stack, normalize
from posjax.models.embedding import Embedded, Embedding
from posjax.models.layer_sets import REAL
from posjax.scheme import Scheme

SHUFFLES = 20


def sides(model: nnx.Module) -> Iterator[tuple[str, Embedding, Stack]]:
  """The Transformers in a model: their names, embeddings and layers."""
  for path, module in nnx.iter_modules(model):
    embed, stack = getattr(module, 'embed', None), getattr(module, 'stack', None)
    if isinstance(embed, Embedding) and isinstance(stack, Stack):
      yield '.'.join(map(str, path)) or 'decoder', embed, stack


def codes(embed: Embedding, count: int) -> np.ndarray:
  """The vectors that schemes add to the embeddings of tokens at 0, 1, .., float64 [count, M]."""
  zeros = jnp.zeros((1, count, embed.table.features))
  tokens = jnp.zeros((1, count), jnp.int32)
  added = embed.add(zeros, tokens, embed.ids(jnp.arange(count)[None])).x
  return np.asarray(added[0], np.float64)


def by_distance(products: np.ndarray) -> np.ndarray:
  """The mean of products[p, q] by p - q, from 1 - n to n - 1."""
  count = len(products)
  return np.array([np.diagonal(products, -d).mean() for d in range(1 - count, count)])


def explained(products: np.ndarray, causal: bool = False, own: bool = True) -> float:
  """The share of the variance of products[p, q] that p - q explains, without bias by its number.

  This is the adjusted coefficient of determination: 0 is expected where p - q says nothing. With
  `causal`, of the pairs with q <= p alone; without `own`, of those with q != p.
  """
  count = len(products)
  p, q = np.indices(products.shape).reshape(2, -1)
  kept = ((q <= p) | (not causal)) & ((q != p) | own)
  p, q = p[kept], q[kept]
  x, distance = products[p, q], p - q + count - 1
  kinds = np.bincount(distance, minlength=2 * count - 1)
  mean = np.bincount(distance, x, 2 * count - 1) / np.maximum(kinds, 1)
  left = ((x - mean[distance]) ** 2).sum() / (len(x) - np.count_nonzero(kinds))
  return float(1 - left / x.var(ddof=1))


def pattern(loaded: Loaded, count: int) -> Iterator[dict[str, Any]]:
  """PE^T W_Q^T W_K PE of the first layer, by head and summed over the heads, on each side.

  The first norm is read as its scale alone: it divides each token by one number, too, which the
  word shares with the code.
  """
  for side, embed, stack in sides(loaded.model):
    graph, state = nnx.split(stack.periods)
    first = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[0], state))[0]
    raw = codes(embed, count)
    centred = raw - raw.mean(-1, keepdims=True)
    placed = jnp.asarray(centred * np.asarray(first.norms[0].scale[...]), jnp.float32)[None]
    q, k = (
      np.asarray(project(placed)[0].swapaxes(0, 1), np.float64)
      for project in (first.attention.query, first.attention.key)
    )
    products = np.einsum('hpd,hqd->hpq', q, k) / math.sqrt(q.shape[-1])
    causal, rng = first.attention.layer.causal, np.random.default_rng(0)
    orders = [rng.permutation(count) for _ in range(SHUFFLES)]
    for head, own in enumerate((*products, products.sum(0))):
      yield {
        'side': side,
        'head': head if head < len(products) else 'sum',
        'explained': explained(own, causal),
        'shuffled': float(
          np.mean([explained(own[np.ix_(order, order)], causal) for order in orders])
        ),
        'by_distance': by_distance(own).tolist(),
        'size': float(own.std()),
      }
    yield {
      'side': side,
      'head': 'codes alone',
      'explained': explained(raw @ raw.T),
      'by_distance': by_distance(raw @ raw.T).tolist(),
    }


def table(rows: np.ndarray) -> dict[str, Any]:
  """The shape of a table of positions, in numbers.

  Args:
    rows: [P, M], one for each position, fewer than M or more.

  Returns:
    - `similarity`: cosines of rows by distance, after the mean row is taken away; `explained`: the
      share of their variance that the distance explains.
    - `spectrum`: shares of the variance by direction, the largest first; `directions`: how many
      equal ones would have the same sum of squares (participation ratio).
    - `shift`: by k, the share of the variance of row p + k that one matrix of row p predicts, in
      the 8 largest directions and on positions that were not fitted: every fourth one.
    - `straight`: the mean cosine of neighbouring differences, rows p + 1 - p and p + 2 - (p + 1).
    - `smooth`: the mean squared difference of neighbours, over that of any two rows.
  """
  rows = np.asarray(rows, np.float64) - rows.mean(0)
  unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  similarity = unit @ unit.T
  u, s, _ = np.linalg.svd(rows, full_matrices=False)
  share = s**2 / (s**2).sum()
  largest = (u * s)[:, :8]
  steps = np.diff(rows, axis=0)
  unit_steps = steps / np.linalg.norm(steps, axis=1, keepdims=True)
  any_two = 2 * (rows**2).sum(1).mean() * len(rows) / (len(rows) - 1)
  return {
    'similarity': by_distance(similarity)[len(rows) - 1 :].tolist(),
    'explained': explained(similarity, causal=True, own=False),
    'spectrum': share.tolist(),
    'directions': float(1 / (share**2).sum()),
    'shift': {k: shift(largest, k) for k in (1, 2, 4, 8, 16) if 4 * k < len(rows)},
    'straight': float((unit_steps[1:] * unit_steps[:-1]).sum(1).mean()),
    'smooth': float((steps**2).sum(1).mean() / any_two),
  }


def shift(rows: np.ndarray, k: int) -> float:
  """The share of the variance of rows p + k that one matrix of rows p explains.

  The matrix is fitted to three quarters of the rows, and judged on the others.
  """
  x, y = rows[:-k], rows[k:]
  held = np.arange(len(x)) % 4 == 3
  x = np.concatenate([x, np.ones((len(x), 1))], 1)  # what the mean row takes away
  matrix, *_ = np.linalg.lstsq(x[~held], y[~held], rcond=None)
  left = ((y[held] - x[held] @ matrix) ** 2).sum()
  return float(1 - left / ((y[held] - y[~held].mean(0)) ** 2).sum())


def tables(loaded: Loaded, count: int) -> Iterator[dict[str, Any]]:
  """Learned tables of each side, sinusoids, and rows drawn at random, of the same sizes."""
  width = 0
  for side, embed, _ in sides(loaded.model):
    learned = codes(embed, count)
    width = learned.shape[1]
    yield {'of': side, **table(learned)}
  angles = np.arange(count)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
  yield {'of': 'sinusoids', **table(np.concatenate([np.sin(angles), np.cos(angles)], 1))}
  yield {'of': 'random', **table(np.random.default_rng(0).normal(size=(count, width)))}


CLASSES = {'N': 'noun', 'V': 'verb', 'J': 'adjective', 'R': 'adverb'}


def classes(trees: Path) -> dict[str, str]:
  """The word class of each word by its most frequent tag in bracketed trees, Penn Treebank tags."""
  tags: dict[str, Counter[str]] = defaultdict(Counter)
  for tag, word in re.findall(r'\(([^\s()]+) ([^\s()]+)\)', trees.read_text()):
    kind = 'sign' if not tag[0].isalpha() else CLASSES.get(tag[0], 'function word')
    tags[word.lower()]['function word' if tag in ('RP', 'MD') else kind] += 1
  return {word: counts.most_common(1)[0][0] for word, counts in tags.items()}


def periods(
  before: Loaded, after: Loaded, of_word: Mapping[str, str], least: int
) -> Iterator[dict[str, Any]]:
  """Periods 2 pi / w of a classifier's complex embeddings, a line for each word.

  A word has a frequency for each dimension, which starts as the sinusoid's.

  Args:
    before: the run before training.
    after: and after it.
    of_word: word classes.
    least: how often a word must occur in the training texts.

  Returns:
    `period`: the geometric mean over the dimensions, in tokens. `first`: of the first 4 of them.
    `moved`: how far training moved the frequencies, as the root mean square of octaves. `phase`: of
    the first 8 dimensions, where initial phases are learned, in radians.
  """
  task = after.config.task
  read = classification.read(task.data, task.folds, task.fold)
  texts = [words.split(example.text) for example in read.train]
  count = Counter(word for text in texts for word in text)
  w, started = (
    np.abs(np.asarray(_words(each)['frequency'], np.float64)) for each in (after, before)
  )
  phases = _words(after).get('phase')
  for number, word in enumerate(words.vocabulary(texts, task.min_count).names):
    if number > 1 and count[word] >= least:  # neither padding nor unknown words
      yield {
        'word': word,
        'class': of_word.get(word, 'unknown'),
        'count': count[word],
        'period': float(2 * np.pi * np.exp(-np.log(w[number]).mean())),
        'first': (2 * np.pi / w[number][:4]).tolist(),
        'moved': float(np.sqrt((np.log2(w[number] / started[number]) ** 2).mean())),
        'phase': None if phases is None else np.asarray(phases[number][:8]).tolist(),
      }


def _words(loaded: Loaded) -> Mapping[str, Any]:
  """The parameters that complex order learns for each word."""
  params = loaded.layers[0].params
  return params if isinstance(params, dict) else params[0]


def prior(loaded: Loaded, text: str) -> Iterator[dict[str, Any]]:
  """A Gaussian prior of a translation's encoder: w and b, and one text with and without it.

  A line for each layer: `w`, `b` [H], and the attention `given` and `without` the prior, [H, T, T],
  of the same queries and keys in the first layer. `without` has w = b = 0 in all layers.
  """
  model: Any = loaded.model
  language = restored(dict(loaded.task.vocabulary or {})).source
  tokens = jnp.asarray(language.encode(text))[None]
  pos = jnp.arange(tokens.shape[1])
  bare = nnx.clone(model)
  flat = nnx.to_flat_state(nnx.state(bare, nnx.Param))
  zeroed = [
    (
      path,
      leaf.replace(jnp.full_like(leaf[...], -100.0)) if path[-1] in ('raw_w', 'raw_b') else leaf,
    )
    for path, leaf in flat
  ]
  nnx.update(bare, nnx.from_flat_state(zeroed))
  given, without = (
    np.asarray(each.encoder.weigh(tokens, pos)[1].own[:, 0]) for each in (model, bare)
  )
  layers = [each for each in loaded.layers if each.name.startswith('encoder')]
  for number, layer in enumerate(layers):
    members = [layer.params] if isinstance(layer.params, dict) else layer.params
    own = {name: np.asarray(x, np.float64) for each in members for name, x in each.items()}
    params = {name: np.logaddexp(0, own[name]) for name in ('raw_w', 'raw_b')}
    yield {
      'layer': layer.name,
      'w': params['raw_w'].tolist(),
      'b': (-params['raw_b']).tolist(),
      'tokens': language.names(tokens[0].tolist()),
      'given': given[number].round(4).tolist(),
      'without': without[number].round(4).tolist(),
    }


def by_distance_of(
  run: Any, x: jax.Array, last: jax.Array, key: jax.Array, draws: int = 16
) -> np.ndarray:
  """The size of the gradient of the last output by distance, of the input at 0, 1, .. before it.

  Args:
    run: from inputs [B, T, M] to outputs [B, T, N].
    x: inputs.
    last: the place of the last token of each row, [B].
    key: draws directions of the output, over which squares are averaged.
    draws: how many.

  Returns:
    The root mean square over rows and directions, NaN beyond the shortest row.
  """
  out, pull = jax.vjp(lambda x: run(x)[jnp.arange(len(x)), last], x)
  one = lambda key: (pull(jax.random.normal(key, out.shape))[0] ** 2).sum(-1)  # [B, T]
  squares = jnp.mean(jax.lax.map(one, jax.random.split(key, draws)), 0)
  distance = jnp.arange(int(last.min()) + 1)
  return np.sqrt(
    np.asarray(squares[jnp.arange(len(x))[:, None], last[:, None] - distance[None]].mean(0))
  )


RECURRENT = {
  'rnn': ('rnn', {}),
  'gru': ('gru', {}),
  **{f'lstm, forget bias {b}': ('lstm', {'forget_bias': float(b)}) for b in (0, 1, 3)},
  'transformer': ('transformer', {}),
}


def gradients(tokens: int = 64, width: int = 64, seeds: int = 5) -> Iterator[dict[str, Any]]:
  """The gradient of the last output by distance before training, on random inputs."""
  given = {
    'hidden_width': width, 'num_layers': 1, 'bidirectional': False, 'num_heads': 4,
    'pre_norm': True, 'activation': 'relu', 'dropout_rate': 0.0,
  }  # fmt: skip
  for name, (encoder, more) in RECURRENT.items():
    for seed in range(seeds):
      rngs = nnx.Rngs(seed)
      own = encoders.make(encoder, [Scheme()], width, given | more, layer_set=REAL, rngs=rngs)
      x = jax.random.normal(jax.random.key(seed), (8, tokens, width))
      rest = ((jnp.arange(tokens)[None],), ({},)) if encoder == 'transformer' else ()
      last = jnp.full(8, tokens - 1)
      graph, state = nnx.split(own)

      def run(x, graph=graph, state=state, rest=rest):
        own = nnx.merge(graph, jax.tree.map(jnp.asarray, state))  # of the level of this trace
        return own(Embedded(x, *rest)).x

      found = by_distance_of(run, x, last, jax.random.key(seed))
      yield {'model': name, 'seed': seed, 'gradient': found.tolist()}


class Alone(NamedTuple):
  """A part of a block without the residual connection around it."""

  pre_norm: bool

  def __call__(self, x: Any, part: Any, norm: Any, segments: Any, key: Any) -> Any:
    """part(norm(x)), or part(x)."""
    return part(normalize(norm, x, segments, key) if self.pre_norm else x)


def depth(width: int = 64, tokens: int = 16, seeds: int = 5) -> Iterator[dict[str, Any]]:
  """Gradients and tokens at the two ends of L blocks before training, on random inputs.

  `gradient`: the size of the gradient at the input over that at the output. `alike`: the mean
  cosine of two tokens of the output. Both by L.
  """
  kinds = {
    'residual, norm before': Residual(True, 0.0),
    'residual, norm after': Residual(False, 0.0),
    'norm alone': Alone(True),
    'neither': Alone(False),
  }
  sizes: Any = {'width': width, 'num_heads': 4, 'ff_width': 2 * width, 'activation': 'relu'}
  for kind, residual in kinds.items():
    for seed in range(seeds):
      rngs = nnx.Rngs(seed)
      blocks = nnx.List()
      for _ in range(32):
        block: Any = Block(Layer(Scheme()), pre_norm=True, dropout_rate=0.0, rngs=rngs, **sizes)
        block.residual = residual
        blocks.append(block)
      graph, state = nnx.split(blocks)
      x = jax.random.normal(jax.random.key(seed), (4, tokens, width))
      gradient, alike = {}, {}
      for count in (1, 2, 4, 8, 16, 32):

        def run(x, graph=graph, state=state, count=count):
          for block in nnx.merge(graph, state)[:count]:
            x, _ = block(x, jnp.arange(tokens)[None])
          return x

        out, pull = jax.vjp(run, x)
        sent = jax.random.normal(jax.random.key(seed + 1), out.shape)
        gradient[count] = float(jnp.linalg.norm(pull(sent)[0]) / jnp.linalg.norm(sent))
        unit = out / jnp.linalg.norm(out, axis=-1, keepdims=True)
        cosines = (
          (jnp.einsum('btm,bsm->bts', unit, unit).sum() / 4 - tokens) / (tokens - 1) / tokens
        )
        alike[count] = float(cosines)
      yield {'model': kind, 'seed': seed, 'gradient': gradient, 'alike': alike}


def gaps(folder: Path, gap: int, texts: int = 2000) -> None:
  """Writes texts whose first word is their label, with so many random words after it."""
  rng = np.random.default_rng(gap)
  folder.mkdir(parents=True, exist_ok=True)
  fill = [f'w{number}' for number in range(20)]
  lines = [
    f'{a}\t{a} {" ".join(rng.choice(fill, gap))}\n' for a in rng.choice(['yes', 'no'], texts)
  ]
  (folder / 'train.tsv').write_text(''.join(lines))


def steps_of(text: str) -> list[int | None]:
  """Steps of checkpoints; none chooses as the run's config does."""
  return [int(each) for each in text.split(',')] if text else [None]


def answers(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
  """The lines that a command asks for."""
  if given.question in ('gradients', 'depth'):
    yield from {'gradients': gradients, 'depth': depth}[given.question]()
    return
  for workdir in given.workdirs:
    for step in steps_of(given.steps):
      loaded = load(workdir, step=step)
      config = loaded.config
      run = {'scheme': config.scheme, 'data': config.task.data, 'seed': config.seed, 'step': step}
      if given.question == 'pattern':
        found = pattern(loaded, given.count)
      elif given.question == 'table':
        found = tables(loaded, given.count)
      elif given.question == 'periods':
        found = periods(load(workdir, step=0), loaded, classes(Path(given.classes)), given.least)
      else:
        found = prior(loaded, given.text)
      yield from ({**run, **each} for each in found)


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser('open_questions', description='Lines of JSON from trained runs.')
  questions = ('pattern', 'table', 'periods', 'prior', 'gradients', 'depth', 'gaps')
  parser.add_argument('question', choices=questions)
  parser.add_argument('workdirs', nargs='*', help='folders of runs; of gaps, the folder to write')
  parser.add_argument('--steps', default='', help='checkpoints, as 0,700,2800')
  parser.add_argument('--count', type=int, default=48, help='positions of pattern and table')
  parser.add_argument('--classes', help='bracketed trees, for the classes of words')
  parser.add_argument(
    '--text', default='I bought a new book yesterday with a new friend in New York'
  )
  parser.add_argument('--least', type=int, default=20, help='how often a word of periods occurs')
  parser.add_argument('--gap', type=int, default=10, help='words between the first and the last')
  given = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  if given.question == 'gaps':
    gaps(Path(given.workdirs[0]), given.gap)
    return
  for line in answers(given):
    print(json.dumps(line))


if __name__ == '__main__':
  main()
