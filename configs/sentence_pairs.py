"""Sentence pairs: which encodings know that words stand near one another?

  python train.py --config=configs/sentence_pairs.py --config.task.data=file:PATH

PATH is a file of `label<TAB>premise<TAB>hypothesis` lines, or a folder with a train.tsv and perhaps
a dev.tsv. Without it: 4,000 generated pairs whose label is a distance between two words, so that a
model without positions is right exactly half of the time; a minute of one CPU core. The model is
the Gaussian Transformer (Guo et al. 2019, https://doi.org/10.1609/aaai.v33i01.33016489), small;
ESIM, its baseline: --config.task.architecture=esim --config.scheme=none; any encoder of texts:
--config.task.architecture=one_row. Other schemes, and how many pairs they need:

  python -m posjax.experiment.compare --config=configs/sentence_pairs.py --seeds=5 \\
    --schemes='none,sinusoidal,gaussian,sinusoidal+gaussian,laplace,power_law' \\
    --axes=task.data=synthetic:near_1k,synthetic:near_4k,synthetic:near_16k
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import default


def get_config() -> ConfigDict:
  """The default, with another task and another model."""
  c = default.get_config()
  c.scheme = 'sinusoidal+gaussian'
  c.steps = 600
  c.batch_size = 64
  c.task = ConfigDict()
  c.task.name = 'sentence_pairs'
  c.task.architecture = 'gaussian_transformer'  # or 'esim', 'one_row'
  c.task.data = 'synthetic:near'  # or 'file:PATH', 'tfds:NAME'
  c.task.widths = (24,)  # of rows, in words; the last is the longest sentence
  c.task.cut = False  # cut longer sentences (the run says how many) instead of refusing them
  c.task.min_count = 1  # words that occur less often in training pairs are unknown
  c.task.vectors = placeholder(str)  # a file of word vectors, of model.word_width numbers each
  c.task.ngrams = ()  # letters of character n-grams, as (3,); none are read if ()
  c.task.ngrams_per_word = 16  # the first so many are read
  c.model = ConfigDict()
  c.model.width = 32
  c.model.num_layers = 1  # of the encoding block, M; or of an encoder in one row
  c.model.interaction_layers = 1  # N
  c.model.num_heads = 4
  c.model.ff_width = 64
  c.model.pre_norm = False
  c.model.activation = 'relu'  # a name in jax.nn
  c.model.dtype = 'float32'  # or 'bfloat16', of a Transformer's products
  c.model.dropout_rate = 0.0
  c.model.word_width = 32
  c.model.char_width = 16
  c.model.train_words = True  # False in the paper, whose vectors are pre-trained
  c.model.train_characters = True  # False in the paper, whose vectors are random
  c.model.hidden_width = 32  # of ESIM, or of an encoder in one row
  c.model.encoder = 'transformer'  # in one row: a name as in configs/classification.py
  c.model.pooling = 'mean'  # in one row: or 'max', 'last'
  c.model.bidirectional = False  # in one row: recurrent cells in both directions
  c.model.forget_bias = 1.0  # of LSTM cells, at first: they remember
  c.model.kernel_sizes = (3, 4, 5)  # in one row: of a CNN, in words
  c.optimizer.learning_rate = 3e-3
  c.optimizer.warmup_steps = 50
  c.optimizer.weight_decay = 0.01
  c.compare.learned_by = 'loss'  # people, too, disagree on labels of real pairs
  c.compare.margin = 0.5  # points
  c.log_every = 50
  c.eval_every = 300
  c.checkpoint_every = 600
  return c
