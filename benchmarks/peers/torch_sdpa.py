"""torch's `scaled_dot_product_attention`: without positions, and with ALiBi or T5 as an array.

ALiBi's array [1, H, T, S], its mask included, is made once and not timed, as models keep it for all
their layers; it counts as memory. T5's is gathered from the table in each run, and the table gets
its gradient; the bucket of each pair is made once.
"""

import torch
import torch.nn.functional as F

from benchmarks import memory
from benchmarks.peers import torch_eager
from benchmarks.peers.torch_eager import inputs
from benchmarks.spec import Attention, Built, Unable, buckets, slopes, table

__all__ = ['build', 'inputs']


def build(spec: Attention, given: list[torch.Tensor]) -> Built:
  """Prepares it.

  Raises:
    Unable: for another scheme, or without memory for its arrays.
  """
  if spec.scheme == 'none':
    plain = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=spec.causal)
    return torch_eager.built(spec, given, plain)
  if spec.scheme not in ('alibi', 't5'):
    raise Unable('of biases, only those of ALiBi and T5 are written here')
  # Seen at 4096 and 8192: 2 planes for ALiBi, 4 for T5.
  if torch_eager.device() == 'cpu':
    memory.require((3 if spec.scheme == 'alibi' else 5) * spec.plane)
  distance = torch.arange(spec.length)[:, None] - torch.arange(spec.length)
  distance = distance.to(torch_eager.device())
  ahead = (distance < 0) & spec.causal
  if spec.scheme == 'alibi':
    return _alibi(spec, given, distance, ahead)
  return _t5(spec, given, distance, ahead)


def _alibi(spec, given, distance, ahead) -> Built:
  slope = torch.from_numpy(slopes(spec.heads)).to(distance.device)[:, None, None]
  bias = (-slope * distance.abs()).masked_fill_(ahead, float('-inf'))[None].to(given[0].dtype)
  attention = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
  return torch_eager.built(spec, given, attention)


def _t5(spec, given, distance, ahead) -> Built:
  bucket = torch.from_numpy(buckets(spec.length)).to(distance.device)[distance.clamp(min=0)]

  def attention(q, k, v, table):
    bias = F.embedding(bucket, table).permute(2, 0, 1)[None]
    bias = bias.masked_fill(ahead, float('-inf')).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

  weights = torch.from_numpy(table(spec.heads)).to(distance.device)
  return torch_eager.built(spec, given, attention, table=weights)
