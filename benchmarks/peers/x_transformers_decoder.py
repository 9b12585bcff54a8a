"""The same decoder in x-transformers, in eager torch; `way` is '' or 'flash'.

'flash' is torch's `scaled_dot_product_attention`, which takes ALiBi as an array, and T5 not at all.
Rotary embeddings turn the whole head, as ours do.
"""

import torch
import torch.nn.functional as F
from x_transformers import Decoder, TransformerWrapper

from benchmarks import memory
from benchmarks.peers import torch_training
from benchmarks.peers.torch_eager import device
from benchmarks.peers.torch_training import inputs
from benchmarks.spec import Built, Step, Unable

__all__ = ['build', 'inputs']

POSITIONS = {
  'none': {},
  'rope': {'rotary_pos_emb': True},
  'alibi': {'alibi_pos_bias': True},
  't5': {'rel_pos_bias': True},
}


def build(spec: Step, row: torch.Tensor) -> Built:
  """Prepares it.

  Raises:
    Unable: for a scheme that it lacks, T5 with flash, or too little memory.
  """
  if spec.scheme not in POSITIONS:
    raise Unable(f'of positions, only {list(POSITIONS)} are written here')
  if spec.scheme == 't5' and spec.way == 'flash':
    raise Unable('x-transformers has no T5 bias with flash')
  if device() == 'cpu' and (spec.way != 'flash' or spec.scheme == 'alibi'):
    memory.require(4 * spec.layers * spec.plane)  # seen at 2048 with a T5 bias: 4 for each layer
  torch.manual_seed(0)
  width = spec.width // spec.heads
  layers = Decoder(
    dim=spec.width,
    depth=spec.layers,
    heads=spec.heads,
    attn_dim_head=width,
    attn_flash=spec.way == 'flash',
    ff_mult=spec.ff_width / spec.width,
    rotary_emb_dim=width,
    **POSITIONS[spec.scheme],
  )
  model = TransformerWrapper(
    num_tokens=spec.vocab,
    max_seq_len=spec.length,
    attn_layers=layers,
    use_abs_pos_emb=False,  # beside ALiBi it would add a learned table of its own
    tie_embedding=True,
  ).to(device())

  def loss_of(row):
    return F.cross_entropy(model(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())

  return torch_training.built(model, loss_of, row)
