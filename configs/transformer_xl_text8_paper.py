"""Transformer-XL on text8, at the size of the authors' base model for characters.

  python train.py --config=configs/transformer_xl_text8_paper.py --config.task.data=text8:PATH

Dai et al. 2019, https://arxiv.org/abs/1901.02860, and the scripts of their code: 12 layers of width
512 with norms after each part, 400,000 steps of 22 segments of 512 characters and a memory of as
many, Adam at 2.5e-4 with a cosine; judged in segments of 80 with attention to 2,100 characters,
distances clamped at 820, the same number of keys for each. For an accelerator: not run here. The
authors drop no attention weights; here dropout_rate is that of both.
"""

from ml_collections import ConfigDict

from configs import text8_paper


def get_config() -> ConfigDict:
  """The paper's text8 config with a memory."""
  c = text8_paper.get_config()
  c.scheme = 'transformer_xl'
  c.task.memory = 512
  c.task.eval_factors = ()
  c.task.eval_lengths = (512, 1024, 2100)
  c.task.eval_segment = 80
  c.task.eval_scheme = 'transformer_xl(max_distance=820)'
  c.task.eval_tokens = 4_999_280
  return c
