"""Which implementation of attention a call takes, and why.

The choice is made while the call is traced, by the scheme, the dtype, the widths, the numbers of
tokens, the mask and the device. Ids that a compiled program alone knows are not known then: where
they matter, the implementation tests them when it runs.
"""

import contextlib
import contextvars
import os
from collections.abc import Generator
from typing import Any, NamedTuple

import jax

from posjax.attention import cudnn, places
from posjax.attention.context import mesh
from posjax.attention.devices import Device, sharded_axes
from posjax.attention.inputs import Call
from posjax.attention.pallas import fused

DEFAULT = 'POSJAX_IMPLEMENTATION'  # an environment variable: the default of calls that name none
OVER_DEVICES = ('all_gather', 'ring')
_FEW_QUERIES = 16  # as in decoding
# Pairs for each head up to which all logits at once were measured to be faster than tiles, or are
# taken to be so on a TPU, where nothing has been measured.
_FEW_PAIRS = {'cpu': 2**15, 'gpu': 2**20, 'tpu': 2**18}


class Choice(NamedTuple):
  """An implementation, and why it is taken."""

  implementation: str
  why: str


def choose(call: Call, device: Device, names: tuple[str, ...], asked: str | None = None) -> Choice:
  """The implementation that computes a call.

  Args:
    call: of `inputs.read_call`.
    device: where it runs.
    names: of all implementations.
    asked: the one that the caller names, one of them; None leaves the choice to this function.

  Raises:
    ValueError: if `POSJAX_IMPLEMENTATION` names none of them, or one over devices is asked for, and
      there is no mesh for it.
  """
  default, reason = os.environ.get(DEFAULT), 'it is asked for'
  if asked is None and default:
    if default not in names:
      raise ValueError(f'{DEFAULT} must be one of {sorted(names)}, but got {default!r}.')
    asked, reason = default, f'{DEFAULT} is {default}'
  if asked in OVER_DEVICES:
    if mesh.devices() > 1:
      mixes = asked == 'ring' and 'S' in call.scheme.traits.mixes
      return (
        Choice('all_gather', 'the scheme needs whole rows of keys')
        if mixes
        else Choice(asked, reason)
      )
    asked = None  # one device has all tokens
  return on_one_device(call, device, asked, reason)


def on_one_device(call: Call, device: Device, asked: str | None = None, reason: str = '') -> Choice:
  """The implementation that computes a call where all tokens are on one device.

  Args:
    call: of `inputs.read_call`.
    device: where it runs.
    asked: the one that the caller names; None leaves the choice to this function.
    reason: why it is named.
  """
  if asked in ('dense', 'blockwise'):
    return Choice(asked, reason)
  if asked is None and (small := _by_size(call, device)):
    return small
  x, by_itself = call.operands, mesh.row_axes(call.operands.v.shape[0])
  share = lambda heads: _of_one_device(heads, mesh.size(by_itself))
  q, k, v = map(share, transformed(call))
  no_cudnn = cudnn.refusal(call.scheme, q, k, v, call.rules, x, device)
  target = fused.target_of(device, asked == 'mosaic')
  no_kernel = fused.refusal(target, call.scheme, x, q, k, v, call.rules)
  if asked is not None:
    refused = no_cudnn if asked == 'cudnn' else no_kernel
    return Choice('blockwise', refused) if refused else Choice(asked, reason)
  if device.platform == 'tpu':
    return Choice('blockwise', 'the kernels have not run on a TPU yet; they can be asked for')
  if axes := [name for name in sharded_axes() if name not in by_itself]:
    return Choice(
      'blockwise',
      f'XLA cannot cut kernels along the mesh axes {", ".join(axes)}: call attend in '
      'jax.shard_map, over batch and heads',
    )
  if not no_cudnn:
    return Choice('cudnn', 'the scheme acts on queries, keys and values alone')
  if not no_kernel:
    return Choice('pallas', f'not cudnn: {no_cudnn}')
  return Choice('blockwise', f'not cudnn: {no_cudnn}; not pallas: {no_kernel}')


def _by_size(call: Call, device: Device) -> Choice | None:
  """The choice where the numbers of tokens decide, or the platform has no kernels."""
  few = _FEW_PAIRS[device.platform]
  if isinstance(call.rules.scale, jax.core.Tracer):
    return Choice('dense', 'the scale is traced')
  if call.shape[-3] <= _FEW_QUERIES:
    return Choice('dense', f'there are at most {_FEW_QUERIES} queries')
  if call.shape[-3] * call.keys <= few:
    return Choice('dense', f'there are at most {few:,} pairs for each head')
  return Choice('blockwise', 'a CPU has no kernels') if device.platform == 'cpu' else None


_noted: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar('noted', default=None)


@contextlib.contextmanager
def noted() -> Generator[set[str]]:
  """Collects the names of the implementations that calls take, while they are traced within it."""
  names: set[str] = set()
  before = _noted.set(names)
  try:
    yield names
  finally:
    _noted.reset(before)


def note(call: Call, device: Device, names: tuple[str, ...], asked: str | None) -> None:
  """Notes what `choose` answers, for `noted`; nothing outside of it. Arguments as of `choose`."""
  found = _noted.get()
  if found is not None:
    found.add(choose(call, device, names, asked).implementation)


def _of_one_device(heads: Any, devices: int) -> jax.ShapeDtypeStruct:
  """The heads of the rows that each of so many devices computes."""
  return jax.ShapeDtypeStruct((heads.shape[0] // devices, *heads.shape[1:]), heads.dtype)


def transformed(call: Call) -> tuple[Any, Any, Any]:
  """The shapes and dtypes of q and k after place 2, and of v after `values.value`."""
  scheme, x = call.scheme, call.operands

  def heads(params: Any, q: Any, k: Any, v: Any) -> Any:
    new_q, new_k = places.query_and_key(scheme, params, q, k)
    return new_q, new_k, places.value(scheme, params, v, k)

  return jax.eval_shape(heads, x.params, x.q, x.k, x.v)
