"""Translation at the size of Shaw et al. 2018, https://arxiv.org/abs/1803.02155, base model.

  python train.py --config=configs/translation_paper.py

The data are `tfds:wmt14_translate/de-en`, prepared beforehand. English to German: 6 layers on each
side, width 512, 8 heads, feed-forward width 1,024 as the paper has it, tables of offsets up to 16
for each head, 32,768 pieces of both languages together, 100,000 steps of some 25,000 tokens a side,
Adam with the schedule of Vaswani et al. 2017, labels smoothed by 0.1, beam 4 with alpha 0.6; the
last checkpoint, as in the paper. For accelerators: not run here. The paper has 26.8 BLEU on
newstest2014 (table 1), and 26.5 with sinusoids; those are of tokenized text, by another program
than sacrebleu.
"""

from ml_collections import ConfigDict

from configs import translation


def get_config() -> ConfigDict:
  """The small config at the paper's size."""
  c = translation.get_config()
  c.scheme = 'shaw(max_distance=16,per_head=True)'
  c.steps = 100_000
  c.batch_size = 256
  c.task.data = 'tfds:wmt14_translate/de-en'
  c.task.source = 'en'
  c.task.target = 'de'
  c.task.tokens = 'sentencepiece'
  c.task.vocab_size = 32_768
  c.task.joint = True
  c.task.widths = (16, 24, 32, 48, 64, 100)
  c.task.extra_length = 50
  c.model.num_layers = 6
  c.model.width = 512
  c.model.num_heads = 8
  c.model.ff_width = 1024
  c.model.dropout_rate = 0.1
  c.model.pre_norm = False
  c.model.shared = True
  c.model.unroll = 1
  c.optimizer.schedule = 'vaswani'
  c.optimizer.learning_rate = 7e-4  # 1 / sqrt(512 * 4000), at the end of the warmup
  c.optimizer.warmup_steps = 4000
  c.optimizer.clip_norm = None
  c.log_every = 100
  c.eval_every = c.checkpoint_every = 5000
  return c
