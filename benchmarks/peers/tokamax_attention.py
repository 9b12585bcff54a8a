"""`tokamax.dot_product_attention`: its 'xla_chunked' on a CPU, elsewhere what it chooses.

It gets what a scheme makes of q and k, and the bias as an array [1, H, T, S] made inside jit.
"""

import jax
import tokamax

from benchmarks.peers import compiled
from benchmarks.peers.compiled import inputs, placed
from benchmarks.spec import Attention, Built

__all__ = ['build', 'inputs']


def build(spec: Attention, given: compiled.Inputs) -> Built:
  """Compiles it.

  Raises:
    Unable: if the scheme does more than turn heads and add a bias.
  """
  way = 'xla_chunked' if jax.default_backend() == 'cpu' else None

  def attention(scheme, params, q, k, v, pos):
    q, k, dense = placed(scheme, params, q, k, pos)
    return tokamax.dot_product_attention(q, k, v, bias=dense, is_causal=True, implementation=way)

  return compiled.built(spec, given, attention)
