"""Small attention for the fused kernels: blocks to suit, interpreted on a CPU."""

import jax
import jax.numpy as jnp

import posjax
from posjax.attention.pallas import gpu as pallas_gpu
from posjax.attention.pallas import gpu_kernels, tpu_kernels
from posjax.attention.pallas import tpu as pallas_tpu
from tests.support.draws import DRAW

HEADS, KV_HEADS, WIDTH = 4, 2, 8


class Small:
  """A target whose blocks suit a short attention, interpreted."""

  def __init__(self, name):
    self.real = pallas_tpu if name == 'tpu' else pallas_gpu
    self.forward, self.backward, self.refusal = (
      getattr(self.real, field) for field in ('forward', 'backward', 'refusal')
    )

  def plan(self, rules, x, device, interpret):
    assert interpret
    if self.real is pallas_tpu:
      return tpu_kernels.Plan(rules, 16, interpret)
    blocks = [(16, 8), (8, 16), (8, 8), (8, 8)]
    return pallas_gpu.Plan(rules, *(gpu_kernels.Blocks(*b, 4, 2) for b in blocks), interpret)


class Case:
  """Random heads, values and cotangents; the queries are the last of the keys' tokens."""

  def __init__(self, line='none', queries=21, keys=29, width=WIDTH, v_width=None, dtype=None):
    self.scheme = posjax.get(line)
    dims = posjax.Dims(16, HEADS, width, KV_HEADS)
    params = posjax.init(self.scheme, jax.random.key(0), dims)
    moved = lambda x: x + 0.1 * jnp.asarray(DRAW.normal(size=x.shape), x.dtype)
    self.params = jax.tree.map(moved, params)
    normal = lambda *shape: jnp.asarray(DRAW.normal(size=(2, *shape)), dtype or jnp.float32)
    self.q, self.k = normal(queries, HEADS, width), normal(keys, KV_HEADS, width)
    self.v = normal(keys, KV_HEADS, v_width or width)
    self.cotangent = normal(queries, HEADS, v_width or width).astype(jnp.float32)
    self.pos = jnp.arange(keys)

  def out(self, implementation, q, k, v, params, **options):
    side = {'q_pos': self.pos[-self.q.shape[-3] :], 'k_pos': self.pos, **options}
    options = {'implementation': implementation, 'model_places': True}
    return posjax.attend(q, k, v, self.scheme, params, **options, **side)

  def answer(self, implementation, **options):
    """The output, and the gradients of q, k, v, parameters and sinks."""
    sinks = options.pop('sinks', None)

    def number(args):
      *args, sinks = args
      out = self.out(implementation, *args, sinks=sinks, **options).astype(jnp.float32)
      return (out * self.cotangent).sum(), out

    args = (self.q, self.k, self.v, self.params, sinks)
    slope = jax.grad(number, has_aux=True)
    # A compiled program knows no ids, and would hold the way in tiles beside the kernel.
    grads, out = (jax.jit(slope) if implementation == 'dense' else slope)(args)
    return [out, *jax.tree.leaves(grads)]
