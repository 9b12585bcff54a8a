"""The same decoder as Hugging Face's GPT-NeoX, in eager torch with its 'sdpa' attention: RoPE."""

import torch
import torch.nn.functional as F
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from benchmarks.peers import torch_training
from benchmarks.peers.torch_eager import device
from benchmarks.peers.torch_training import inputs
from benchmarks.spec import Built, Step, Unable

__all__ = ['build', 'inputs']


def build(spec: Step, row: torch.Tensor) -> Built:
  """Prepares it.

  Raises:
    Unable: for another scheme.
  """
  if spec.scheme != 'rope':
    raise Unable('GPT-NeoX has RoPE only')
  torch.manual_seed(0)
  config = GPTNeoXConfig(
    vocab_size=spec.vocab,
    hidden_size=spec.width,
    num_hidden_layers=spec.layers,
    num_attention_heads=spec.heads,
    intermediate_size=spec.ff_width,
    max_position_embeddings=spec.length,
    rope_parameters={'rope_type': 'default', 'rope_theta': 10000.0, 'partial_rotary_factor': 1.0},
    use_parallel_residual=False,
    tie_word_embeddings=True,
    use_cache=False,
    bos_token_id=None,
    eos_token_id=None,
  )
  config._attn_implementation = 'sdpa'
  model = GPTNeoXForCausalLM(config).to(device())

  def loss_of(row):
    return F.cross_entropy(model(row[:, :-1]).logits.flatten(0, 1), row[:, 1:].flatten())

  return torch_training.built(model, loss_of, row)
