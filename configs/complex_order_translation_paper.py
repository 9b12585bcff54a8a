"""Translation at the size of Wang et al. 2020, https://arxiv.org/abs/1912.12333, section 4.2.

  python train.py --config=configs/complex_order_translation_paper.py --config.task.data=file:PATH

PATH is a folder of Multi30k (29,000 pairs), which is what the authors' repository calls WMT16
(iclr-complex-order/complex-order 4c4ec246). English to German: 6 layers on each side, width 512, 8
heads, feed-forward width 2,048, dropout 0.1, 64 sentences a step. For an accelerator: not run here.
The paper's table 5 has 35.8 BLEU with complex-order, 34.7 with complex-vanilla and 34.5 with real
embeddings, by another program than sacrebleu; a complex layer has twice as many parameters as a
real one of its width.
"""

from ml_collections import ConfigDict

from configs import multi30k


def get_config() -> ConfigDict:
  """The config of Multi30k at the paper's size."""
  c = multi30k.get_config()
  c.scheme = 'complex_order'
  c.steps = 45_000
  c.batch_size = 64
  c.task.source = 'en'
  c.task.target = 'de'
  c.task.widths = (48,)
  c.model.num_layers = 6
  c.model.width = 512
  c.model.num_heads = 8
  c.model.ff_width = 2048
  c.model.dropout_rate = 0.1
  c.model.pre_norm = False
  c.model.unroll = 1
  c.optimizer.schedule = 'vaswani'
  c.optimizer.learning_rate = 7e-4
  c.optimizer.warmup_steps = 4000
  return c
