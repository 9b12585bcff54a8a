"""Part of SNLI by a small Gaussian Transformer: about two minutes of one CPU core a run.

  python train.py --config=configs/snli_small.py --config.task.data=file:PATH

PATH is a folder with train.tsv and dev.tsv. This compares the published prior, three versions that
lead to it step by step, and other priors:

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python -m posjax.experiment.compare \\
    --config=configs/snli_small.py --config.task.data=file:PATH --seeds=5 \\
    --schemes='none,sinusoidal,gaussian,sinusoidal+gaussian,laplace,power_law,sinusoidal+gaussian(w=3.14159265,b=None,trained=False),sinusoidal+gaussian(w=3.14159265,b=None),sinusoidal+gaussian(w=3.14159265)'

To compare with vectors of characters that are not trained, add
--axes=model.train_characters=True,False. For ESIM, add --config.task.architecture=esim
--schemes=none. The learning rate was chosen among three on a cut of the training pairs (RESULTS,
"Sentences of SNLI").
"""

from ml_collections import ConfigDict

from configs import sentence_pairs


def get_config() -> ConfigDict:
  """`sentence_pairs`, with real sentences, and a model and a time of that size."""
  c = sentence_pairs.get_config()
  c.task.data = 'file:snli_small'
  c.task.widths = (16, 28, 64)  # each more takes a quarter of a CPU minute to compile
  c.task.min_count = 2
  c.task.ngrams = (3,)
  c.task.ngrams_per_word = 14
  c.batch_size = 64
  c.steps = 1200
  c.model.width = 64
  c.model.num_layers = 2
  c.model.interaction_layers = 1
  c.model.num_heads = 4
  c.model.ff_width = 128
  c.model.dropout_rate = 0.2
  c.model.word_width = 64
  c.model.char_width = 32
  c.model.hidden_width = 64
  c.optimizer.learning_rate = 1e-3
  c.optimizer.warmup_steps = 60
  c.log_every = 50
  c.eval_every = 600
  c.checkpoint_every = 1200
  return c
