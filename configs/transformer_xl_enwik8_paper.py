"""Transformer-XL on enwik8, at the size of the authors' base model: 1.06 bits per byte there.

  python train.py --config=configs/transformer_xl_enwik8_paper.py --config.task.data=enwik8:PATH

Dai et al. 2019, https://arxiv.org/abs/1901.02860, table 2, 12 layers, 41 M parameters; all else as
in configs/transformer_xl_text8_paper.py. For an accelerator: not run here.
"""

from ml_collections import ConfigDict

from configs import transformer_xl_text8_paper


def get_config() -> ConfigDict:
  """The paper's text8 config on bytes."""
  c = transformer_xl_text8_paper.get_config()
  c.task.data = 'enwik8:enwik8'
  c.task.tokens = 'bytes'
  c.task.prompt = '[['
  return c
