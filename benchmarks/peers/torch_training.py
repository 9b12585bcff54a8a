"""One training step in torch, AdamW in its fused form: what the decoders in torch share."""

from collections.abc import Callable

import torch

from benchmarks.peers.torch_eager import device, device_peak, wait
from benchmarks.spec import LEARNING_RATE, Absent, Built, Step, tokens


def inputs(spec: Step) -> torch.Tensor:
  """[B, T + 1] token numbers.

  Raises:
    Absent: for another dtype than float32.
  """
  if spec.dtype != 'float32':
    raise Absent('the decoders in torch compute in float32 here')
  return torch.from_numpy(tokens(spec)).long().to(device())


def built(
  model: torch.nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor], row: torch.Tensor
) -> Built:
  """`loss_of(row)` forward and back, then the optimizer. `run` returns the loss before the step."""
  model.train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

  def run():
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(row)
    loss.backward()
    optimizer.step()
    wait()
    return loss.detach()

  count = sum(p.numel() for p in model.parameters() if p.requires_grad)
  return Built(run, device_peak=device_peak, parameters=count)
