"""Translation at the size of Shaw et al. 2018, https://arxiv.org/abs/1803.02155, big model.

  python train.py --config=configs/translation_big_paper.py

The data are `tfds:wmt14_translate/de-en`, prepared beforehand. What differs from the base model of
translation_paper.py: width 1,024, 16 heads, feed-forward width 4,096, tables of offsets up to 8
that all heads of a layer share, dropout 0.3, 300,000 steps, and the mean of the last 20
checkpoints. How far these lie apart the paper does not say; here it is 5,000 steps. For
accelerators: not run here. The paper has 29.2 BLEU on newstest2014 (table 1), and 27.9 with
sinusoids.
"""

from ml_collections import ConfigDict

from configs import translation_paper


def get_config() -> ConfigDict:
  """`translation_paper`, with another size."""
  c = translation_paper.get_config()
  c.scheme = 'shaw(max_distance=8)'
  c.steps = 300_000
  c.model.width = 1024
  c.model.num_heads = 16
  c.model.ff_width = 4096
  c.model.dropout_rate = 0.3
  c.optimizer.learning_rate = 4.94e-4  # 1 / sqrt(1024 * 4000), at the end of the warmup
  c.checkpoint.use = 'mean'
  c.checkpoint.mean_of = 20
  c.checkpoint.keep = 20
  return c
