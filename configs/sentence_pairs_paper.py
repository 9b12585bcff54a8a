"""SNLI or MultiNLI whole, by a Gaussian Transformer of three encoding blocks.

  python train.py --config=configs/sentence_pairs_paper.py --config.task.vectors=PATH

PATH is a file of word vectors of 300 numbers each. The data are `tfds:snli`, prepared beforehand;
--config.task.data=tfds:multi_nli takes MultiNLI, and its matched validation pairs. As in Guo et al.
2019 (https://doi.org/10.1609/aaai.v33i01.33016489) there are M = 3 encoding blocks, their best
single model, and neither the vectors of words nor those of characters are trained. The width, the
number of interaction blocks N, the optimizer and the number of steps are our choice: the copy of
the paper that we had does not show them. For accelerators: not run here.
"""

from ml_collections import ConfigDict

from configs import sentence_pairs


def get_config() -> ConfigDict:
  """The small config with the paper's blocks, and vectors of words from a file."""
  c = sentence_pairs.get_config()
  c.task.data = 'tfds:snli'
  c.task.widths = (16, 32, 64, 128)
  c.task.cut = True
  c.task.vectors = 'glove.840B.300d.txt'
  c.task.ngrams = (3,)
  c.steps = 86_000  # ten epochs of 549,367 pairs
  c.model.width = 256
  c.model.num_layers = 3
  c.model.interaction_layers = 1
  c.model.num_heads = 8
  c.model.ff_width = 1024
  c.model.dropout_rate = 0.1
  c.model.word_width = 300
  c.model.char_width = 100
  c.model.train_words = False
  c.model.train_characters = False
  c.optimizer.learning_rate = 5e-4
  c.optimizer.warmup_steps = 2000
  c.checkpoint.use = 'best'
  c.log_every = 100
  c.eval_every = c.checkpoint_every = 2000
  return c
