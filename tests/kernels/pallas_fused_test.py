"""The fused kernels, interpreted on a CPU, in small blocks: what they give is the reference's.

Of both targets: that they compile for real ones is in `pallas_ahead_test`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax import attention
from posjax.kernels import blockwise, fused, gpu_kernels, pallas_gpu, pallas_tpu, tpu_kernels
from tests.loops import error

HEADS, KV_HEADS, WIDTH = 4, 2, 8
DRAW = np.random.default_rng(0)
BIASES = [
  'alibi(learned=True)', 't5', 't5(bidirectional=True)', 'gaussian(per_head=True)', 'kerple',
  'sandwich(width=8)', 'dynamic_bias(width=4)',
]  # fmt: skip
TURNS = ['none', 'rope', 'pope(uniform=True)', 'tener', 'transformer_xl']
CHAINS = ['rope+alibi(learned=True)', 't5+kerple']


class Small:
  """A target whose blocks suit a short attention, interpreted."""

  def __init__(self, name):
    self.real = pallas_tpu if name == 'tpu' else pallas_gpu
    self.forward, self.backward, self.refusal = (
      getattr(self.real, field) for field in ('forward', 'backward', 'refusal')
    )

  def plan(self, rules, x, interpret):
    assert interpret
    if self.real is pallas_tpu:
      return tpu_kernels.Plan(rules, 16, interpret)
    blocks = [(16, 8), (8, 16), (8, 8), (8, 8)]
    return pallas_gpu.Plan(rules, *(gpu_kernels.Blocks(*b, 4, 2) for b in blocks), interpret)


@pytest.fixture(params=['tpu', 'gpu'], autouse=True)
def target(request, monkeypatch):
  """Where the tests run; the other way would be noticed."""
  found = fused.Target(Small(request.param), interpret=True)
  monkeypatch.setattr(fused, 'here', lambda: found)
  return found


@pytest.fixture
def alone(monkeypatch):
  """Nothing falls back."""

  def refused(*args):
    raise AssertionError('It was computed block-wise.')

  monkeypatch.setattr(blockwise, 'attend', refused)


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
    return posjax.attend(q, k, v, self.scheme, params, implementation=implementation, **side)

  def answer(self, implementation, **options):
    """The output, and the gradients of q, k, v, parameters and sinks."""
    sinks = options.pop('sinks', None)

    def number(args):
      *args, sinks = args
      out = self.out(implementation, *args, sinks=sinks, **options).astype(jnp.float32)
      return (out * self.cotangent).sum(), out

    args = (self.q, self.k, self.v, self.params, sinks)
    grads, out = jax.grad(number, has_aux=True)(args)
    return [out, *jax.tree.leaves(grads)]


def same(case, tolerance=1e-5, **options):
  """Each array to its own largest number; or, where it is small, to a tenth of that of all."""
  found, expected = (case.answer(way, **options) for way in ('pallas', 'dense'))
  most = max(float(abs(x).max()) for x in expected)
  for one, other in zip(found, expected, strict=True):
    assert one.dtype == other.dtype
    assert abs(one - other).max() <= tolerance * max(float(abs(other).max()), most / 10)


@pytest.mark.parametrize('line', BIASES + TURNS + CHAINS)
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.usefixtures('alone')
def test_values_and_all_gradients_are_the_references(line, causal):
  same(Case(line), causal=causal)
