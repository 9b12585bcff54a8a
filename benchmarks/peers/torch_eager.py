"""What the peers in torch share: inputs [1, H, T, D], and one pass forward and back."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.spec import Attention, Built, heads


def device() -> str:
  """Where torch computes: on a GPU if it has one."""
  return 'cuda' if torch.cuda.is_available() else 'cpu'


def inputs(spec: Attention) -> list[torch.Tensor]:
  """q, k, v and the cotangent of the output, in the layout that torch prefers."""
  dtype = getattr(torch, spec.dtype)
  made = [torch.from_numpy(x).swapaxes(1, 2).contiguous() for x in heads(spec)]
  return [x.to(device(), dtype) for x in made]


def built(
  spec: Attention, given: list[torch.Tensor], attention: Callable[..., Any], **params: torch.Tensor
) -> Built:
  """`attention(q, k, v, **params)`, by itself or with all its gradients, as numbers [1, T, H, D].

  Gradients are given up before each run, so that none is added to the last one's.
  """
  *qkv, d_out = given
  leaves = {**dict(zip('qkv', qkv, strict=True)), **params}
  for leaf in leaves.values():
    leaf.requires_grad_(spec.backward)

  def run():
    for leaf in leaves.values():
      leaf.grad = None
    with torch.set_grad_enabled(spec.backward):
      out = attention(**leaves)
    if spec.backward:
      out.backward(d_out)
    wait()
    found = {'out': out.detach(), **{name: leaves[name].grad for name in 'qkv'}}
    found = {name: None if x is None else x.swapaxes(1, 2) for name, x in found.items()}
    return found | {'params': {name: leaf.grad for name, leaf in params.items()}}

  return Built(run, device_peak=device_peak)


def wait() -> None:
  """Until the device is done."""
  if device() == 'cuda':
    torch.cuda.synchronize()


def device_peak() -> int | None:
  """The most bytes that torch has taken on a GPU; None on a CPU."""
  return torch.cuda.max_memory_allocated() if device() == 'cuda' else None
