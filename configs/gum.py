"""GUM (English of many genres): constituents from words and letters, in an hour of two cores.

  python train.py --config=configs/gum.py --config.task.data=file:PATH

PATH is a folder with train.* and dev.* of trees in brackets, one a line (Zeldes 2017,
https://gucorpling.org/gum). The model is that of Kitaev and Klein 2018
(https://arxiv.org/abs/1805.01052) at a quarter of its width, with half of its layers. Letters are
read by a convolution, not by an LSTM as theirs: this was chosen on a cut of the training trees
(RESULTS, "Parsing").

The next command compares their ways to give positions to the model with RoPE, with T5 and with no
positions. Each run takes 20 epochs:

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python -m posjax.experiment.compare \\
    --config=configs/gum.py --config.task.data=file:PATH --seeds=5 --config.steps=2320 \\
    --config.checkpoint_every=2320 --config.model.encoder=transformer \\
    --schemes='learned(stddev=1.0),concatenated,learned(stddev=1.0)+position_only,none,rope,t5'

and, for the factored model, the same without --config.model.encoder and with
--schemes=concatenated.
"""

from ml_collections import ConfigDict

from configs import parsing


def get_config() -> ConfigDict:
  """`parsing`, for English text."""
  c = parsing.get_config()
  c.steps = 11_600  # 100 epochs
  c.task.data = 'file:gum_const'
  c.task.widths = (12, 24, 36, 56, 104)
  c.task.zero_digits = True
  c.task.longest_word = 20
  c.model.width = 256
  c.model.characters = 'cnn'
  c.model.character_width = 64
  c.model.label_width = 128
  c.model.num_layers = 4
  c.model.num_heads = 8
  c.model.hidden_width = 512
  c.model.dropout_rate = 0.2
  c.model.word_dropout = 0.05
  c.model.vector_dropout = 0.4
  c.model.letter_dropout = 0.2
  c.optimizer.learning_rate = 1e-3
  c.optimizer.warmup_steps = 160
  c.optimizer.weight_decay = 0.01
  c.log_every = 50
  c.eval_every = 1160
  c.checkpoint_every = 1160
  return c
