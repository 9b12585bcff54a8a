"""Tokens per second of a training step of a small decoder, ours and others'.

python -m benchmarks.train_step
python -m benchmarks.train_step --lengths=2048 --schemes=rope --rounds=7

All of it, with the peers of the first line (without them, ours alone):

pip install torch==2.13.0 && pip install -e '.[train,peers]'
python -m benchmarks.train_step --lengths=512,2048,4096,8192 --json=train_step.jsonl

And on a GPU, beside the same model without positions on cuDNN, through jax.nn:

python -m benchmarks.train_step --lengths=2048 --batch=8 --layers=12 --width=1024 --heads=16 \
  --dtype=bfloat16 --schemes=rope --by=posjax --baseline='jax.nn cuDNN'

A step is forward, backward and AdamW, by default in float32, B = 1, of 6 pre-norm layers of width
256, 8 heads, 4 times as many hidden units and 256 token types, the readout tied to the embedding.
In bfloat16, parameters and optimizer are float32. Our command needs Flax and optax alone. Each line
has its
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
  'jax.nn': Peer('posjax_decoder', 'jax.nn xla', ('none',)),
  'jax.nn cuDNN': Peer('posjax_decoder', 'jax.nn cudnn', ('none',)),
  'x-transformers': Peer('x_transformers_decoder', schemes=WRITTEN),
  'x-transformers flash': Peer('x_transformers_decoder', 'flash', WRITTEN),
  'GPT-NeoX': Peer('gpt_neox', schemes=('rope',)),
}
BASELINES = 'x-transformers flash,posjax'
BASE_SCHEME = 'rope'


def tables(given: argparse.Namespace) -> Iterator[tuple[str, Iterator[report.Line]]]:
  """The title and the lines of each table."""
  for length in given.lengths:
    sizes = {'layers': given.layers, 'heads': given.heads, 'width': given.width}
    sizes |= {'ff_width': 4 * given.width, 'batch': given.batch, 'dtype': given.dtype}
    make = functools.partial(Step, length=length, **sizes)
    with contextlib.closing(baseline(given, PEERS, BASE_SCHEME, make)) as base:
      title = f'{given.batch} x {length} tokens, {given.dtype}; '
      title += f'ratios to {base.case.label} with {base.case.spec.scheme} (more is better)'
      yield title, lines(given, PEERS, make, base)


def main(argv: list[str]) -> int:
  """Prints a table for each length; 1 if a case failed."""
  asked = parser(__doc__, PEERS, SCHEMES, '512,2048', BASELINES)
  add = asked.add_argument
  add('--batch', type=int, default=1, help='rows')
  add('--layers', type=int, default=6)
  add('--heads', type=int, default=8)
  add('--width', type=int, default=256, help='of the model')
  add('--dtype', default='float32', choices=('float32', 'bfloat16'))
  given = read(asked, PEERS, argv)
  return report.publish(tables(given), report.STEP, report.step_row, given.json)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
