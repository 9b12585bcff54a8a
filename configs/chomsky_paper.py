"""The Chomsky hierarchy at the size of Ruoss et al. 2023, https://arxiv.org/abs/2305.16843.

  python train.py --config=configs/chomsky_paper.py --config.task.data=synthetic:bucket_sort

As in DeepMind's experiments/example.py: five layers of width 64 with dropout 0.1, batches of 128,
Adam at 1e-3, lengths 1 to 40, positions drawn from 2,048. That example does 10,000 steps and tests
to length 100; two million steps and lengths to 500 are the paper's section 4 as remembered, not
looked up. For an accelerator: not trained here, only begun.
"""

from ml_collections import ConfigDict

from configs import chomsky


def get_config() -> ConfigDict:
  """The Chomsky config at the paper's size."""
  c = chomsky.get_config()
  c.scheme = 'randomized(max_length=2048)+rope'
  c.steps = 2_000_000
  c.batch_size = 128
  c.task.longest = 40
  c.task.eval_lengths = tuple(range(40, 501))
  c.task.eval_examples = 512
  c.model.num_layers = 5
  c.model.num_heads = 8
  c.model.activation = 'relu'
  c.model.pre_norm = False
  c.model.dropout_rate = 0.1
  c.model.tied = False
  c.optimizer.learning_rate = 1e-3
  c.optimizer.warmup_steps = 0
  c.optimizer.final_fraction = 1.0
  c.optimizer.b2 = 0.999
  c.eval_every = c.checkpoint_every = 20_000
  return c
