"""`posjax.attend`; `way` is its `implementation`."""

import jax
import jax.numpy as jnp

import posjax
from benchmarks.peers import compiled
from benchmarks.peers.compiled import inputs
from benchmarks.spec import Absent, Attention, Built
from posjax.attention.devices import here
from posjax.attention.pallas import fused

__all__ = ['build', 'inputs']


def build(spec: Attention, given: compiled.Inputs) -> Built:
  """Compiles it.

  Raises:
    Absent: if there is no device for fused kernels: what would be timed is 'blockwise'.
  """
  if spec.way == 'pallas' and fused.target_of(here()) is None:
    raise Absent('fused kernels need a TPU or a Hopper GPU')
  if spec.way == 'cudnn' and jax.default_backend() != 'gpu':
    raise Absent('cuDNN needs a GPU')

  def attention(scheme, params, q, k, v, pos):
    x = jnp.zeros((*pos.shape, spec.heads * spec.width))  # what gates would read
    params, at = posjax.prepare(scheme, params, x, pos)
    sides = {'q_pos': pos, 'k_pos': pos, 'q_at': at, 'k_at': at}
    options = {'causal': spec.causal, 'implementation': spec.way or None, 'model_places': True}
    return posjax.attend(q, k, v, scheme, params, **sides, **options)

  return compiled.built(spec, given, attention)
