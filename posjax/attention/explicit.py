"""Attention under a mesh whose axes have explicit types, the default of `jax.make_mesh`.

There each array's type says how it is cut, and each operation must say how its result is, which no
scheme does. So attention is computed with automatic axes, and its result is cut as the queries are.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from posjax.attention import inputs


def with_automatic_axes(run: Callable[..., Any], q: Any, weights: bool, *arrays: Any) -> Any:
  """The result of `run(*arrays)`, in which no axis of the mesh is explicit.

  Args:
    run: returns the output [*B, T, H, E], or, of `weights`, it and the weights [*B, H, T, S].
    q: the queries, [*B, T, H, D].
    weights: whether `run` returns weights, too.
    *arrays: trees of arrays. Where axes are explicit, none of them is known while `run` is traced.
  """
  if AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types:
    return run(*arrays)
  (q,) = inputs.arrays(q=q)
  if q is None or q.ndim < 3:
    return run(*arrays)  # which refuses it
  cut = tuple(jax.typeof(q).sharding.spec)
  *batch, tokens, heads, _ = (*cut, *(None,) * (q.ndim - len(cut)))
  out = PartitionSpec(*batch, tokens, heads)
  both = out, PartitionSpec(*batch, heads, tokens)
  return jax.sharding.auto_axes(run, out_sharding=both if weights else out)(*arrays)
