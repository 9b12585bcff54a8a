"""Time and memory of two checkouts of this repository, in the same rounds.

git worktree add ../old COMMIT && python -m benchmarks.checkouts ../old

In each round, attention in tiles (both passes) or a training step runs once in either checkout, in
random order. A line shows the ratio of the medians of CPU seconds, this checkout over the other;
the median of the ratios by round (least-most); and the ratios of the most memory held and of the
compiler's own figure for temporary memory. Below 1, this checkout takes less. Last come the pages
of memory that the median run of this checkout was given, and of the other: where they differ and
the temporary memory does not, the allocator of the process made the difference, not the program.
"""

import argparse
import pathlib
import statistics
from typing import NamedTuple

from benchmarks.command import words
from benchmarks.interleave import Case, Found, Gone, measure
from benchmarks.spec import Attention, Step

SCHEMES = (
  'none|rope|alibi|t5|gaussian|kerple|shaw|fire(threshold=512.0)|deberta|transformer_xl|tener'
)


class Ratios(NamedTuple):
  """One checkout over another."""

  medians: float
  paired: float
  least: float
  most: float
  peak: float
  temporary: float
  pages: tuple[float, float]


def ratios(new: Found, old: Found) -> Ratios:
  """Ratios of CPU seconds and of bytes."""
  by_round = [one / other for one, other in zip(new.cpu, old.cpu, strict=True)]
  return Ratios(
    statistics.median(new.cpu) / statistics.median(old.cpu),
    statistics.median(by_round),
    min(by_round),
    max(by_round),
    new.peak / max(old.peak, 1),
    (new.temporary or 0) / max(old.temporary or 0, 1),
    (statistics.median(new.pages or (0,)), statistics.median(old.pages or (0,))),
  )


def compare(old: pathlib.Path, peer: str, spec, rounds: int, cores: int) -> Ratios:
  """Runs a case in both checkouts.

  Raises:
    SystemExit: if one of them cannot run it.
  """
  cases = [Case('this', peer, spec), Case(str(old), peer, spec, old)]
  found = measure(cases, rounds, cores=cores)
  for one in found:
    if isinstance(one, Gone):
      raise SystemExit(f'{one.case.label} does not run {spec}: {one.why}')
  return ratios(*found)


def main(argv: list[str] | None = None) -> None:
  """Prints a line for each scheme and length."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('old', type=pathlib.Path, help='the other checkout')
  parser.add_argument('--attention', type=words(',', int), default=(4096,), help='lengths')
  parser.add_argument('--schemes', type=words('|'), default=words('|')(SCHEMES))
  parser.add_argument('--steps', type=words(',', int), default=(512, 2048), help='lengths')
  parser.add_argument('--step-schemes', type=words('|'), default=('rope', 'alibi', 't5'))
  parser.add_argument('--rounds', type=int, default=7)
  parser.add_argument('--cores', type=int, default=1)
  given = parser.parse_args(argv)
  if not (given.old / 'benchmarks' / 'worker.py').is_file():
    parser.error(f'{given.old} should be a checkout of this repository, but has no benchmarks.')
  tasks = [
    ('posjax_attend', Attention(scheme, 'blockwise', length))
    for length in given.attention
    for scheme in given.schemes
  ]
  tasks += [
    ('posjax_decoder', Step(scheme, '', length))
    for length in given.steps
    for scheme in given.step_schemes
  ]
  print('what, length, scheme: CPU, by round (least-most), memory, temporary memory, pages')
  for peer, spec in tasks:
    r = compare(given.old.resolve(), peer, spec, given.rounds, given.cores)
    print(
      f'{type(spec).__name__.lower():9s} {spec.length:6d} {spec.scheme:24s} {r.medians:.3f}  '
      f'{r.paired:.3f} ({r.least:.3f}-{r.most:.3f})  {r.peak:.3f}  {r.temporary:.3f}  '
      f'{r.pages[0]:,.0f} and {r.pages[1]:,.0f}',
      flush=True,
    )


if __name__ == '__main__':
  main()
