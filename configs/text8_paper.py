"""text8 at the size of Dai et al. 2019 (Transformer-XL), https://arxiv.org/abs/1901.02860.

  python train.py --config=configs/text8_paper.py --config.task.data=text8:PATH

PATH is the whole file of 100 million characters, of which 90 million are trained on and 5 million
held out. The model has the 12 layers of their base model for enwik8 and text8 (38 M parameters
here). It takes 400,000 steps of 22 rows of 512 characters, by Adam at 2.5e-4 to 0 on a cosine;
every row stands on its own, without the memory of earlier ones that the paper adds. This needs an
accelerator, and was not run here. The paper has 1.08 bits per character of the test for 24 layers
of width 1024 (table 3).
"""

from ml_collections import ConfigDict

from configs import text8


def get_config() -> ConfigDict:
  """The small config at the paper's size."""
  c = text8.get_config()
  c.scheme = 'rope'
  c.steps = 400_000
  c.batch_size = 22
  c.task.data = 'text8:text8'
  c.task.length = 512
  c.task.eval_factors = (1,)
  c.task.eval_tokens = 5_000_000
  c.model.num_layers = 12
  c.model.width = 512
  c.model.num_heads = 8
  c.model.ff_width = 2048
  c.model.dropout_rate = 0.1
  c.model.pre_norm = False
  c.model.activation = 'relu'
  c.model.unroll = 1
  c.optimizer.learning_rate = 2.5e-4
  c.optimizer.warmup_steps = 0
  c.optimizer.final_fraction = 0.0
  c.optimizer.b2 = 0.999
  c.optimizer.weight_decay = 0.0
  c.optimizer.clip_norm = 0.25
  c.log_every = 200
  c.eval_every = c.checkpoint_every = 4000
  return c
