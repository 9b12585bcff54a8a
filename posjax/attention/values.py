"""Place 4 around a kernel: `value` before it, and `output` after it, for every implementation.

A kernel sums values, and adds the scheme's `values` to the sum. Where a scheme has `output` too,
which is not for what `values` adds, the kernel gets values with zeros beside them, and adds there.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from posjax.attention.inputs import Operands, Rules, Side, check_returned
from posjax.scheme import Params, Scheme, declares, without_value

Compute = Callable[[Scheme, Rules, Operands], Any]


def turning(compute: Compute, scheme: Scheme) -> Compute:
  """The kernel, with the scheme's `value` and `output` around it, where it has any.

  Args:
    compute: (scheme, rules, operands) -> the sum of the values, or this and the weights.
    scheme: the scheme that it will be called with.
  """
  if not (declares(scheme, 'value') or declares(scheme, 'output')):
    return compute

  def turned(scheme: Scheme, rules: Rules, x: Operands) -> Any:
    params, q = x.params, x.q
    v = check_returned('value', scheme.value(params, x.v, x.k.at), (*x.v.shape[:-1], None))
    width = v.shape[-1]
    beside = declares(scheme, 'output') and scheme.values is not None
    inner = without_value(scheme)
    if beside:
      more = _output_width(scheme, params, v, q)
      v = jnp.pad(v, (*((0, 0),) * 3, (0, more)))
      inner = _adding_beside(inner, width)
    found = compute(inner, rules, x._replace(v=v))
    out, *weights = found if isinstance(found, tuple) else (found,)
    out_shape = (*out.shape[:-1], None)
    total = check_returned('output', scheme.output(params, out[..., :width], q.at), out_shape)
    total = total + out[..., width:] if beside else total
    return (total, *weights) if weights else total

  return turned


def width(scheme: Scheme, params: Params, v: Inexact[Array, '*B S K E'], q: Side, k: Side) -> int:
  """The width of the result, after `value` and `output`.

  Args:
    scheme: any scheme.
    params: its parameters.
    v: values, before `value`.
    q: the queries.
    k: the keys.
  """
  if not (declares(scheme, 'value') or declares(scheme, 'output')):
    return v.shape[-1]
  flat = jax.ShapeDtypeStruct((*k.raw.shape[:-1], v.shape[-1]), v.dtype)
  return _output_width(scheme, params, jax.eval_shape(scheme.value, params, flat, k.at), q)


def _output_width(scheme: Scheme, params: Params, v: Any, q: Side) -> int:
  """The width of what `output` makes of sums of these values."""
  total = jax.ShapeDtypeStruct((*q.raw.shape[:-1], v.shape[-1]), v.dtype)
  return jax.eval_shape(scheme.output, params, total, q.at).shape[-1]


@functools.lru_cache(maxsize=1024)  # an equal scheme for each call: JAX would compile another anew
def _adding_beside(scheme: Scheme, width: int) -> Scheme:
  """The scheme whose `values` come after as many zeros as the values are wide."""

  def beside(values):
    def padded(params, weights, q_at, k_at):
      return jnp.pad(values(params, weights, q_at, k_at), (*((0, 0),) * 3, (width, 0)))

    return padded if values else None

  tiled = scheme.tiled._replace(values=beside(scheme.tiled.values))
  return scheme._replace(values=beside(scheme.values), tiled=tiled)
