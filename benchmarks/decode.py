"""Generation through the cache against recomputing the whole pass for each token: tokens/s.

python benchmarks/decode.py
python benchmarks/decode.py --schemes='rope|rope+forgetting' --prompt=1024 --new=64 --window=256

A decoder continues a random prompt, taking the most likely token each time. With the cache, the
prompt's pass is part of what is timed. Recomputing is one compiled loop of full passes over a row
as long as prompt and continuation, of which the logits at the newest token are taken: each token
costs the same, so a round times the first few (`--recomputed`). Both ways of each scheme run once
per round, so that noise of the machine meets all alike; a table shows medians, by wall and by
process CPU seconds. Both must say the same tokens, all of which a full pass must find most likely.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import posjax
from posjax.models.generate import generate
from posjax.models.transformer import Transformer

SCHEMES = 'rope|alibi|t5|shaw|transformer_xl|cope'
VOCAB = 256


class Case(NamedTuple):
  """One line of the table."""

  scheme: str
  cached: Callable[[], jax.Array]
  recomputed: Callable[[], jax.Array]


def case(line: str, given: argparse.Namespace) -> Case:
  """Compiles both ways, and holds one to the other."""
  sizes = {'num_layers': given.layers, 'width': given.width, 'num_heads': given.heads}
  options = {'unroll': given.layers, 'window': given.window}  # all layers compiled as one
  model = Transformer(VOCAB, posjax.get(line), **sizes, **options, rngs=nnx.Rngs(0))
  graph, state = nnx.split(model)
  prompt = jax.random.randint(jax.random.key(1), (given.batch, given.prompt), 0, VOCAB)
  pos = jnp.arange(given.prompt + given.new)
  full = jax.jit(lambda state, tokens: nnx.merge(graph, state)(tokens, pos))

  @jax.jit
  def more(state, tokens):
    model = nnx.merge(graph, state)

    def step(tokens, newest):
      logits = jax.lax.dynamic_index_in_dim(model(tokens, pos), newest, axis=1, keepdims=False)
      token = logits.argmax(-1).astype(tokens.dtype)
      return tokens.at[:, newest + 1].set(token), token

    return jax.lax.scan(step, tokens, given.prompt - 1 + jnp.arange(given.recomputed))[1].T

  def cached():
    return generate(model, prompt, given.new, jax.random.key(0), temperature=0.0)

  def recomputed():
    return more(state, jnp.pad(prompt, ((0, 0), (0, given.new))))

  said = np.asarray(cached())
  whole = jnp.concatenate([prompt, said], axis=1)
  expected = np.asarray(full(state, whole).argmax(-1))[:, given.prompt - 1 : -1]
  first = np.asarray(recomputed())
  if (said != expected).any() or (said[:, : given.recomputed] != first).any():
    raise SystemExit(f'{line}: the cache and full passes say different tokens.')
  return Case(line, cached, recomputed)


def seconds(run: Callable[[], jax.Array]) -> tuple[float, float]:
  """CPU and wall."""
  cpu, wall = time.process_time(), time.perf_counter()
  jax.block_until_ready(run())
  return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
  """Prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--schemes', default=SCHEMES, help='lines of posjax.get, with |')
  parser.add_argument('--batch', type=int, default=1)
  parser.add_argument('--prompt', type=int, default=256, help='tokens')
  parser.add_argument('--new', type=int, default=256, help='tokens to say')
  parser.add_argument('--recomputed', type=int, default=16, help='of these, timed by recomputing')
  parser.add_argument('--layers', type=int, default=6)
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--heads', type=int, default=8)
  parser.add_argument('--window', type=int, help='in tokens; by default none')
  parser.add_argument('--repeats', type=int, default=5)
  given = parser.parse_args()
  if not 1 <= given.recomputed <= given.new:
    parser.error(f'--recomputed must be in 1 .. {given.new}, but got {given.recomputed}.')
  cases = [case(line, given) for line in given.schemes.split('|')]
  rounds = [
    [(seconds(one.cached), seconds(one.recomputed)) for one in cases] for _ in range(given.repeats)
  ]
  print(
    f'{given.batch} x ({given.prompt} + {given.new}) tokens, {given.layers} layers, width '
    f'{given.width}, {given.heads} heads, window {given.window}, {jax.default_backend()}; tokens/s'
  )
  print('| scheme | cache | per CPU s | recomputed | per CPU s | ratio | of CPU |')
  print('|---|---|---|---|---|---|---|')
  for i, one in enumerate(cases):
    rates = []
    for way, tokens in enumerate((given.new, given.recomputed)):
      each = zip(*(found[i][way] for found in rounds), strict=True)
      rates.append([given.batch * tokens / statistics.median(column) for column in each])
    (cpu, wall), (slow_cpu, slow_wall) = rates
    numbers = f'{wall:.0f} | {cpu:.0f} | {slow_wall:.1f} | {slow_cpu:.1f}'
    print(f'| {one.scheme} | {numbers} | {wall / slow_wall:.0f} | {cpu / slow_cpu:.0f} |')


if __name__ == '__main__':
  main()
