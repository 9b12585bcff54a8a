"""The process of one implementation: a line of JSON comes in, and one goes out.

python -m posjax.check.worker IMPLEMENTATION

It says `{"ready": true}` once it can be asked. A question names a method of `Answers`, with its
arguments. Whatever is raised is the answer `{"failed": ...}`, after which the process ends: an
error in a kernel may leave the device unusable for what follows.
"""

import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

import jax
import jax.numpy as jnp
import numpy as np

from posjax import __version__
from posjax.attention import IMPLEMENTATIONS, chosen
from posjax.check import attention, collectives
from posjax.check.cases import Case, Kind
from posjax.expression import get
from posjax.scheme import Dims, init

_SPEED_HEADS = 8
_SPEED_WIDTH = 64
_SHORTEST = 0.02  # seconds of one measurement: what is faster is run several times


class Program(NamedTuple):
  """Attention that is compiled, with its arguments on the device."""

  run: Callable[..., Any]
  arguments: tuple[Any, ...]
  repeats: int


class Answers:
  """The answers of one process, by question."""

  def __init__(self, implementation: str):
    self._implementation = implementation
    self._program: Program | None = None

  def facts(self) -> dict[str, Any]:
    """Versions, devices, and the implementations with why they compute nothing here; else ''."""
    devices = jax.devices()
    platform_version = devices[0].client.platform_version
    versions = {'posjax': __version__, 'jax': jax.__version__, 'numpy': np.__version__}
    return {
      'versions': versions | {'Python': platform.python_version()},
      'system': f'{platform.system()} {platform.machine()}',
      'platform': devices[0].platform,
      'platform_version': ' '.join(platform_version.split()),
      'devices': [device.device_kind for device in devices],
      'capability': getattr(devices[0], 'compute_capability', None),
      'processors': _processors(),
      'implementations': attention.refusals(list(IMPLEMENTATIONS)),
    }

  def compare(self, kind: list[Any], width: int, dtype: str) -> dict[str, Any]:
    """See `attention.compare`."""
    return attention.compare(Case(Kind(*kind), width, dtype), self._implementation)

  def collectives(self) -> dict[str, Any]:
    """`found`, the fields of each of `collectives.measure`."""
    return {'found': collectives.measure()}

  def build(self, scheme: str, length: int) -> dict[str, Any]:
    """Compiles causal attention with its gradients, and runs it twice.

    Returns:
      `chosen`, what attention takes by default; `tiles`, why this implementation leaves it to
      tiles; or `seconds` of one run, and `temporary`, the bytes that it holds beside its arguments
      and results; or `needs` and `free`, bytes, where these are too many.
    """
    self._program = None  # its memory is free now
    q, function, args = _attention(self._implementation, scheme, length)
    ask = lambda name: chosen(q, q, q, scheme, args[3], **_options(length, name))
    taken = ask(self._implementation)
    answer = {'chosen': ask(None).implementation}
    if taken.implementation != self._implementation:
      return answer | {'tiles': taken.why}
    compiled = jax.jit(function).lower(*args).compile()
    analysis = compiled.memory_analysis()
    if analysis is not None:
      answer['temporary'] = analysis.temp_size_in_bytes
      needs, free = analysis.temp_size_in_bytes + analysis.output_size_in_bytes, _free()
      if free is not None and needs > 0.8 * free:
        return answer | {'needs': needs, 'free': free}
    _timed(compiled, args)
    seconds = _timed(compiled, args)
    self._program = Program(compiled, args, max(1, round(_SHORTEST / seconds)))
    return answer | {'seconds': seconds}

  def run(self) -> dict[str, Any]:
    """Seconds of one run of what was built last."""
    if self._program is None:
      raise RuntimeError('There must be a program to run, but none was built.')
    function, args, repeats = self._program
    return {'seconds': sum(_timed(function, args) for _ in range(repeats)) / repeats}


def main(implementation: str) -> None:
  """Answers until its input ends."""
  output = _own_output()
  answers = Answers(implementation)
  _say(output, {'ready': True})
  for line in sys.stdin:
    asked = json.loads(line)
    try:
      answer = getattr(answers, asked.pop('question'))(**asked)
    except Exception as error:
      traceback.print_exc()
      message = str(error).strip().partition('\n')[0]
      return _say(output, {'failed': f'{type(error).__name__}: {message}'})
    _say(output, answer)


def _say(output: TextIO, answer: dict[str, Any]) -> None:
  print(json.dumps(answer), file=output, flush=True)


def _own_output() -> TextIO:
  """The standard output, for answers alone: what libraries print goes to the error output."""
  output = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  return output


def _attention(implementation: str, scheme: str, length: int):
  """The queries' shape, the function, and its arguments: one row, 8 heads of 64."""
  dtype = jnp.float32 if jax.default_backend() == 'cpu' else jnp.bfloat16
  shape = 1, length, _SPEED_HEADS, _SPEED_WIDTH
  keys = jax.random.split(jax.random.key(0), 4)
  q, k, v, cotangent = (jax.random.normal(key, shape, dtype) for key in keys)
  record, dims = get(scheme), Dims(_SPEED_HEADS * _SPEED_WIDTH, _SPEED_HEADS, _SPEED_WIDTH)
  params = init(record, jax.random.key(0), dims)
  function = attention.gradients(record, _options(length, implementation))
  return jax.ShapeDtypeStruct(shape, dtype), function, (q, k, v, params, cotangent)


def _options(length: int, implementation: str | None) -> dict[str, Any]:
  pos = jnp.arange(length)
  return {'q_pos': pos, 'k_pos': pos, 'causal': True, 'implementation': implementation}


def _timed(function: Callable[..., Any], args: tuple[Any, ...]) -> float:
  begun = time.perf_counter()
  jax.block_until_ready(function(*args))
  return time.perf_counter() - begun


def _processors() -> int:
  """Those that this process may use, where the system tells."""
  mine = getattr(os, 'sched_getaffinity', None)
  return len(mine(0)) if mine else os.cpu_count() or 1


def _free() -> int | None:
  """Bytes that the device can still give; None where it does not tell."""
  if jax.default_backend() != 'cpu':
    found = jax.local_devices()[0].memory_stats() or {}
    limit = found.get('bytes_limit')
    return None if limit is None else limit - found.get('bytes_in_use', 0)
  try:
    with open('/proc/meminfo', encoding='ascii') as lines:
      return next(1024 * int(line.split()[1]) for line in lines if line.startswith('MemAvailable'))
  except (OSError, StopIteration):
    return None


if __name__ == '__main__':
  main(*sys.argv[1:])
