"""The Penn Treebank at the size of Kitaev and Klein 2018, https://arxiv.org/abs/1805.01052.

  python train.py --config=configs/parsing_paper.py --config.task.data=file:PATH

PATH is a folder with trees in brackets: a train.* of sections 02 to 21, and a dev.* of section 22.
The sizes are those of the authors' code (nikitakit/self-attentive-parser, src/main.py of 2019): 8
layers of width 1,024 with 8 heads and feed-forward layers of 2,048, half of each for content and
half for position, and batches of 250 sentences. Letters are read by an LSTM, and the checkpoint
that is best on the held-out trees is scored. Three things differ. Their heads have 64 numbers, and
these 128, an eighth of the width. They halve the learning rate after five epochs without a better
F1, and end after three such steps; here it falls along a cosine in 100 epochs. They drop 0.2 of
attention and residuals and 0.1 within feed-forward layers; here it is 0.2 everywhere. For
accelerators: not run here. The paper has an F1 of 93.55 on section 23.
"""

from ml_collections import ConfigDict

from configs import parsing


def get_config() -> ConfigDict:
  """The small config at the paper's size."""
  c = parsing.get_config()
  c.steps = 15_900  # 100 epochs of 39,832 sentences
  c.batch_size = 250
  c.task.data = 'file:ptb'
  c.task.widths = (16, 24, 32, 40, 64, 144)
  c.task.min_count = 1
  c.task.lower = False
  c.task.longest_word = 30
  c.model.width = 1024
  c.model.characters = 'lstm'
  c.model.character_width = 64
  c.model.label_width = 250
  c.model.num_layers = 8
  c.model.num_heads = 8
  c.model.hidden_width = 2048
  c.model.dropout_rate = 0.2
  c.model.vector_dropout = 0.4
  c.model.letter_dropout = 0.2
  c.model.character_dropout = 0.2
  c.optimizer.learning_rate = 8e-4
  c.optimizer.warmup_steps = 160
  c.optimizer.b2 = 0.98
  c.optimizer.clip_norm = None
  c.checkpoint.use = 'best'
  c.log_every = 50
  c.eval_every = c.checkpoint_every = 159
  return c
