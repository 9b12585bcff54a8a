"""What the two commands share: their arguments, and the lines of a table."""

import argparse
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.interleave import Case, Gone, Process, measure
from benchmarks.report import Line


class Peer(NamedTuple):
  """Who computes.

  Attributes:
    file: in benchmarks/peers.
    way: which of its ways; '' where it has one.
    schemes: those it has; None where its file decides.
  """

  file: str
  way: str = ''
  schemes: tuple[str, ...] | None = None


Peers = Mapping[str, Peer]  # by the name that a table shows
Make = Callable[[str, str], Any]  # (scheme, way) -> spec


def words(by: str, kind: type = str) -> Callable[[str], tuple]:
  """A reader of arguments that hold several."""
  return lambda text: tuple(map(kind, filter(None, text.split(by))))


def parser(doc: str, peers: Peers, schemes: str, lengths: str, baselines: str):
  """The arguments of both commands."""
  found = argparse.ArgumentParser(description=doc.splitlines()[0])
  add = found.add_argument
  names = ', '.join(peers)
  add('--lengths', type=words(',', int), default=lengths, help='tokens, with commas')
  add('--schemes', type=words('|'), default=schemes, help='lines of posjax.get, with |')
  add('--by', type=words(','), default=','.join(peers), help=f'who computes, of: {names}')
  add('--baseline', type=words(','), default=baselines, help='the first of these that can run')
  add('--rounds', type=int, default=5, help='runs of each process, after one that does not count')
  add('--cores', type=int, default=None, help='processors of each process; by default all')
  add('--json', type=pathlib.Path, default=None, help='a file to which all numbers are appended')
  return found


def read(parser: argparse.ArgumentParser, peers: Peers, argv: list[str]) -> argparse.Namespace:
  """The arguments; exits where a name is unknown."""
  given = parser.parse_args(argv)
  if unknown := sorted({*given.by, *given.baseline} - {*peers}):
    parser.error(f'who computes must be of {list(peers)}, but got {unknown}.')
  if given.rounds < 1:
    parser.error(f'there must be at least 1 round, but got {given.rounds}.')
  return given


def baseline(given: argparse.Namespace, peers: Peers, scheme: str, make: Make) -> Process:
  """The process of the first baseline asked for that can be run.

  One that lacks the scheme computes the first that it has.

  Raises:
    SystemExit: if none can.
  """
  why = []
  for name in given.baseline:
    peer = peers[name]
    its = scheme if peer.schemes is None or scheme in peer.schemes else peer.schemes[0]
    process = Process(Case(name, peer.file, make(its, peer.way)), given.cores)
    if process.gone is None:
      return process
    process.close()
    why.append(f'{name}: {process.gone.why}')
  raise SystemExit(f'No baseline can be run. {"; ".join(why)}.')


def lines(given: argparse.Namespace, peers: Peers, make: Make, base: Process) -> Iterator[Line]:
  """The baseline, then each case, with the baseline's numbers in the same rounds.

  Raises:
    SystemExit: if the baseline's process ends before the others'.
  """
  absent: set[str] = set()
  for i, scheme in enumerate(given.schemes):
    wanted = [case for case in cases(given.by, peers, scheme, make) if case.label not in absent]
    wanted = [case for case in wanted if case != base.case]
    first, *found = measure(wanted, given.rounds, baseline=base, cores=given.cores)
    if isinstance(first, Gone):
      raise SystemExit(f'The baseline {base.case.label} did not last: {first.why}.')
    for one in found if i else [first, *found]:
      yield Line(one, first)
    absent |= {one.case.label for one in found if isinstance(one, Gone) and one.absent}


def cases(by: tuple[str, ...], peers: Peers, scheme: str, make: Make) -> Iterator[Case]:
  """The peers among `by` that have the scheme."""
  for name in by:
    file, way, schemes = peers[name]
    if schemes is None or scheme in schemes:
      yield Case(name, file, make(scheme, way))
