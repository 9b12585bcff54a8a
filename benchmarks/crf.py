"""The log-partition of a CRF, token by token against products in pairs: CPU seconds and memory.

python -m benchmarks.crf
python -m benchmarks.crf --lengths=1024 --tags=17 --repeats=3

`lax.scan` takes as many steps one after the other as a sentence has tokens;
`lax.associative_scan` takes a logarithm of these, of matrices of tags by tags. Both ways of each
size run once per round, so that noise of the machine meets all alike; the table shows medians of
process CPU seconds, which other work changes least, of wall seconds, and what the compiler says
that a run holds beside its arguments. Sentences are of all lengths up to the longest. Both ways
must give the same log-partition, and the same gradient.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.command import words
from benchmarks.memory import MEBIBYTE
from benchmarks.report import machine
from posjax.experiment.tasks.tagging.crf import Transitions, log_partition

WAYS = ('scan', 'in pairs')
PASSES = ('forward', 'gradient')
TOLERANCE = 1e-4  # of the largest number, in float32


class Case(NamedTuple):
  """One line of the table: how long sentences are, how many tags there are, and what is run.

  Attributes:
    length: T.
    tags: C.
    what: one of `PASSES`.
    runs: of each way.
    held: bytes beside the arguments, of each way.
  """

  length: int
  tags: int
  what: str
  runs: tuple[Callable[[], object], ...]
  held: tuple[int, ...]


def case(length: int, tags: int, what: str, batch: int) -> Case:
  """Compiles both ways, and holds one to the other.

  Raises:
    SystemExit: if they differ.
  """
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  transitions = Transitions(draw(tags, tags), draw(tags), draw(tags))
  lengths = jnp.asarray(np.linspace(1, length, batch).round(), jnp.int32)
  given = (draw(batch, length, tags), transitions)
  compiled = [jax.jit(function(what, lengths, way)).lower(*given).compile() for way in WAYS]
  one, other = (jax.tree.leaves(each(*given)) for each in compiled)
  off = max(float(abs(a - b).max() / abs(a).max()) for a, b in zip(one, other, strict=True))
  if not off <= TOLERANCE:
    raise SystemExit(f'{length} tokens, {tags} tags, {what}: the two ways differ by {off:.1e}.')
  runs = tuple(lambda each=each: jax.block_until_ready(each(*given)) for each in compiled)
  held = tuple(each.memory_analysis().temp_size_in_bytes for each in compiled)
  return Case(length, tags, what, runs, held)


def function(what: str, lengths: jax.Array, way: str) -> Callable[..., object]:
  """The log-partition of each sentence; or the gradient of their sum, by all numbers."""
  parallel = way == WAYS[1]

  def forward(emissions, transitions):
    return log_partition(emissions, transitions, lengths, parallel=parallel)

  if what == 'forward':
    return forward
  return jax.grad(lambda *given: forward(*given).sum(), argnums=(0, 1))


def seconds(run: Callable[[], object]) -> tuple[float, float]:
  """Of the process on its CPUs, and by wall."""
  cpu, wall = time.process_time(), time.perf_counter()
  run()
  return time.process_time() - cpu, time.perf_counter() - wall


def timed(one: Case) -> tuple[tuple[float, float], ...]:
  """Seconds of each way, after a run that is not timed: it pays for what the case before left."""
  one.runs[0]()
  return tuple(map(seconds, one.runs))


def row(one: Case, rounds: list[tuple[tuple[float, float], ...]]) -> str:
  """A line of the table: both ways by CPU seconds, their ratio, by wall, and by what they hold."""
  by_way = zip(*rounds, strict=True)
  medians = [[statistics.median(each) for each in zip(*way, strict=True)] for way in by_way]
  (cpu, wall), (pairs_cpu, pairs_wall) = ([1e3 * each for each in way] for way in medians)
  held = ' | '.join(f'{each / MEBIBYTE:.1f}' for each in one.held)
  return (
    f'| {one.length} | {one.tags} | {one.what} | {cpu:.2f} | {pairs_cpu:.2f} | '
    f'{pairs_cpu / cpu:.1f} | {wall:.2f} | {pairs_wall:.2f} | {pairs_wall / wall:.1f} | {held} |'
  )


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--lengths', type=words(',', int), default='16,64,256', help='tokens')
  parser.add_argument('--tags', type=words(',', int), default='9,17,33', help='how many there are')
  parser.add_argument('--batch', type=int, default=16, help='sentences')
  parser.add_argument('--repeats', type=int, default=5)
  given = parser.parse_args()
  sizes = itertools.product(given.lengths, given.tags, PASSES)
  cases = [case(*size, given.batch) for size in sizes]
  rounds = [[timed(one) for one in cases] for _ in range(given.repeats)]
  print(', '.join(f'{name} {value}' for name, value in machine().items()))
  print(f'{given.batch} sentences; milliseconds and MiB, medians of {given.repeats}')
  print(
    '| tokens | tags | pass | scan, CPU ms | in pairs | ratio | scan, wall ms | in pairs | ratio '
    '| scan, MiB | in pairs |'
  )
  print(f'|{" ---: |" * 11}')
  for one, found in zip(cases, zip(*rounds, strict=True), strict=True):
    print(row(one, list(found)))


if __name__ == '__main__':
  main()
