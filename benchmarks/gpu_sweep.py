"""Everything that is to be measured on a GPU first, in one process: a line of JSON for each result.

python -m benchmarks.gpu_sweep --deadline=540
python -m benchmarks.gpu_sweep --items=lines,kernels
JAX_PLATFORMS=cpu python -m benchmarks.gpu_sweep --rehearse

The items, in their order:

  lines    attention with its gradients, by scheme, with cuDNN's time as the unit
  kernels  every fused kernel by itself, with several sizes of blocks; then the best of each
  alibi    ALiBi by cuDNN, as a part of wider heads, and its error
  mosaic   kernels for Pallas' other backend, with jax 0.11.2
  tiles    attention in tiles of several sizes: in unrolled rows, and in a loop, with and without
           CUDA graphs
  dense    all logits at once, at growing lengths
  step     a training step of a decoder of 12 layers, beside the same model on cuDNN

All is causal, of one row with 8 heads in bfloat16. A line has the median of 5 times of 20 runs each
(fewer where a run is long), the least and the most, in milliseconds; seconds of compilation, MiB
that the compiler asks for, and the largest error of the last queries' output and of all gradients
that they cause, relative to their size, with the bound of posjax/check/cases.py. What fails is a
line, too. After the deadline the rest is left out, and a line that does not end is cut off a little
later. It needs jax, Flax and optax. `--rehearse` runs every item at a small size, where kernels are
interpreted and XLA stands in for cuDNN.
"""

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from benchmarks import gpu_kernels
from benchmarks.command import words
from benchmarks.gpu_measure import (
  SMALL,
  Lines,
  Result,
  Sizes,
  attention,
  by_jax_nn,
  judged,
  measured,
  ours,
  say,
  timed,
)
from benchmarks.interleave import ROOT
from benchmarks.memory import MEBIBYTE
from benchmarks.peers import posjax_decoder
from benchmarks.spec import slopes
from posjax.attention.blockwise import engine, groups, unrolled
from posjax.attention.devices import here
from posjax.attention.pallas import fused, gpu
from posjax.attention.pallas import mosaic as mosaic_kernels
from posjax.attention.pallas.gpu_kernels import Blocks

GRAPHS = (
  '--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,'
  'WHILE,CONDITIONAL --xla_gpu_graph_min_graph_size=1'
)


def lines(sizes: Sizes, out: Lines) -> None:
  """Schemes, with cuDNN's time without positions as the unit."""
  unit = out.attempt('lines', 'cuDNN none', lambda: attention(sizes, 'none', by_jax_nn(sizes)))

  def line(scheme, implementation):
    found = ours(sizes, scheme, implementation)
    return found | ({} if unit is None else {'unit': round(found['ms'] / unit['ms'], 2)})

  cudnn = 'blockwise' if sizes.rehearse else 'cudnn'
  for scheme, way in [('rope', cudnn)] + [(s, 'pallas') for s in ('none', 'alibi', 't5', 'kerple')]:
    out.attempt('lines', f'{way} {scheme}', functools.partial(line, scheme, way))


def kernels(sizes: Sizes, out: Lines) -> None:
  """Every Triton kernel by itself."""
  found = gpu_kernels.Rehearsed if sizes.rehearse else gpu
  for width in sizes.widths:
    for table in (False, True):
      _each_kernel(sizes, out, 'kernels', found, width, table, sizes.blocks)


def mosaic(sizes: Sizes, out: Lines) -> None:
  """Every Mosaic kernel by itself, with the blocks that its module plans."""
  if jax.__version_info__ < (0, 11, 2):
    say(item='mosaic', what='all kernels', left_out='they need jax 0.11.2')
    return
  for width in sizes.widths:
    for table in (False, True):
      _each_kernel(sizes, out, 'mosaic', mosaic_kernels, width, table, {})


def _each_kernel(sizes, out: Lines, item: str, found, width: int, table: bool, blocks) -> None:
  """The kernels of a module with the planned blocks, and with others; last the best of each."""
  case = f'width {width}, {"a table" if table else "no table"}'

  @functools.cache
  def prepared():
    x, d_out = gpu_kernels.problem(sizes.length, sizes.heads, width, table)
    plan = found.plan(gpu_kernels.rules_of(width), x, here(), sizes.rehearse)
    probe = d_out.at[:, : -sizes.last].set(0)
    needed = [gpu_kernels.given(found, plan, x, one) for one in (d_out, probe)]
    return x, plan, needed, gpu_kernels.dense(x, d_out, sizes.last)

  def measure(kernel, sized):
    x, plan, (needed, probe), expected = prepared()
    if sized is not None and sized == getattr(plan, kernel):
      return {'same': 'as planned'}
    planned = plan if sized is None else plan._replace(**{kernel: Blocks(*sized)})
    function = gpu_kernels.pieces(found, planned, table)[kernel]

    def error(ready):
      worst = gpu_kernels.error(ready(x, probe), expected, sizes.last)
      return judged(worst, width, sizes.length)

    return measured(sizes, function, (x, needed), error)

  best = {}
  for kernel in gpu_kernels.pieces(found, None, table):
    times = {}
    for sized in (None, *blocks.get(kernel, ())):
      shown = 'as planned' if sized is None else '{}x{}, {} warps, {} stages'.format(*sized)
      what = f'{kernel}, {case}, {shown}'
      line = out.attempt(item, what, functools.partial(measure, kernel, sized))
      if line is not None and line.get('right'):
        times[shown] = line['ms']
    if times:
      shown = min(times, key=times.__getitem__)
      best[kernel] = {'blocks': shown, 'ms': times[shown], 'planned': times.get('as planned')}
  say(item=item, what=f'best, {case}', best=best, ms=sum(one['ms'] for one in best.values()))


def alibi(sizes: Sizes, out: Lines) -> None:
  """ALiBi in heads that are wider by the ids of keys: q . k + slope s, which is rank one.

  jax.nn takes values of the width of queries and keys only, so they are padded.
  """

  def prepare(width, q, k, v):
    ids = jnp.arange(k.shape[1])
    # Both parts of an id are exact in bfloat16.
    of_keys = jnp.stack([ids // 128, ids % 128], -1)[None, :, None].astype(k.dtype)
    steps = jnp.asarray(slopes(sizes.heads)) * q.shape[-1] ** 0.5
    of_queries = jnp.stack([128 * steps, steps], -1)[None, None].astype(q.dtype)

    def widened(x, more):
      more = jnp.broadcast_to(more, (*x.shape[:-1], 2))
      rest = jnp.zeros((*x.shape[:-1], width - x.shape[-1] - 2), x.dtype)
      return jnp.concatenate([x, more, rest], -1)

    fill = ((0, 0),) * 3 + ((0, width - v.shape[-1]),)
    return widened(q, of_queries), widened(k, of_keys), jnp.pad(v, fill)

  for width in sizes.wider:
    function = by_jax_nn(sizes, functools.partial(prepare, width))
    measure = functools.partial(attention, sizes, 'alibi', function)
    out.attempt('alibi', f'cuDNN, heads {width} wide', measure)


def tiles(sizes: Sizes, out: Lines) -> None:
  """Attention in tiles of each size, in a process of its own for the compiler's flags.

  Rows of so many queries are unrolled, or tiles of so many queries and keys are in a loop.
  """

  def process(size, rows, flags):
    command = [sys.executable, '-m', 'benchmarks.gpu_sweep', f'--tile={size}']
    command += ['--unrolled'] * rows
    flags = f'{os.environ.get("XLA_FLAGS", "")} {flags}'.strip()
    done = subprocess.run(
      command + ['--rehearse'] * sizes.rehearse,
      cwd=ROOT,
      env=os.environ | {'XLA_FLAGS': flags, 'PYTHONPATH': str(ROOT)},
      capture_output=True,
      text=True,
      timeout=out.left(),
      check=False,
    )
    if done.returncode:
      last = done.stderr.strip().rpartition('\n')[2]
      raise RuntimeError(f'the process should end with 0, but got {done.returncode}: {last}')
    return json.loads(done.stdout.splitlines()[-1])

  for size in sizes.tiles:
    out.attempt('tiles', f'rows of {size}', functools.partial(process, size, True, ''))
    for flags in ('', GRAPHS):
      what = f'{size} x {size}{", CUDA graphs of loops" if flags else ""}'
      out.attempt('tiles', what, functools.partial(process, size, False, flags))


def tile(sizes: Sizes, size: int, rows: bool) -> Result:
  """What the process of `tiles` measures."""
  replaced = functools.partial(mock.patch.object, return_value=size if rows else None)
  with (
    replaced(unrolled, 'height'),
    mock.patch.object(engine, 'tile_size', return_value=(size, size)),
    mock.patch.object(engine, 'launches', return_value=True),
    mock.patch.object(groups, 'most_pairs', return_value=None),
  ):
    return ours(sizes, 'none', 'blockwise')


def dense(sizes: Sizes, out: Lines) -> None:
  """All logits at once."""
  for length in sizes.dense:
    measure = functools.partial(ours, sizes, 'none', 'dense', length)
    out.attempt('dense', f'{length} tokens', measure)


def step(sizes: Sizes, out: Lines) -> None:
  """A training step, ours with RoPE and on cuDNN without positions."""

  def measure(scheme, way):
    spec = sizes.step._replace(scheme=scheme, way=way)
    begun = time.perf_counter()
    built = posjax_decoder.build(spec, posjax_decoder.inputs(spec))
    found = {'compile_s': round(time.perf_counter() - begun, 1), 'first_loss': float(built.run())}
    found |= {'parameters': built.parameters} | timed(sizes, built.run)
    if built.temporary is not None:
      found['mib'] = round(built.temporary / MEBIBYTE)
    return found | {'tokens_per_s': round(1000 * spec.batch * spec.length / found['ms'])}

  for scheme, way in (('none', f'jax.nn {sizes.cudnn}'), ('rope', '')):
    out.attempt('step', f'{way or "posjax"} {scheme}', functools.partial(measure, scheme, way))


ITEMS = {f.__name__: f for f in (lines, kernels, alibi, mosaic, tiles, dense, step)}


def main(argv: list[str]) -> int:
  """Runs the items."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add('--items', type=words(','), default=','.join(ITEMS), help=f'of {", ".join(ITEMS)}')
  add('--deadline', type=float, default=540.0, help='seconds')
  add('--rehearse', action='store_true', help='everything at a small size, on any device')
  add('--tile', type=int, default=None, help=argparse.SUPPRESS)
  add('--unrolled', action='store_true', help=argparse.SUPPRESS)
  given = parser.parse_args(argv)
  if unknown := sorted({*given.items} - {*ITEMS}):
    parser.error(f'the items must be of {list(ITEMS)}, but got {unknown}.')
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')  # for the processes of `tiles`
  if given.rehearse:  # JAX interprets the Mosaic kernels in more threads than there may be cores
    os.environ.setdefault('NPROC', '16')
  sizes = SMALL if given.rehearse else Sizes()
  with _kernels(sizes):
    if given.tile is not None:
      say(**tile(sizes, given.tile, given.unrolled))
      return 0
    out = Lines(given.deadline)
    watch = out.watch()
    device = jax.devices()[0]
    say(item='device', what=device.device_kind, jax=jax.__version__, platform=device.platform)
    for item in given.items:
      ITEMS[item](sizes, out)
    watch.cancel()
  return 0


def _kernels(sizes: Sizes) -> Any:
  """While it lasts, a rehearsal has kernels on any device."""
  if not sizes.rehearse:
    return contextlib.nullcontext()
  target = fused.Target(gpu_kernels.Rehearsed, interpret=True)
  return mock.patch.object(fused, 'target_of', return_value=target)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
