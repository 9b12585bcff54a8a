"""How much a model computes, and how much of what its devices could.

Model FLOPs are those of matrix products, of the forward pass once and of the backward pass twice
(Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, appendix B): what is computed again in the
backward pass does not count, and causal attention counts as a whole square.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.extend import core

from posjax.experiment.sharding import compute_attention_by
from posjax.experiment.task import Batch, Task

TRAINING = 3  # forward passes that a step is worth

# By a part of `device_kind`, dense products in FLOP/s: of bfloat16, and of float32 as JAX does them
# by default, in TensorFloat-32 on GPUs and in bfloat16 on TPUs. Numbers of TPUs but v4 are those
# of docs.cloud.google.com in November 2026; those of GPUs and v4 are as we remember their data
# sheets, not checked against them. The first name that fits counts.
PEAKS: Mapping[str, tuple[float, float]] = {
  'H100 PCIe': (756e12, 378e12),
  'H100': (989e12, 494e12),
  'H200': (989e12, 494e12),
  'B200': (2250e12, 1120e12),
  'A100': (312e12, 156e12),
  'L40S': (362e12, 183e12),
  'L4': (121e12, 60e12),
  'TPU7x': (2307e12, 2307e12),
  'TPU v6 lite': (918e12, 918e12),
  'TPU v5 lite': (197e12, 197e12),
  'TPU v5': (459e12, 459e12),
  'TPU v4': (275e12, 275e12),
}


def peak(device_kind: str, dtype: str) -> float | None:
  """The peak FLOP/s of a device's matrix products; None for a device that `PEAKS` does not list.

  Example:
    >>> peak('NVIDIA H100 80GB HBM3', 'bfloat16'), peak('cpu', 'float32')
    (989000000000000.0, None)
  """
  known = [peaks for name, peaks in PEAKS.items() if name in device_kind]
  return known[0][dtype != 'bfloat16'] if known else None


def stated(rate: float, devices: int, device_kind: str, dtype: str) -> str:
  """A number of model FLOP/s in words, with its share of the peak.

  Example:
    >>> stated(989e12, 2, 'NVIDIA H200', 'bfloat16')
    '989.0 model TFLOP/s, 50.0 % of the peak of 2 x NVIDIA H200 in bfloat16'
  """
  most = peak(device_kind, dtype)
  size, letter = (1e12, 'T') if rate >= 1e12 else (1e9, 'G')
  told = f'{rate / size:.1f} model {letter}FLOP/s'
  if most is None:
    return f'{told}; the peak of {device_kind!r} is not known here'
  share = f'{rate / (most * devices):.1%}'.replace('%', ' %')
  return f'{told}, {share} of the peak of {devices} x {device_kind} in {dtype}'


def of_step(task: Task, batch: Batch) -> int:
  """The model FLOPs of a training step on a batch; nothing is computed.

  Args:
    task: whose model and loss are traced, with attention as its dense reference computes it: loops
      over tiles do not tell how often they turn.
    batch: arrays, or their shapes, of all processes together.
  """

  def loss(batch):
    model = task.model(nnx.Rngs(0))
    compute_attention_by(model, 'dense')
    past = None if task.memory is None else task.memory.start()
    return task.loss(model, batch, past, jax.random.key(0), jax.random.key(0))[0]

  return TRAINING * products(jax.make_jaxpr(loss)(dict(batch)).jaxpr)


def products(jaxpr: core.Jaxpr) -> int:
  """The FLOPs of the matrix products of a program.

  A loop whose length only its data tell counts as one turn, and of branches the costliest counts.

  Example:
    >>> traced = jax.make_jaxpr(lambda x: x @ x)(np.ones((10, 10), np.float32))
    >>> products(traced.jaxpr)
    2000
  """
  return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> int:
  name, params = equation.primitive.name, equation.params
  if name == 'dot_general':
    (contracted, _), _ = params['dimension_numbers']
    inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return _multiplied(equation, inner)
  if name == 'conv_general_dilated':
    kernel, numbers = equation.invars[1].aval.shape, params['dimension_numbers']
    outputs = kernel[numbers.rhs_spec[0]]
    return _multiplied(equation, math.prod(kernel) // outputs)
  inside = [products(each) for each in _jaxprs(params)]
  if name == 'cond':
    return max(inside)
  return (params['length'] if name == 'scan' else 1) * sum(inside)


def _multiplied(equation: Any, inner: int) -> int:
  """2 for a product and a sum; complex numbers have four of each."""
  out = equation.outvars[0].aval
  return (8 if np.issubdtype(out.dtype, np.complexfloating) else 2) * out.size * inner


def _jaxprs(params: Mapping[str, Any]) -> Iterator[core.Jaxpr]:
  """The programs within an operation."""
  for value in params.values():
    for each in value if isinstance(value, tuple | list) else (value,):
      if isinstance(each, core.ClosedJaxpr):
        yield each.jaxpr
      elif isinstance(each, core.Jaxpr):
        yield each
