"""Sentences per second of a parser: its encoder, the scores of spans, and the chart, apart.

python -m benchmarks.parsing
python -m benchmarks.parsing --lengths=25,50 --batches=64 --rounds=7 --json=parsing.jsonl

The parser is that of configs/gum.py, in float32, with whole rows: batches of sentences of one
length. 'encoder' reads words and letters, up to the features of tokens; 'scores' goes on to the
scores of all spans; 'best' finds the best trees of given scores, of 100 labels. 'hinge' and 'nll'
are the losses of given scores and trees with their gradients. benepar's lines are its chart and its
margin loss, of the same scores and trees. Each line has its own process; in each round every
process runs once, in random order. The table shows sentences over the median (least-most) of
process CPU seconds and of wall seconds, and the ratio to the encoder's: how many times as fast; the
most memory that a run holds above its inputs, parameters included; and the compiler's own figure
for temporary memory. Above each table stands how many steps the compiled chart takes one after the
other.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator

from benchmarks import report
from benchmarks.command import Peer, baseline, lines, parser, read, words
from benchmarks.spec import Parse

PARTS = ('encoder', 'scores', 'best', 'hinge', 'nll')
PEERS = {part: Peer('posjax_parsing', part) for part in PARTS}
PEERS |= {f'benepar {part}': Peer('benepar_parsing', part) for part in ('best', 'hinge')}


def tables(given: argparse.Namespace) -> Iterator[tuple[str, Iterator[report.Line]]]:
  """The title and the lines of each table."""
  for length in given.lengths:
    for batch in given.batches:
      make = functools.partial(Parse, length=length, batch=batch)
      with contextlib.closing(baseline(given, PEERS, 'concatenated', make)) as base:
        title = f'{batch} x {length} words, float32, {_steps(length)} steps of the chart; '
        yield (
          title + f'ratios to {base.case.label} (more is better)',
          lines(given, PEERS, make, base),
        )


def _steps(length: int) -> int:
  """Turns of the loops of a compiled `best`, one after the other."""
  from benchmarks.peers import posjax_parsing

  return posjax_parsing.steps(Parse('concatenated', 'best', length))


def arguments(argv: list[str]) -> argparse.Namespace:
  """What the command line asks for."""
  asked = parser(__doc__, PEERS, 'concatenated', '10,20,40,60', 'encoder')
  asked.add_argument('--batches', type=words(',', int), default='1,64', help='sentences')
  given = read(asked, PEERS, argv)
  if any(number < 1 for number in (*given.batches, *given.lengths)):
    asked.error('the lengths and the batches must be at least 1.')
  return given


def main(argv: list[str]) -> int:
  """Prints a table for each length and batch; 1 if a case failed."""
  given = arguments(argv)
  return report.publish(tables(given), report.PARSES, report.pairs_row, given.json)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
