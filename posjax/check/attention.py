"""Attention of one case with its gradients, and its distance from the reference."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax import positions
from posjax.attention import attend, chosen
from posjax.attention.choice import OVER_DEVICES
from posjax.check import cases, collectives
from posjax.check.cases import Case, Kind
from posjax.expression import get
from posjax.scheme import Dims, Params, Scheme, init, merge, split


class Arrays(NamedTuple):
  """The numbers of a case: float32, on the host, or in the dtype of the case, on the device.

  Attributes:
    q: queries.
    k: keys.
    v: values.
    params: of the scheme.
    cotangent: of the output.
  """

  q: Any
  k: Any
  v: Any
  params: Params
  cotangent: Any


def compare(case: Case, implementation: str) -> dict[str, Any]:
  """One case computed by one implementation, and by the reference.

  Returns:
    `error`, the largest of the output and of all gradients, of the array `of`; or `tiles`, the
    reason why the implementation computes this case in tiles; or `reference`, True, where it would
    be compared with itself.
  """
  if why := falls_back(case, implementation):
    return {'tiles': why}
  host = _host()
  if implementation == 'dense' and case.dtype == 'float32' and host == jax.devices()[0]:
    return {'reference': True}
  given = arrays(case)
  # float32 is multiplied as float32: by default an accelerator rounds the factors.
  with jax.default_matmul_precision('highest'):
    with _mesh(implementation):
      found = _answer(case.kind, implementation)(*_as(given, case.dtype))
    with jax.default_device(host):
      expected = _answer(case.kind, 'dense')(*_as(given, 'float32'))
  error, name = max(errors(found, expected))
  return {'error': error, 'of': name}


def arrays(case: Case) -> Arrays:
  """The same random numbers for every implementation, which bfloat16 holds exactly if asked to."""
  kind, draw = case.kind, np.random.default_rng(0)
  params = jax.device_get(_parameters(case))

  def normal(heads: int) -> np.ndarray:
    drawn = draw.standard_normal((cases.BATCH, cases.TOKENS, heads, case.width), np.float32)
    return drawn.astype(jnp.dtype(case.dtype)).astype(np.float32)

  q, k, v, cotangent = map(normal, (cases.HEADS, kind.key_heads, kind.key_heads, cases.HEADS))
  # Some parameters begin at zero, where a wrong gradient of another array would not be seen.
  moved = lambda x: x + 0.1 * draw.standard_normal(x.shape).astype(x.dtype)
  return Arrays(q, k, v, jax.tree.map(moved, params), cotangent)


def falls_back(case: Case, implementation: str) -> str:
  """The reason why an implementation leaves a case to tiles; '' if it computes it itself."""
  heads = cases.HEADS, case.kind.key_heads, case.kind.key_heads
  q, k, v = (
    jax.ShapeDtypeStruct((cases.BATCH, cases.TOKENS, n, case.width), case.dtype) for n in heads
  )
  params = jax.eval_shape(lambda: _parameters(case))
  options = _options(case.kind) | {'implementation': implementation}
  with _mesh(implementation):
    taken = chosen(q, k, v, case.kind.scheme, params, **options)
  return '' if taken.implementation == implementation else taken.why


def refusals(implementations: list[str]) -> dict[str, str]:
  """The reason why an implementation computes none of the kinds on this device; '' if it does."""
  found = {}
  for implementation in implementations:
    if implementation in OVER_DEVICES and jax.device_count() == 1:
      found[implementation] = 'there is one device'
      continue
    narrow = [Case(kind, cases.WIDTHS[0], 'bfloat16') for kind in cases.KINDS]
    reasons = [falls_back(case, implementation) for case in narrow]
    found[implementation] = reasons[0] if all(reasons) else ''
  return found


def gradients(
  scheme: Scheme, options: dict[str, Any]
) -> Callable[[Any, Any, Any, Params, Any], dict[str, Any]]:
  """A function of (q, k, v, params, cotangent): the output and all gradients, by name.

  The gradients of parameters are those of trained ones.

  Args:
    scheme: the scheme.
    options: other arguments of `attend`.
  """

  def answer(q, k, v, params, cotangent):
    trained, fixed = split(scheme, params)

    def forward(q, k, v, trained):
      return attend(q, k, v, scheme, merge(trained, fixed), **options)

    out, back = jax.vjp(forward, q, k, v, trained)
    names = 'the queries', 'the keys', 'the values', 'the parameters'
    return {'the output': out, **dict(zip(names, back(cotangent.astype(out.dtype)), strict=True))}

  return answer


def errors(found: dict[str, Any], expected: dict[str, Any]) -> list[tuple[float, str]]:
  """The largest error of each array, relative to its largest number.

  An array that is small beside its like, where terms cancel, is held to a tenth of the largest:
  the output and the gradients of heads among each other, and those of parameters, which are sums
  over all pairs. A NaN is an infinite error.

  Args:
    found: as from a function of `gradients`.
    expected: the same, of the reference.

  Returns:
    (error, name) of each array, in no order.
  """
  sizes = {name: [abs(x).max() for x in _leaves(tree)] for name, tree in expected.items()}
  of_heads = max(max(sizes[name]) for name in sizes if name != 'the parameters') / 10
  of_params = max(sizes['the parameters'], default=0) / 10
  each_error = []
  for name, tree in found.items():
    least = of_params if name == 'the parameters' else of_heads
    for one, other, size in zip(_leaves(tree), _leaves(expected[name]), sizes[name], strict=True):
      error = float(abs(one - other).max() / max(size, least))
      each_error.append((error if np.isfinite(error) else np.inf, name))
  return each_error


# Both dtypes of a case share the reference's program.
@functools.lru_cache(maxsize=2 * len(cases.KINDS))
def _answer(kind: Kind, implementation: str) -> Any:
  options = _options(kind) | {'implementation': implementation}
  return jax.jit(gradients(get(kind.scheme), options))


def _mesh(implementation: str) -> contextlib.AbstractContextManager[Any]:
  """The mesh of all devices, where an implementation is one over devices."""
  over_devices = implementation in OVER_DEVICES
  return jax.set_mesh(collectives.mesh()) if over_devices else contextlib.nullcontext()


def _parameters(case: Case) -> Params:
  dims = Dims(cases.HEADS * case.width, cases.HEADS, case.width, case.kind.key_heads)
  return init(get(case.kind.scheme), jax.random.key(0), dims)


def _options(kind: Kind) -> dict[str, Any]:
  """The arguments of `attend` that are known while it is traced."""
  pos = order = jnp.arange(cases.TOKENS)
  options = {'causal': kind.causal, 'window': kind.window}
  if kind.packed:
    lengths = cases.TOKENS // 2, cases.TOKENS // 3, cases.TOKENS // 6
    segments = jnp.repeat(jnp.array([1, 2, 0]), jnp.array(lengths))
    pos = positions.from_segments(segments)
    options |= {'q_segments': segments, 'k_segments': segments, 'q_order': order, 'k_order': order}
  return options | {'q_pos': pos, 'k_pos': pos}


def _as(given: Arrays, dtype: str) -> Arrays:
  q, k, v = (jnp.asarray(x, dtype) for x in (given.q, given.k, given.v))
  params = jax.tree.map(jnp.asarray, given.params)
  return Arrays(q, k, v, params, jnp.asarray(given.cotangent))


def _host() -> jax.Device:
  """The CPU, where JAX may use it beside an accelerator; else the device itself."""
  try:
    return jax.devices('cpu')[0]
  except RuntimeError:
    return jax.devices()[0]


def _leaves(tree: Any) -> list[np.ndarray]:
  return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree) if leaf.size]
