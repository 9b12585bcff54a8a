"""Numbers that are known while a function is traced: those that do not depend on its arguments."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def known_numbers() -> contextlib.AbstractContextManager[Any]:
  """Where functions of arrays that are known while tracing stay known.

  Inside `jax.shard_map` JAX cannot compute while it traces: there, nothing stays known.
  """
  inside = bool(jax.sharding.get_abstract_mesh().manual_axes)
  return contextlib.nullcontext() if inside else jax.ensure_compile_time_eval()


def known_arange(length: int) -> Int[Array, ' length']:
  """`jnp.arange(length)`, which stays known in a function that is traced."""
  with known_numbers():
    return jnp.arange(length, dtype=jnp.int32)


def known(function: Callable[..., Array], *arrays: Any) -> bool | None:
  """The answer of a function of arrays that are known while tracing; None where one is not."""
  if any(isinstance(array, jax.core.Tracer) for array in jax.tree.leaves(arrays)):
    return None
  with known_numbers():
    answer = function(*arrays)
  return None if isinstance(answer, jax.core.Tracer) else bool(answer)
