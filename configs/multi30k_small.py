"""Multi30k by a small Transformer, for comparisons over seeds: four minutes of a CPU core a run.

Tables 2 and 3 of Shaw et al. 2018, https://arxiv.org/abs/1803.02155, in this size:

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python -m posjax.experiment.compare \\
    --config=configs/multi30k_small.py --config.task.data=file:PATH --seeds=5 --baseline=shaw \\
    --schemes='none,shaw(max_distance=0),shaw(max_distance=1),shaw(max_distance=2),shaw,shaw(values=False),shaw(keys=False)'

PATH is that of configs/multi30k.py.
"""

from ml_collections import ConfigDict

from configs import multi30k


def get_config() -> ConfigDict:
  """`multi30k`, with fewer pieces, a smaller model, and five or six passes over the text."""
  c = multi30k.get_config()
  c.scheme = 'shaw'
  c.task.vocab_size = 2000
  c.task.widths = (20, 28, 48)
  c.batch_size = 24
  c.steps = 2800
  c.model.num_layers = 2
  c.model.width = 128
  c.model.num_heads = 4
  c.model.ff_width = 256
  c.model.dropout_rate = 0.1
  c.model.unroll = 2
  c.optimizer.warmup_steps = 280
  c.checkpoint.keep = 2
  c.checkpoint.use = 'last'
  c.checkpoint.mean_of = None
  c.log_every = 100
  c.eval_every = 1400
  c.checkpoint_every = 700
  return c
