"""torch's FlexAttention, compiled: no positions, ALiBi, and T5 through a captured table.

It has no backward pass on a CPU. Tiles of the future are skipped by its block mask, made once.
"""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.peers import torch_eager
from benchmarks.peers.torch_eager import inputs
from benchmarks.spec import Absent, Attention, Built, Unable, buckets, slopes, table

__all__ = ['build', 'inputs']


def build(spec: Attention, given: list[torch.Tensor]) -> Built:
  """Prepares it; the first run compiles.

  Raises:
    Absent: for gradients on a CPU.
    Unable: for another scheme.
  """
  device = torch_eager.device()
  if device == 'cpu' and spec.backward:
    raise Absent('FlexAttention has gradients on a GPU only')
  causal = lambda b, h, t, s: t >= s
  size = spec.length, spec.length
  mask = create_block_mask(causal, None, None, *size, device=device) if spec.causal else None
  flex = torch.compile(flex_attention)
  if spec.scheme == 'none':
    return torch_eager.built(spec, given, lambda q, k, v: flex(q, k, v, block_mask=mask))
  if spec.scheme == 'alibi':
    slope = torch.from_numpy(slopes(spec.heads)).to(device)
    score = lambda logit, b, h, t, s: logit - slope[h] * (t - s).abs()
    attention = lambda q, k, v: flex(q, k, v, score_mod=score, block_mask=mask)
    return torch_eager.built(spec, given, attention)
  if spec.scheme != 't5':
    raise Unable('of biases, only those of ALiBi and T5 are written here')
  bucket = torch.from_numpy(buckets(spec.length)).to(device)

  def learned(q, k, v, table):
    score = lambda logit, b, h, t, s: logit + table[bucket[(t - s).clamp(min=0)], h]
    return flex(q, k, v, score_mod=score, block_mask=mask)

  return torch_eager.built(
    spec, given, learned, table=torch.from_numpy(table(spec.heads)).to(device)
  )
