"""Pairs of sentences per second: the Gaussian Transformer beside ESIM, trained and asked.

python -m benchmarks.sentence_pairs
python -m benchmarks.sentence_pairs --lengths=32 --passes=infer --rounds=7 --json=pairs.jsonl

An account of the paper (Guo et al. 2019, https://doi.org/10.1609/aaai.v33i01.33016489) says that it
trains 4 times as fast as ESIM and infers 8 times as fast, on a GPU. Here 'train' is forward,
backward and AdamW, 'infer' the logits, in float32, of 32 pairs of two sentences of one length. ESIM
has its published size; 'GT small' is the Gaussian Transformer with M = 3, N = 1 and width 128, 'GT
equal' the same with as many parameters as ESIM: benchmarks/peers/posjax_pairs.py has all sizes,
and says which of them are ours. Each line has its own process; in each round every process runs
once, in random order. The table shows pairs over the median (least-most) of process CPU seconds and
of wall seconds, and the ratio to ESIM's: how many times as fast; the most memory that a run holds
above the words, parameters included; and the compiler's own figure for temporary memory.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator

from benchmarks import report
from benchmarks.command import Peer, baseline, lines, parser, read, words
from benchmarks.spec import Pairs

SCHEMES = 'sinusoidal+gaussian'
PEERS = {
  'ESIM': Peer('posjax_pairs', 'esim', ('none',)),
  'GT small': Peer('posjax_pairs', 'small'),
  'GT equal': Peer('posjax_pairs', 'equal'),
}
PASSES = {'train': True, 'infer': False}


def tables(given: argparse.Namespace) -> Iterator[tuple[str, Iterator[report.Line]]]:
  """The title and the lines of each table."""
  for length in given.lengths:
    for which in given.passes:
      make = functools.partial(Pairs, length=length, training=PASSES[which])
      with contextlib.closing(baseline(given, PEERS, 'none', make)) as base:
        title = f'{which}, sentences of {length} words, float32; '
        title += f'ratios to {base.case.label} (more is better)'
        yield title, lines(given, PEERS, make, base)


def arguments(argv: list[str]) -> argparse.Namespace:
  """What the command line asks for."""
  asked = parser(__doc__, PEERS, SCHEMES, '16,32,64', 'ESIM')
  asked.add_argument('--passes', type=words(','), default='train,infer', help='train, infer')
  given = read(asked, PEERS, argv)
  if unknown := sorted({*given.passes} - {*PASSES}):
    asked.error(f'the passes must be train or infer, but got {unknown}.')
  return given


def main(argv: list[str]) -> int:
  """Prints a table for each length and pass; 1 if a case failed."""
  given = arguments(argv)
  return report.publish(tables(given), report.PAIRS, report.pairs_row, given.json)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
