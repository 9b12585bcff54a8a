"""Tagging: named entities, with TENER or any other encoding, and a conditional random field.

  python train.py --config=configs/tagging.py --config.task.data=file:PATH

PATH is a folder with a train.* and perhaps a dev.* of lines `word<TAB>tag`, with empty lines
between sentences, as of CoNLL 2003; tags are IOB1, IOB2, BIOES or BMES. Without it: generated
sentences in which only left and right decide whether a word is an entity, which 'tener(even=True)'
cannot know. configs/resume_ner.py reads Chinese, configs/tagging_paper.py has the paper's sizes.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import default


def get_config() -> ConfigDict:
  """The default, with another task and another model."""
  c = default.get_config()
  c.scheme = 'tener'
  c.steps = 300
  c.batch_size = 32
  c.task = ConfigDict()
  c.task.name = 'tagging'
  c.task.data = 'synthetic:direction'  # or 'file:PATH', 'tfds:conll2003'
  c.task.notation = placeholder(str)  # of the tags: 'IOB1', 'IOB2', 'BIOES', 'BMES'; told if unset
  c.task.widths = (16, 32, 64)  # of rows, in words; longer training sentences are left out
  c.task.min_count = 2  # words, letters, bigrams that occur less often in training are unknown
  c.task.lower = True  # words in lower case; letters are read as they are
  c.task.zero_digits = False  # read every digit as 0
  c.task.longest_word = 20  # letters of a word that are read; the run says how many are longer
  c.task.vectors = placeholder(str)  # a file of word vectors, of model.word_width numbers each
  c.task.bigram_vectors = placeholder(str)  # the same of bigrams
  c.model = ConfigDict()
  c.model.encoder = 'transformer'  # or 'rnn', 'lstm', 'gru'
  c.model.width = 64
  c.model.word_width = 64
  c.model.bigram_width = placeholder(int)  # numbers of a bigram's vector; read only if set
  c.model.characters = placeholder(str)  # how letters are read: 'transformer', 'cnn' or 'lstm'
  c.model.character_width = 30
  c.model.character_heads = 3
  c.model.character_hidden = 60
  c.model.character_scheme = 'tener'
  c.model.num_layers = 2
  c.model.num_heads = 4
  c.model.hidden_width = 128  # of the feed-forward layer, or of a recurrent state
  c.model.forget_bias = 1.0  # of LSTM cells, at first: they remember
  c.model.pre_norm = False
  c.model.activation = 'relu'  # a name in jax.nn
  c.model.output_projection = False  # heads are only joined, as in TENER
  c.model.dtype = 'float32'  # or 'bfloat16', of a Transformer's products
  c.model.dropout_rate = 0.0  # within a Transformer
  c.model.word_dropout = 0.02  # share of words and bigrams that training hides as unknown
  c.model.vector_dropout = 0.0  # of the vectors of words and bigrams
  c.model.character_dropout = 0.0  # of the vectors of letters
  c.model.readout_dropout = 0.0  # before the last layer
  c.model.constrained = False  # whether training, too, knows which tags may follow each other
  c.optimizer.learning_rate = 3e-3
  c.optimizer.warmup_steps = 30
  c.optimizer.weight_decay = 0.0
  c.compare.learned = 0.9  # of an F1 of 100 on training sentences
  c.compare.margin = 0.5  # points
  c.log_every = 50
  c.eval_every = 150
  c.checkpoint_every = 300
  return c
