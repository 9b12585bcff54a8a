"""Compiling with XLA: what all peers in JAX share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import posjax
from benchmarks import memory
from benchmarks.spec import Attention, Built, Unable, heads
from posjax.scheme import Params, Scheme, declares, merge


class Inputs(NamedTuple):
  """What is not counted as memory."""

  q: jax.Array
  k: jax.Array
  v: jax.Array
  d_out: jax.Array
  pos: jax.Array


def inputs(spec: Attention) -> Inputs:
  """Heads [1, T, H, D] in the dtype asked for, and ids."""
  made = [jnp.asarray(x, spec.dtype) for x in heads(spec)]
  return jax.block_until_ready(Inputs(*made, jnp.arange(spec.length)[None]))


def parameters(spec: Attention) -> tuple[Scheme, Params]:
  """The scheme with its initial parameters."""
  scheme = posjax.get(spec.scheme)
  dims = posjax.Dims(spec.heads * spec.width, spec.heads, spec.width)
  return scheme, posjax.init(scheme, jax.random.key(0), dims)


def built(spec: Attention, given: Inputs, attention: Callable[..., jax.Array]) -> Built:
  """`attention(scheme, params, q, k, v, pos)` compiled, by itself or with all its gradients.

  `run` returns the output, and by name the gradients of q, k, v and `params`: of trained ones.
  """
  scheme, params = parameters(spec)
  trained, fixed = posjax.split(scheme, params)

  def forward(params, q, k, v):
    return attention(scheme, merge(params, fixed), q, k, v, given.pos)

  def both(params, q, k, v, d_out):
    out, back = jax.vjp(forward, params, q, k, v)
    names = ('params', 'q', 'k', 'v')
    return {'out': out, **dict(zip(names, back(d_out), strict=True))}

  args = (trained, given.q, given.k, given.v)
  if spec.backward:
    return compiled(both, *args, given.d_out)
  return compiled(lambda *args: {'out': forward(*args)}, *args)


def compiled(function: Callable[..., Any], *args: Any) -> Built:
  """A function of arrays that changes none, compiled for them.

  Raises:
    Unable: if the memory that the compiler asks for is not there.
  """
  ready = jax.jit(function).lower(*args).compile()
  temporary = fits(ready)
  run = lambda: jax.block_until_ready(ready(*args))
  return Built(run, temporary, device_peak)


def fits(ready: Any) -> int | None:
  """Bytes of temporary memory of a compiled function.

  Raises:
    Unable: if the machine's memory cannot hold them.
  """
  analysis = ready.memory_analysis()
  if analysis is None:
    return None
  if jax.default_backend() == 'cpu':
    memory.require(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)
  return analysis.temp_size_in_bytes


def device_peak() -> int | None:
  """The most bytes that the accelerator has held; None on a CPU."""
  statistics = jax.local_devices()[0].memory_stats()
  return None if statistics is None else statistics.get('peak_bytes_in_use')


def placed(scheme: Scheme, params: Params, q, k, pos):
  """What attention without schemes can be given: turned heads, and the bias [1, H, T, S] or None.

  Raises:
    Unable: if the scheme does more.
  """
  more = [place for place in ('logits', 'values', 'prepare') if declares(scheme, place)]
  if more:
    raise Unable(f'the scheme has {" and ".join(more)}')
  width = q.shape[-1]
  q, k = scheme.query(params, q, pos), scheme.key(params, k, pos)
  if q.shape[-1] != width:
    raise Unable(f'the scheme widens the heads from {width} to {q.shape[-1]}')
  if scheme.bias is None:
    return q, k, None
  bias = scheme.bias(params, pos[:, :, None] - pos[:, None])  # [H, 1, T, S]
  return q, k, jnp.moveaxis(bias, 0, 1)
