"""Parsing: constituents, by an encoder that keeps content and position apart, or any other.

  python train.py --config=configs/parsing.py --config.task.data=file:PATH

PATH is a file of trees in brackets, or a folder with a train.* and perhaps a dev.* of them, as of
the Penn Treebank. Without it: generated sentences of a small English, whose trees follow from their
words. The variants of Kitaev and Klein 2018 (https://arxiv.org/abs/1805.01052) are

  --config.scheme=concatenated                        factored: content and position apart
  --config.scheme=concatenated --config.model.encoder=transformer      side by side, and joined
  --config.scheme='learned(stddev=1.0)' --config.model.encoder=transformer              added up
  --config.scheme='learned(stddev=1.0)+position_only' --config.model.encoder=transformer

and any other scheme goes with the encoder 'transformer'. configs/gum.py reads English text.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import default


def get_config() -> ConfigDict:
  """The default, with another task and another model."""
  c = default.get_config()
  c.scheme = 'concatenated'
  c.steps = 200
  c.batch_size = 32
  c.task = ConfigDict()
  c.task.name = 'parsing'
  c.task.data = 'synthetic:brackets'  # or 'file:PATH'
  c.task.held_out = placeholder(str)  # a file of held-out trees; those of the data if unset
  c.task.traces = True  # take empty nodes off the trees
  c.task.functions = True  # take function tags and indices off labels
  c.task.widths = (8, 16, 24)  # of rows, in words; longer training sentences are left out
  c.task.min_count = 2  # words and letters that occur less often in training are unknown
  c.task.lower = True  # words in lower case; letters are read as they are
  c.task.zero_digits = False  # read every digit as 0
  c.task.longest_word = 16  # letters of a word that are read; the run says how many are longer
  c.task.tags = False  # read the words' tags, too
  c.task.loss = 'hinge'  # or 'nll', how unlikely the right tree is
  c.task.silence = False  # judge with content or position silent, layer by layer, at the end
  c.model = ConfigDict()
  c.model.encoder = 'partitioned'  # or 'transformer', 'rnn', 'lstm', 'gru'; 'none' is no encoder
  c.model.width = 64
  c.model.characters = placeholder(str)  # how letters are read: 'transformer', 'cnn' or 'lstm'
  c.model.character_width = 32
  c.model.character_heads = 4
  c.model.character_hidden = 64
  c.model.character_scheme = 'learned'  # of a Transformer over letters
  c.model.label_width = 64  # of the hidden layer that scores spans
  c.model.num_layers = 2
  c.model.num_heads = 4
  c.model.hidden_width = 128  # of the feed-forward layers, or of a recurrent state
  c.model.forget_bias = 1.0  # of LSTM cells, at first: they remember
  c.model.pre_norm = False
  c.model.activation = 'relu'  # a name in jax.nn
  c.model.silent_content = ()  # layers, from 1 on, whose attention does not hear the words
  c.model.silent_position = ()  # layers, from 1 on, whose attention does not hear the positions
  c.model.dtype = 'float32'  # or 'bfloat16', of a Transformer's products
  c.model.dropout_rate = 0.0  # within the encoder
  c.model.word_dropout = 0.0  # share of words that training hides as unknown
  c.model.vector_dropout = 0.0  # of the features of words and tags, the same in a whole sentence
  c.model.letter_dropout = 0.0  # the same of what words have from their letters
  c.model.character_dropout = 0.0  # of the vectors of letters
  c.optimizer.learning_rate = 2e-3
  c.optimizer.warmup_steps = 20
  c.optimizer.weight_decay = 0.0
  c.compare.learned = 0.9  # of an F1 of 100 on training sentences
  c.compare.margin = 0.5  # points
  c.log_every = 50
  c.eval_every = 100
  c.checkpoint_every = 200
  return c
