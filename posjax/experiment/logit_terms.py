"""The parts of the logits of a trained model: content, position, and both together.

  python -m posjax.experiment.logit_terms runs/xl runs/shaw --lines=terms.jsonl

prints them for the runs of train.py in these folders, and writes them as lines of JSON, a layer
each. In a notebook: `posjax.experiment.terms(posjax.experiment.load('runs/xl'))`.

A logit says how much a token attends to another before the softmax. In each head it is taken apart:

- *content*: what is left of it where every token has id 0, so that the layer knows no position. In
  the first layer the embeddings, too, are those at id 0. Its mean over texts, which depends on the
  two places alone, is counted apart as *carried*: later layers read tokens into which earlier ones
  wrote positions; and tokens that are near, or the same, are alike.
- *position*: the mean over texts of what positions change.
- *content with position*: the rest of what they change, as q . W_R R in Transformer-XL (Dai et al.
  2019, https://arxiv.org/abs/1901.02860, section 3.3), or the two cross terms of added positions.

A softmax does not see what all keys of a query share, so that only differences between its keys
count. Logits are read from the logarithms of attention weights, which differ from them by such a
number; pairs whose weight is 0 in float32 are left out.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jaxtyping import Array, Bool, Float
from rich.console import Console
from rich.table import Table

from posjax.experiment.loading import Loaded, load
from posjax.models.blocks import Stack, Weights
from posjax.models.embedding import Embedded, Positions


class LogitTerms(NamedTuple):
  """The terms of one layer's self-attention, by head.

  Variances are over texts and pairs of tokens, in nats^2. They are estimated without bias, from two
  halves of the texts, so that one of nothing may come out a little below 0.

  Attributes:
    layer: its name, as in `Loaded.layers`.
    total: the variance of the logits.
    content: of what they are without positions, less what is carried.
    carried: of the part of content that depends on the two places alone.
    content_position: of what depends on content and position together.
    position: of what positions change whatever the content is.
    place: of the mean logit over texts, carried or not.
    distance: of what the distance of two places says of the logit; a part of `place`.
    by_distance: the mean logit by distance i - j, for the distances from 1 - T to T - 1; NaN where
      the query does not see the key.
    previous: the mean weight of the token before.
    by_parameter: of what each parameter of the scheme adds: the difference to the logits with zeros
      in its place. Those that add nothing are left out.
    tokens: T, the first tokens of each text that were looked at.
    texts: N.
  """

  layer: str
  total: Float[np.ndarray, ' H']
  content: Float[np.ndarray, ' H']
  carried: Float[np.ndarray, ' H']
  content_position: Float[np.ndarray, ' H']
  position: Float[np.ndarray, ' H']
  place: Float[np.ndarray, ' H']
  distance: Float[np.ndarray, ' H']
  by_distance: Float[np.ndarray, 'H D']
  previous: Float[np.ndarray, ' H']
  by_parameter: Mapping[str, Float[np.ndarray, ' H']]
  tokens: int
  texts: int

  def shares(self) -> dict[str, Float[np.ndarray, ' H']]:
    """Content, what is carried, content with position, and position, as shares of their sum."""
    names = ('content', 'carried', 'content_position', 'position')
    parts = {name: np.maximum(getattr(self, name), 0) for name in names}
    every = np.maximum(sum(parts.values()), np.finfo(float).tiny)
    return {name: part / every for name, part in parts.items()}


def terms(loaded: Loaded, *, rows: int = 32) -> tuple[LogitTerms, ...]:
  """The terms of every layer's self-attention, on rows of the training data.

  Args:
    loaded: as `posjax.experiment.load` returns it. Its model must be made of `Stack`s: a decoder,
      an encoder, or both.
    rows: of the data, of equal length, at least 4. Of padded or packed ones the first text is read,
      as far as half of the rows have one.

  Raises:
    ValueError: if the model has no such layer, or there are fewer rows.
  """
  batch = _rows(loaded.task.train_batches(0, 1), rows)
  true = _calls(loaded, batch, nnx.clone(loaded.model))
  if not true:
    raise ValueError(f'{type(loaded.model).__name__} has no stack of attention layers.')
  without = _calls(loaded, batch, _at_id_0(nnx.clone(loaded.model)))
  found = []
  for name, stack, embedded, memory in true:
    off = next(each.embedded for each in without if each.name == name)
    found += list(_layers(name, stack, embedded, off, memory))
  return tuple(found)


class _Call(NamedTuple):
  name: str
  stack: Stack
  embedded: Embedded
  memory: Any


class _Listener(nnx.Module):
  """A stack that notes what it is called with."""

  def __init__(self, stack: Stack, note: Any):
    self.stack, self.note = stack, note

  def __call__(self, embedded: Embedded, **rest: Any) -> Any:
    self.note(self.stack, embedded, rest.get('memory'))
    return self.stack(embedded, **rest)


def _rows(batches: Any, rows: int) -> Any:
  """So many rows of one shape."""
  held: dict[str, list[Any]] = {}
  for number, batch in enumerate(batches):
    mine = held.setdefault(str(jax.tree.map(np.shape, batch)), [])
    mine.append(batch)
    joined = jax.tree.map(lambda *each: np.concatenate(each)[:rows], *mine)
    if len(jax.tree.leaves(joined)[0]) >= rows:
      return joined
    if number >= 100 * rows:
      break
  raise ValueError(f'rows must be as many as there are of one length, but got {rows}.')


def _calls(loaded: Loaded, batch: Any, model: nnx.Module) -> list[_Call]:
  """The arguments of each stack of the model in its first call; the model is changed."""
  noted: dict[str, _Call] = {}
  for path, module in list(nnx.iter_modules(model)):
    for attribute, stack in list(vars(module).items()):
      if isinstance(stack, Stack):
        name = '.'.join(map(str, (*path, attribute)))

        def note(stack, embedded, memory, name=name):
          noted.setdefault(name, _Call(name, stack, embedded, memory))

        setattr(module, attribute, _Listener(stack, note))
  loaded.task.loss(model, jax.tree.map(jnp.asarray, batch), None, None, None)
  return list(noted.values())


def _at_id_0(model: nnx.Module) -> nnx.Module:
  """The model with every token at id 0; changed in place."""
  for _, module in list(nnx.iter_modules(model)):
    if isinstance(module, Positions):
      own: Any = module
      ids = type(own).ids

      def zeros(pos, key=None, own=own, ids=ids):
        return jax.tree.map(jnp.zeros_like, ids(own, pos, key))

      own.ids = zeros
  return model


def _layers(name: str, stack: Stack, embedded: Embedded, off: Embedded, memory: Any) -> Any:
  """The terms of each layer of a stack."""
  graph, state = nnx.split(stack.periods)
  x, x_off = (each.x.astype(stack.dtype) for each in (embedded, off))
  first = _first_texts(embedded)
  for repeat in range(stack.repeats):
    one = jax.tree.map(lambda leaf, repeat=repeat: leaf[repeat], state)
    for place in range(len(stack.periods)):
      ids, params = embedded.ids[place], embedded.model_params[place]

      def run(state, x, ids, params, place=place):
        block = nnx.merge(graph, state)[place]
        given = {'segments': embedded.segments, 'memory': memory, 'model_params': params}
        x, weights = block(x, ids, return_weights=True, **given)
        return x, cast(Weights, weights).own

      after, weights = run(one, x, ids, params)
      _, bare = run(one, x_off, jax.tree.map(jnp.zeros_like, ids), params)
      ablated = {
        leaf: run(mine, x, ids, shared)[1] for leaf, mine, shared in _ablated(one, place, params)
      }
      number = repeat * len(stack.periods) + place
      yield _terms(f'{name}.{number}.attention', weights, bare, ablated, first)
      x = x_off = after


def _ablated(state: nnx.State, place: int, params: Any) -> Any:
  """Each parameter of a layer's scheme by name, and the states with zeros in its place."""
  for path, _ in nnx.to_flat_state(state):
    if path[0] == place and 'scheme_params' in path:
      inner = path[path.index('scheme_params') + 1 :]
      name = '.'.join(str(part) for part in inner if part != 'held')
      swap = lambda at, x, path=path: x.replace(jnp.zeros_like(x[...])) if at == path else x
      yield name, nnx.map_state(swap, state), params
  leaves, tree = jax.tree.flatten_with_path(params)
  for number, (path, leaf) in enumerate(leaves):
    if isinstance(leaf, jax.Array):
      zeroed = [jnp.zeros_like(x) if i == number else x for i, (_, x) in enumerate(leaves)]
      yield jax.tree_util.keystr(path, simple=True, separator='.'), state, tree.unflatten(zeroed)


def _first_texts(embedded: Embedded) -> tuple[Bool[np.ndarray, ' B'], int]:
  """Rows whose first text has T tokens or more, and T: the half of the rows with the most."""
  real = np.asarray(embedded.real)
  if embedded.segments is not None:
    segments = np.asarray(embedded.segments)
    real = real & (segments == segments[:, :1])
  lengths = real.cumprod(1).sum(1)
  tokens = int(np.median(lengths))
  return lengths >= tokens, tokens


def _terms(
  layer: str,
  weights: Array,
  bare: Array,
  ablated: Mapping[str, Array],
  first: tuple[Bool[np.ndarray, ' B'], int],
) -> LogitTerms:
  """The terms of one layer.

  Args:
    layer: its name.
    weights: [B, H, T, S], of attention.
    bare: the same, without positions.
    ablated: the same, without one parameter each.
    first: the rows and the number of tokens to look at.
  """
  rows, tokens = first
  cut = lambda each: np.asarray(each, np.float64)[rows, :, :tokens, :tokens]
  own, others = cut(weights), {name: cut(each) for name, each in ablated.items()}
  every = [own, cut(bare), *others.values()]
  seen = np.all([(each > 0).all(0) for each in every], axis=0)  # [H, T, S]: the same in all rows
  seen &= seen.sum(-1, keepdims=True) > 1  # one key alone has no difference
  logits, content, *less = (_centred(each, seen) for each in every)
  square = lambda each: (each**2).sum((0, 2, 3)) / (len(each) * seen.sum((1, 2)))
  changed = logits - content
  carried, position = _of_places(content, seen), _of_places(changed, seen)
  distance, by_distance = _of_distances(logits, seen)
  nothing = 1e-12 * square(logits)
  changes = {name: square(logits - each) for name, each in zip(others, less, strict=True)}
  previous = own[:, :, np.arange(1, tokens), np.arange(tokens - 1)].mean((0, 2))
  return LogitTerms(
    layer,
    total=square(logits),
    content=square(content) - carried,
    carried=carried,
    content_position=square(changed) - position,
    position=position,
    place=_of_places(logits, seen),
    distance=distance,
    by_distance=by_distance,
    previous=previous,
    by_parameter={name: each for name, each in changes.items() if (each > nothing).any()},
    tokens=tokens,
    texts=len(logits),
  )


def _centred(weights: np.ndarray, seen: np.ndarray) -> np.ndarray:
  """Logits of weights, less their mean over the keys that a query sees; 0 where it does not."""
  logits = np.log(np.where(seen, weights, 1.0))
  mean = logits.sum(-1, keepdims=True) / np.maximum(seen.sum(-1, keepdims=True), 1)
  return np.where(seen, logits - mean, 0.0)


def _halves(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Means over half of the texts each; their product has no share of what differs by text."""
  return logits[::2].mean(0), logits[1::2].mean(0)


def _of_places(logits: np.ndarray, seen: np.ndarray) -> np.ndarray:
  """The variance of what the two places say, by head."""
  one, other = _halves(logits)
  return (one * other).sum((1, 2)) / np.maximum(seen.sum((1, 2)), 1)


def _of_distances(logits: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The variance of what distances say, by head; and the mean by distance."""
  (one, mean), (other, second) = (_by_distance(each, seen) for each in _halves(logits))
  of_distance = (one * other).sum((1, 2)) / np.maximum(seen.sum((1, 2)), 1)
  return of_distance, (mean + second) / 2


def _by_distance(
  logits: np.ndarray, seen: np.ndarray, rounds: int = 200
) -> tuple[np.ndarray, np.ndarray]:
  """The best fit of a number for each distance, less a number for each query, [H, T, T] and [H, D].

  Each of the two is the mean of what the other leaves, in turn.
  """
  heads, tokens, _ = logits.shape
  place = np.arange(tokens)
  distances = (place[:, None] - place) + tokens - 1
  keys = np.maximum(seen.sum(-1), 1)
  number = (np.arange(heads)[:, None, None] * (2 * tokens - 1) + distances).ravel()
  count = np.bincount(number, seen.ravel(), heads * (2 * tokens - 1)).reshape(heads, -1)
  mean, of_query = np.zeros(count.shape), np.zeros((heads, tokens))
  for _ in range(rounds):
    rest = np.where(seen, logits + of_query[..., None], 0.0)
    mean = np.bincount(number, rest.ravel(), count.size).reshape(heads, -1)
    mean /= np.maximum(count, 1)
    of_query = np.where(seen, mean[:, distances] - logits, 0.0).sum(-1) / keys
  fitted = np.where(seen, mean[:, distances], 0.0)
  fitted = np.where(seen, fitted - (fitted.sum(-1) / keys)[..., None], 0.0)
  return fitted, np.where(count > 0, mean, np.nan)


def line_of(found: LogitTerms) -> dict[str, Any]:
  """The terms of a layer as JSON holds them."""

  def plain(x: Any) -> Any:
    if isinstance(x, np.ndarray):
      return [plain(each) for each in x]
    return None if isinstance(x, float) and np.isnan(x) else x

  return jax.tree.map(plain, found._asdict())


def show(found: Sequence[LogitTerms], title: str) -> None:
  """Prints a table: a line for each head of each layer."""
  caption = (
    'Shares in per cent: content; what it carries of places; content with position (both); '
    'position. Distance: what the distance alone says, in per cent of the variance. Before: the '
    'weight of the token before, in per cent. Nats: the standard deviation of the logits.'
  )
  left: Any = {'title_justify': 'left', 'caption_justify': 'left', 'padding': 0}
  table = Table(title=title, caption=caption, **left)
  table.add_column('layer', no_wrap=True)
  for word in ('head', 'content', 'carried', 'both', 'position', 'distance', 'before', 'nats'):
    table.add_column(word, justify='right')
  for each in found:
    name = each.layer.removesuffix('.attention')
    columns = [*each.shares().values(), each.distance / each.total, each.previous]
    for head, numbers in enumerate(zip(*columns, strict=True)):
      words = (f'{100 * number:.0f}' for number in numbers)
      spread = f'{each.total[head] ** 0.5:.2f}'
      table.add_row(name if head == 0 else '', str(head + 1), *words, spread)
  Console().print(table)


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser('logit_terms', description='What logits are made of.')
  parser.add_argument('workdirs', nargs='+', help='folders of the runs')
  parser.add_argument('--rows', type=int, default=32, help='rows of the data to look at')
  parser.add_argument('--lines', help='a file to which a line of JSON is added for each layer')
  parser.add_argument(
    '--allow-imports', action='store_true', help='imports the modules that the folders name'
  )
  given = parser.parse_args()
  logging.set_verbosity(logging.ERROR)  # orbax says at length that it only reads
  try:
    for workdir in given.workdirs:
      loaded = load(workdir, allow_imports=given.allow_imports)
      found = terms(loaded, rows=given.rows)
      config = loaded.config
      show(found, f'{workdir}: {config.scheme}, {found[0].texts} rows of {found[0].tokens} tokens')
      run = {'scheme': config.scheme, 'data': config.task.data, 'seed': config.seed}
      if given.lines:
        with open(given.lines, 'a', encoding='utf-8') as lines:
          lines.writelines(json.dumps({**run, **line_of(each)}) + '\n' for each in found)
  except (ValueError, TypeError, OSError, ImportError) as error:
    sys.exit(f'logit_terms: error: {error}')


if __name__ == '__main__':
  main()
