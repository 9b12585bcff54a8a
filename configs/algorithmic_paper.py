"""Algorithms at the size of Kazemnejad et al. 2023, https://arxiv.org/abs/2305.19466.

  python train.py --config=configs/algorithmic_paper.py --config.scheme=none

40,000 steps of 64 questions, AdamW at 3e-5 with a weight decay of 0.05, as in McGill-NLP's
configs/trainer/base_model.jsonnet; 12 layers of width 768 (85 M parameters here; the paper says
107 M), 6 % of warmup, lengths 1 to 20, every length to 40 tested, whole answers counted. For an
accelerator: not run here. In the paper copying is trained up to length 20 and SCAN up to 25;
addition, sorting, summation and parity are trained up to 8 and tested up to 16. Set them with
`--config.task.longest` and `--config.task.eval_lengths`.
"""

from ml_collections import ConfigDict

from configs import algorithmic


def get_config() -> ConfigDict:
  """The algorithmic config at the paper's size."""
  c = algorithmic.get_config()
  c.steps = 40_000
  c.task.longest = 20
  c.task.eval_factors = ()
  c.task.eval_lengths = tuple(range(20, 41))
  c.task.eval_examples = 512
  c.model.num_layers = 12
  c.model.width = 768
  c.model.num_heads = 12
  c.model.dropout_rate = 0.1
  c.optimizer.learning_rate = 3e-5
  c.optimizer.warmup_steps = 2400
  c.optimizer.final_fraction = 0.0
  c.optimizer.b2 = 0.999
  c.optimizer.weight_decay = 0.05
  c.eval_every = c.checkpoint_every = 2000
  return c
