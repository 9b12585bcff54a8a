"""Tokens per second of a training step of a small decoder, ours and others'.

python -m benchmarks.train_step
python -m benchmarks.train_step --lengths=2048 --schemes=rope --rounds=7

All of it, with the peers of the first line (without them, ours alone):

pip install torch==2.13.0 && pip install -e '.[train,peers]'
python -m benchmarks.train_step --lengths=512,2048,4096,8192 --json=train_step.jsonl

A step is forward, backward and AdamW, in float32, B = 1, of 6 pre-norm layers of width 256, 8
heads, 1024 hidden units and 256 token types, the readout tied to the embedding. Each line has its
own process; in each round every process runs one step, in random order, and the baseline runs along
with each scheme. The table shows the tokens of a step over the median (least-most) of process CPU
seconds and of wall seconds, and the ratio to the baseline's; the most memory that a step holds
above the tokens, parameters and optimizer included; and the compiler's own figure for temporary
memory. How each peer is set up is said in its file.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator

from benchmarks import report
from benchmarks.command import Peer, baseline, lines, parser, read
from benchmarks.spec import Step

SCHEMES = 'rope|alibi|t5'
WRITTEN = ('none', 'rope', 'alibi', 't5')  # for x-transformers
PEERS = {
  'posjax': Peer('posjax_decoder'),
  'x-transformers': Peer('x_transformers_decoder', schemes=WRITTEN),
  'x-transformers flash': Peer('x_transformers_decoder', 'flash', WRITTEN),
  'GPT-NeoX': Peer('gpt_neox', schemes=('rope',)),
}
BASELINES = 'x-transformers flash,posjax'
BASE_SCHEME = 'rope'


def tables(given: argparse.Namespace) -> Iterator[tuple[str, Iterator[report.Line]]]:
  """The title and the lines of each table."""
  for length in given.lengths:
    make = functools.partial(Step, length=length)
    with contextlib.closing(baseline(given, PEERS, BASE_SCHEME, make)) as base:
      title = f'{length} tokens, float32; '
      title += f'ratios to {base.case.label} with {BASE_SCHEME} (more is better)'
      yield title, lines(given, PEERS, make, base)


def main(argv: list[str]) -> int:
  """Prints a table for each length; 1 if a case failed."""
  asked = parser(__doc__, PEERS, SCHEMES, '512,2048', BASELINES)
  given = read(asked, PEERS, argv)
  return report.publish(tables(given), report.STEP, report.step_row, given.json)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
