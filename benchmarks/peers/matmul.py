"""One square matrix product of about as many operations: what the device can do at most."""

import jax

from benchmarks.peers import compiled
from benchmarks.peers.compiled import inputs
from benchmarks.spec import Attention, Built

__all__ = ['build', 'inputs']


def build(spec: Attention, given: compiled.Inputs) -> Built:
  """Compiles it."""
  size = max(round((spec.flops / 2) ** (1 / 3) / 128), 1) * 128
  inner = max(round(spec.flops / 2 / size**2 / 8), 1) * 8
  one, other = jax.random.key(0), jax.random.key(1)
  a = jax.random.normal(one, (size, inner), spec.dtype)
  b = jax.random.normal(other, (inner, size), spec.dtype)
  return compiled.compiled(lambda a, b: {'out': a @ b}, a, b)
