"""How gpu_sweep measures: sizes, lines, times, and attention as a whole beside the reference."""

import functools
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import gpu_kernels
from benchmarks.memory import MEBIBYTE
from benchmarks.spec import Step
from posjax.attention import chosen
from posjax.check.attention import errors, gradients
from posjax.check.cases import rounding
from posjax.expression import get
from posjax.scheme import Dims, init

Result = dict[str, Any]
_GRACE = 20.0  # seconds after the deadline in which a line may end


class Sizes(NamedTuple):
  """What is run; the defaults are those of a GPU.

  Attributes:
    length: tokens.
    last: queries that are checked.
    heads: H; a power of two.
    width: D, of all items but `kernels`.
    widths: D, of `kernels`.
    wider: D of ALiBi's wider heads.
    sets: times that are taken.
    runs: of each time, at most.
    blocks: of each kernel.
    tiles: tokens of a tile.
    dense: lengths.
    step: the decoder.
    rehearse: whether kernels are interpreted, and XLA stands in for cuDNN.
  """

  length: int = 16_384
  last: int = 512
  heads: int = 8
  width: int = 64
  widths: tuple[int, ...] = (64, 128)
  wider: tuple[int, ...] = (72, 80, 96, 128)
  sets: int = 5
  runs: int = 20
  blocks: gpu_kernels.Sweep = gpu_kernels.BLOCKS
  tiles: tuple[int, ...] = (512, 1024, 2048)
  dense: tuple[int, ...] = (2048, 4096, 8192, 16_384)
  step: Step = Step('', '', 2048, 12, 16, 1024, 4096, 256, 8, 'bfloat16')
  rehearse: bool = False

  @property
  def cudnn(self) -> str:
    """The implementation of jax.nn."""
    return 'xla' if self.rehearse else 'cudnn'

  @property
  def dims(self) -> Dims:
    """Of attention as a whole."""
    return Dims(self.heads * self.width, self.heads, self.width)


SMALL = Sizes(
  length=64,
  last=16,
  heads=2,
  width=16,
  widths=(16,),
  wider=(24,),
  sets=1,
  runs=2,
  blocks=gpu_kernels.SMALL_BLOCKS,
  tiles=(32,),
  dense=(32,),
  step=Step('', '', 16, 2, 2, 16, 32, 11, 2, 'bfloat16'),
  rehearse=True,
)


class Lines:
  """Prints a line for each attempt, until the deadline."""

  def __init__(self, seconds: float):
    self._end = time.monotonic() + seconds
    self._now = ''

  def left(self) -> float:
    """Seconds before the deadline."""
    return self._end - time.monotonic()

  def attempt(self, item: str, what: str, measure: Callable[[], Result]) -> Result | None:
    """Prints what is measured, or why it is not."""
    if self.left() <= 0:
      say(item=item, what=what, left_out='the deadline came first')
      return None
    self._now = f'{item}: {what}'
    try:
      found = measure()
    except Exception as error:
      message = str(error).strip().partition('\n')[0]
      say(item=item, what=what, failed=f'{type(error).__name__}: {message}'[:500])
      return None
    say(item=item, what=what, **found)
    return found

  def watch(self) -> threading.Timer:
    """Ends the process where a line does not end."""

    def stop():
      say(stopped=f'{self._now} did not end {_GRACE:.0f} s after the deadline')
      os._exit(3)

    timer = threading.Timer(self.left() + _GRACE, stop)
    timer.daemon = True
    timer.start()
    return timer


def say(**line: Any) -> None:
  """Prints a line of JSON."""
  print(json.dumps(line), flush=True)


# Times.


def measured(
  sizes: Sizes, function: Callable, args: tuple, error: Callable[[Callable], Result]
) -> Result:
  """A function of arrays: compiled, checked, and timed."""
  begun = time.perf_counter()
  ready = jax.jit(function).lower(*args).compile()
  found = {'compile_s': round(time.perf_counter() - begun, 1)}
  if (analysis := ready.memory_analysis()) is not None:
    found['mib'] = round(analysis.temp_size_in_bytes / MEBIBYTE)
  return found | error(ready) | timed(sizes, functools.partial(ready, *args))


def timed(sizes: Sizes, run: Callable[[], Any]) -> Result:
  """Milliseconds of a run, where `runs` of them follow one another."""
  jax.block_until_ready(run())
  once = _seconds(run, 1)
  runs = max(1, min(sizes.runs, int(0.5 / once)))
  each = [1000 * _seconds(run, runs) / runs for _ in range(sizes.sets)]
  middle = {'ms': statistics.median(each), 'least': min(each), 'most': max(each)}
  return {name: float(f'{value:.4g}') for name, value in middle.items()} | {'runs': runs}


def _seconds(run: Callable[[], Any], runs: int) -> float:
  begun, out = time.perf_counter(), None
  for _ in range(runs):
    out = run()
  jax.block_until_ready(out)
  return time.perf_counter() - begun


def judged(error: float, width: int, tokens: int) -> Result:
  """An error beside its bound."""
  bound = rounding('bfloat16', width, tokens)
  return {'error': float(f'{error:.2g}'), 'bound': float(f'{bound:.2g}'), 'right': error <= bound}


# Attention as a whole.


def options(length: int, first: int = 0, **others: Any) -> Result:
  """The arguments of causal attention, of the queries from `first` on."""
  pos = jnp.arange(length)
  return {'q_pos': pos[first:], 'k_pos': pos, 'causal': True, **others}


def attention(sizes: Sizes, scheme: str, function: Callable, length: int | None = None) -> Result:
  """Attention with its gradients, beside the dense reference: see `gradients` for the function."""
  length, record = length or sizes.length, get(scheme)
  keys = jax.random.split(jax.random.key(0), 4)
  shape = 1, length, sizes.heads, sizes.width
  q, k, v, d_out = (jax.random.normal(key, shape, jnp.bfloat16) for key in keys)
  params = init(record, keys[0], sizes.dims)
  last = min(sizes.last, length)

  def error(ready):
    found = ready(q, k, v, params, d_out.at[:, :-last].set(0))
    found |= {name: found[name][:, -last:] for name in ('the output', 'the queries')}
    reference = gradients(record, options(length, length - last, implementation='dense'))
    wide = [heads.astype(jnp.float32) for heads in (q[:, -last:], k, v)]
    with jax.default_matmul_precision('highest'):
      expected = jax.jit(reference)(*wide, params, d_out[:, -last:])
    worst, name = max(errors({name: found[name] for name in expected if name in found}, expected))
    return {**judged(worst, sizes.width, length), 'of': name}

  return measured(sizes, function, (q, k, v, params, d_out), error)


def ours(sizes: Sizes, scheme: str, implementation: str, length: int | None = None) -> Result:
  """By one of our implementations.

  Raises:
    ValueError: if it leaves the scheme to tiles.
  """
  plain = options(length or sizes.length, implementation=implementation)
  q = jax.ShapeDtypeStruct((1, length or sizes.length, sizes.heads, sizes.width), jnp.bfloat16)
  params = init(get(scheme), jax.random.key(0), sizes.dims)
  taken = chosen(q, q, q, scheme, params, **plain)
  if taken.implementation != implementation:
    raise ValueError(f'{implementation} should compute {scheme}, but leaves it: {taken.why}.')
  return attention(sizes, scheme, gradients(get(scheme), plain), length)


def by_jax_nn(sizes: Sizes, prepare: Callable = lambda q, k, v: (q, k, v)) -> Callable:
  """A function as of `gradients`, without those of parameters, by jax.nn: by cuDNN on a GPU."""

  def attend(q, k, v):
    width, scale = v.shape[-1], q.shape[-1] ** -0.5
    out = jax.nn.dot_product_attention(
      *prepare(q, k, v), scale=scale, is_causal=True, implementation=sizes.cudnn
    )
    return out[..., :width]

  def answer(q, k, v, params, d_out):
    out, back = jax.vjp(attend, q, k, v)
    names = 'the queries', 'the keys', 'the values'
    return {'the output': out, **dict(zip(names, back(d_out), strict=True))}

  return answer
