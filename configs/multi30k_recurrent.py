"""Multi30k by a GRU with attention, for comparisons over seeds: some minutes of one core a run.

Additive and multiplicative similarity as the width grows, which source text 004 quotes of Britz et
al. 2017, https://arxiv.org/abs/1703.03906. The recurrent model stays as it is; queries and states
are projected to the width for the comparison alone:

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python -m posjax.experiment.compare \\
    --config=configs/multi30k_recurrent.py --config.task.data=file:PATH --seeds=3 --schemes=none \\
    --axes=model.similarity_width=64,256,1024 --axes=model.similarity=additive,unscaled,none

PATH is that of configs/multi30k.py; 'none' is the scaled dot product.
"""

from ml_collections import ConfigDict

from configs import multi30k_small, translation_recurrent


def get_config() -> ConfigDict:
  """`multi30k_small`, with the model of `translation_recurrent`."""
  c = multi30k_small.get_config()
  c.scheme = 'none'
  c.task.architecture = 'recurrent'
  c.model = translation_recurrent.get_config().model
  c.model.width = 128
  c.model.hidden_width = 128
  c.model.dropout_rate = 0.2
  c.model.shared = True
  c.steps = 1400
  c.optimizer.warmup_steps = 140
  c.optimizer.learning_rate = 3e-3
  c.eval_every = c.checkpoint_every = 700
  return c
