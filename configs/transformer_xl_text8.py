"""Transformer-XL on characters of Wikipedia, small: segments that remember the ones before.

  python train.py --config=configs/transformer_xl_text8.py --config.task.data=file:PATH

PATH is a folder with train.txt and valid.txt of 27 symbols. Judged with attention of 128 to 1,024
characters, trained with at most 256: does it get better the further it sees? With
`--config.task.memory=0` it is the same model without memory. Dai et al. 2019,
https://arxiv.org/abs/1901.02860, sections 3.2 and 4.2. Sized for two CPU cores.
"""

from ml_collections import ConfigDict

from configs import text8


def get_config() -> ConfigDict:
  """The text8 config in segments of 128, with a memory of as many."""
  c = text8.get_config()
  c.scheme = 'transformer_xl'
  c.steps = 2000
  c.batch_size = 16
  c.task.length = 128
  c.task.memory = 128
  c.task.eval_factors = (1, 2, 4, 8)
  c.task.eval_tokens = 32_768
  c.model.num_layers = 3
  c.model.width = 128
  c.optimizer.learning_rate = 1e-3
  c.optimizer.warmup_steps = 100
  return c
