"""Time and memory of attention: schemes, ways to compute them, and others' libraries.

python -m benchmarks.attention
python -m benchmarks.attention --lengths=4096 --schemes=rope --by='posjax dense,jax.nn' --cores=1

All of it, with the peers of the first line (without them, ours and jax.nn); an hour or more:

pip install torch==2.13.0 && pip install -e '.[train,peers]'
python -m benchmarks.attention --lengths=512,1024,2048,4096,8192,16384 --json=attention.jsonl

And on a GPU, in half precision:

for width in 64 128; do for causal in causal no-causal; do
  python -m benchmarks.attention --dtype=bfloat16 --lengths=4096,16384,65536 --width=$width \
    --$causal --passes=both,forward --schemes='none|rope|alibi|t5|gaussian' --json=gpu.jsonl
done; done

B = 1; 'both' is the output and the gradients of q, k, v and all parameters, 'forward' the
output alone. Each line has its own process; in each round every process runs once, in random order,
and the baseline runs along with each scheme. The table shows medians (least-most) of process CPU
seconds and of wall seconds, and their ratio to the baseline's, which has no positions; the most
memory that a run holds above q, k and v; and the compiler's own figure for temporary memory.
TFLOP/s count the products that attention cannot do without, per wall second; 'matmul' is one matrix
product of as many. What each peer is given is said in its file. What would not fit into the free
memory is not run.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterator

from benchmarks import report
from benchmarks.command import Peer, baseline, lines, parser, read, words
from benchmarks.spec import Attention
from posjax import attention

SCHEMES = 'none|rope|alibi|t5|gaussian|kerple|shaw|transformer_xl|tener|fire(threshold=512.0)'
WRITTEN = ('none', 'alibi', 't5')  # what torch's peers have
OURS = {f'posjax {way}': Peer('posjax_attend', way) for way in sorted(attention.IMPLEMENTATIONS)}
PEERS = {
  **OURS,
  'jax.nn': Peer('jax_nn', 'xla'),
  'cuDNN': Peer('jax_nn', 'cudnn'),
  'tokamax': Peer('tokamax_attention'),
  'torch': Peer('torch_sdpa', schemes=WRITTEN),
  'FlexAttention': Peer('torch_flex', schemes=WRITTEN),
  'matmul': Peer('matmul', schemes=('none',)),
}
BASELINES = 'torch,jax.nn,posjax blockwise'  # jax.nn lacks the memory for the longest


def tables(given: argparse.Namespace) -> Iterator[tuple[str, Iterator[report.Line]]]:
  """The title and the lines of each table."""
  for length in given.lengths:
    for which in given.passes:
      sizes = {'length': length, 'heads': given.heads, 'width': given.width, 'dtype': given.dtype}
      sizes |= {'backward': which == 'both', 'causal': given.causal}
      make = functools.partial(Attention, **sizes)
      with contextlib.closing(baseline(given, PEERS, 'none', make)) as base:
        sees = 'causal' if given.causal else 'not causal'
        title = f'{length} tokens, {given.heads} heads of {given.width}, {given.dtype}, {sees}, '
        title += f'{which}; '
        title += f'ratios to {base.case.label} without positions (less is better)'
        yield title, lines(given, PEERS, make, base)


def arguments(argv: list[str]) -> argparse.Namespace:
  """What the command line asks for."""
  asked = parser(__doc__, PEERS, SCHEMES, '512,1024,2048,4096', BASELINES)
  add = asked.add_argument
  add('--passes', type=words(','), default='both', help='both, forward, or both,forward')
  add('--heads', type=int, default=8)
  add('--width', type=int, default=64, help='of a head')
  add('--causal', action=argparse.BooleanOptionalAction, default=True)
  add('--dtype', default='float32', choices=('float32', 'bfloat16', 'float16'))
  given = read(asked, PEERS, argv)
  if unknown := sorted({*given.passes} - {'both', 'forward'}):
    asked.error(f'the passes must be both or forward, but got {unknown}.')
  return given


def main(argv: list[str]) -> int:
  """Prints a table for each length and pass; 1 if a case failed."""
  given = arguments(argv)
  return report.publish(tables(given), report.ATTENTION, report.attention_row, given.json)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
