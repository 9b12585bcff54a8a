"""What a memory brings to a small model: short segments of text that Python carries.

Does recurrence help, as in Dai et al. 2019, https://arxiv.org/abs/1901.02860, table 6? A segment
has 32 bytes, less than a line of code, so that a model without a memory sees little; the streams
are long enough that it learns to use what a memory adds:

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python -m posjax.experiment.compare \\
    --config=configs/memory.py --schemes=transformer_xl,shaw,rope --axes=task.memory=128,1 --seeds=3

A memory of 1 has the same streams, and is Transformer-XL without recurrence.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
  """The default in short segments, with a memory of four of them."""
  c = default.get_config()
  c.scheme = 'transformer_xl'
  c.steps = 4000
  c.batch_size = 32
  c.task.length = 32
  c.task.memory = 128
  c.task.eval_lengths = (32, 64, 160)
  c.task.eval_tokens = 65_536
  c.model.num_layers = 3
  c.model.width = 128
  c.model.num_heads = 4
  c.optimizer.warmup_steps = 200
  c.log_every = 100
  c.eval_every = c.checkpoint_every = 2000
  return c
