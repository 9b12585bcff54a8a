"""`jax.nn.dot_product_attention`; `way` is its `implementation`, 'xla' or 'cudnn'.

It gets what a scheme makes of q and k, and the bias as an array [1, H, T, S] made inside jit.
"""

import jax

from benchmarks.peers import compiled
from benchmarks.peers.compiled import inputs, placed
from benchmarks.spec import Absent, Attention, Built

__all__ = ['build', 'inputs']


def build(spec: Attention, given: compiled.Inputs) -> Built:
  """Compiles it.

  Raises:
    Absent: if cuDNN cannot be had.
    Unable: if the scheme does more than turn heads and add a bias.
  """
  if spec.way == 'cudnn' and jax.default_backend() != 'gpu':
    raise Absent('cuDNN needs a GPU')
  if spec.way == 'cudnn' and spec.dtype == 'float32':
    raise Absent('cuDNN takes bfloat16 and float16 only: --dtype=bfloat16')

  def attention(scheme, params, q, k, v, pos):
    q, k, dense = placed(scheme, params, q, k, pos)
    if dense is not None and spec.way == 'cudnn':
      dense = dense.astype(q.dtype)
    return jax.nn.dot_product_attention(
      q, k, v, bias=dense, is_causal=spec.causal, implementation=spec.way
    )

  return compiled.built(spec, given, attention)
