"""Time and memory of attention, forward and backward: schemes, ways to compute them, and jax.nn.

python benchmarks/attention.py
python benchmarks/attention.py --lengths=4096 --schemes='rope|t5|shaw' --repeats=7

Each way of each scheme runs once per round, so that noise of the machine meets all alike; a table
shows medians of process CPU seconds and of wall seconds, their ratio to jax.nn without positions,
and the compiler's figure for temporary memory. B = 1, float32, causal; the gradients are those of
q, k, v and all parameters. jax.nn gets what a scheme makes of q and k, and its bias as an array
[H, T, S], computed inside; it cannot do what has `logits`, `values` or wider heads.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

import posjax
from posjax.scheme import Scheme, declares
from posjax.tile import bias

SCHEMES = 'none|rope|alibi|t5|gaussian|kerple|shaw|transformer_xl|tener|fire(threshold=512.0)'


class Sizes(NamedTuple):
  """Of one run."""

  length: int
  heads: int
  width: int


class Case(NamedTuple):
  """One line of the table."""

  scheme: str
  way: str
  run: Callable[[], None]
  mebibytes: float


def theirs(scheme: Scheme, params, q, k, v, pos):
  """jax.nn's attention with the same positions."""
  q, k = scheme.query(params, q, pos), scheme.key(params, k, pos)
  dense = None if scheme.bias is None else bias(scheme.bias, params, pos, pos)
  scale = v.shape[-1] ** -0.5
  return jax.nn.dot_product_attention(q, k, v, bias=dense, scale=scale, is_causal=True)


def ours(implementation: str, scheme: Scheme, params, q, k, v, pos):
  """`posjax.attend`."""
  x = jnp.zeros((*pos.shape, q.shape[-1] * q.shape[-2]))  # what gates would read
  params, at = scheme.prepare(params, x, pos, None)
  sides = {'q_pos': pos, 'k_pos': pos, 'q_at': at, 'k_at': at}
  return posjax.attend(q, k, v, scheme, params, causal=True, implementation=implementation, **sides)


def ways(scheme: Scheme) -> dict[str, Callable[..., jax.Array]]:
  """How a scheme can be computed."""
  found = {name: functools.partial(ours, name) for name in ('blockwise', 'dense')}
  q, pos = jnp.zeros((1, 1, 1, 8)), jnp.zeros((1, 1), jnp.int32)
  able = not any(declares(scheme, place) for place in ('logits', 'values', 'prepare'))
  if able and (not declares(scheme, 'query') or _width(scheme, q, pos) == q.shape[-1]):
    found['jax.nn'] = theirs
  return found


def _width(scheme: Scheme, q, pos) -> int:
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(8, 1, 8))
  return scheme.query(params, q, pos).shape[-1]


def case(line: str, way: str, attention: Callable[..., jax.Array], sizes: Sizes) -> Case:
  """Compiles one line of the table."""
  scheme = posjax.get(line)
  dims = posjax.Dims(sizes.heads * sizes.width, sizes.heads, sizes.width)
  params = posjax.init(scheme, jax.random.key(0), dims)
  shape = (4, 1, sizes.length, sizes.heads, sizes.width)
  *heads, weights = jax.random.normal(jax.random.key(1), shape)
  pos = jnp.arange(sizes.length)[None]

  def number(params, q, k, v):
    return (attention(scheme, params, q, k, v, pos) * weights).sum()

  args = (params, *heads)
  compiled = jax.jit(jax.grad(number, argnums=(0, 1, 2, 3))).lower(*args).compile()
  held = compiled.memory_analysis().temp_size_in_bytes / 2**20
  return Case(line, way, lambda: jax.block_until_ready(compiled(*args)), held)


def timed(cases: list[Case], repeats: int) -> list[tuple[float, float]]:
  """Medians of CPU and wall seconds of each case, all of them in each round."""
  rounds = [[_seconds(one.run) for one in cases] for _ in range(repeats + 1)][1:]
  each = zip(*rounds, strict=True)
  return [tuple(map(statistics.median, zip(*found, strict=True))) for found in each]


def _seconds(run: Callable[[], None]) -> tuple[float, float]:
  cpu, wall = time.process_time(), time.perf_counter()
  run()
  return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
  """Prints a table for each length."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--lengths', default='1024,2048', help='tokens, with commas')
  parser.add_argument('--schemes', default=SCHEMES, help='lines of posjax.get, with |')
  parser.add_argument('--ways', default='blockwise,dense,jax.nn', help='with commas')
  parser.add_argument('--heads', type=int, default=8)
  parser.add_argument('--width', type=int, default=64, help='of a head')
  parser.add_argument('--repeats', type=int, default=5)
  given = parser.parse_args()
  for length in map(int, given.lengths.split(',')):
    sizes = Sizes(length, given.heads, given.width)
    cases = [case('none', 'jax.nn', theirs, sizes)]  # what all are measured by
    for line in given.schemes.split('|'):
      wanted = {n: f for n, f in ways(posjax.get(line)).items() if n in given.ways.split(',')}
      cases += [case(line, n, f, sizes) for n, f in wanted.items() if (line, n) != cases[0][:2]]
    found = timed(cases, given.repeats)
    print(f'\n{length} tokens, {sizes.heads} heads of {sizes.width}, {jax.default_backend()}')
    print('| scheme | way | CPU s | ratio | wall s | ratio | MiB |\n|---|---|---|---|---|---|---|')
    (cpu, wall), *_ = found
    for one, (own_cpu, own_wall) in zip(cases, found, strict=True):
      ratios = f'{own_cpu:.2f} | {own_cpu / cpu:.2f} | {own_wall:.2f} | {own_wall / wall:.2f}'
      print(f'| {one.scheme} | {one.way} | {ratios} | {one.mebibytes:.0f} |', flush=True)


if __name__ == '__main__':
  main()
