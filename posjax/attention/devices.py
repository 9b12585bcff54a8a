"""The devices between which attention chooses: what they are, not how many there are."""

from typing import NamedTuple

import jax


class Device(NamedTuple):
  """A kind of device.

  Attributes:
    platform: 'cpu', 'gpu' or 'tpu'.
    capability: of CUDA, as (9, 0) for Hopper; None for what is no NVIDIA GPU.
  """

  platform: str
  capability: tuple[int, int] | None = None


KNOWN = {
  'cpu': Device('cpu'),
  'tpu': Device('tpu'),
  'amd': Device('gpu'),
  'ampere': Device('gpu', (8, 0)),
  'ada': Device('gpu', (8, 9)),
  'hopper': Device('gpu', (9, 0)),
  'blackwell': Device('gpu', (10, 0)),
}


def here() -> Device:
  """The device of this process' default backend."""
  platform = jax.default_backend()
  if platform != 'gpu':
    return Device(platform if platform in ('cpu', 'tpu') else 'cpu')
  device = jax.devices()[0]
  major, _, minor = str(getattr(device, 'compute_capability', '')).partition('.')
  is_nvidia = 'nvidia' in device.device_kind.lower()
  if not (is_nvidia and major.isdigit() and minor.isdigit()):
    return Device('gpu')
  return Device('gpu', (int(major), int(minor)))


def sharded_axes() -> tuple[str, ...]:
  """The axes of the mesh in context along which XLA itself cuts arrays; none inside shard_map."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return ()
  manual = set(mesh.manual_axes)
  return tuple(name for name, size in mesh.shape.items() if size > 1 and name not in manual)
