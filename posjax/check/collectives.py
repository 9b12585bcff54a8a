"""The speed at which devices exchange arrays: what attention over devices waits for."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec

AXIS = 'context'
_ROUNDS = 5


class Collective(NamedTuple):
  """One exchange between all devices.

  Attributes:
    name: of the collective.
    received: bytes that each device gets from others.
    seconds: of the fastest of some rounds.
  """

  name: str
  received: int
  seconds: float


def mesh() -> jax.sharding.Mesh:
  """All devices, along the axis over which attention cuts tokens."""
  return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))


def measure(size: int | None = None) -> list[Collective]:
  """The collectives of `all_gather` and `ring`.

  Args:
    size: bytes of the array that all devices have together; by default 256 MiB, on CPUs 16 MiB.
  """
  count = jax.device_count()
  size = size or 2 ** (24 if jax.default_backend() == 'cpu' else 28)
  part, to_next = size // count, [(i, (i + 1) % count) for i in range(count)]
  programs: dict[str, tuple[int, Any]] = {
    'all-gather': (count - 1, lambda x: lax.all_gather(x, AXIS, axis=1, tiled=True)),
    'reduce-scatter': (
      count - 1,
      lambda x: lax.psum_scatter(jnp.tile(x, (1, count)), AXIS, scatter_dimension=1, tiled=True),
    ),
    'permute': (1, lambda x: lax.ppermute(x, AXIS, to_next)),
  }
  found, cut = [], PartitionSpec(AXIS)
  with jax.set_mesh(mesh()):
    x = jax.device_put(jnp.ones((count, part // 4), jnp.float32), cut)
    for name, (parts, function) in programs.items():
      program = jax.jit(jax.shard_map(function, in_specs=cut, out_specs=cut))
      seconds = min([_timed(program, x) for _ in range(_ROUNDS + 1)][1:])
      found.append(Collective(name, parts * part, seconds))
  return found


def _timed(program: Any, x: jax.Array) -> float:
  begun = time.perf_counter()
  jax.block_until_ready(program(x))
  return time.perf_counter() - begun
