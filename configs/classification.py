"""Labels of texts: which encodings, with which encoders, know the order of words?

  python train.py --config=configs/classification.py --config.task.data=file:PATH

PATH is a file of `label<TAB>text` lines, or a folder with a train.tsv and perhaps a dev.tsv.
Without it: 2,048 generated texts whose label is the order of two words. Encoders and inputs after
Wang et al. 2020, https://arxiv.org/abs/1912.12333, at a size for two CPU cores; that of the paper
is configs/complex_order_paper.py. Cross-validation of ten folds:

  python -m posjax.experiment.compare --config=configs/classification.py \\
    --schemes='none,learned,sinusoidal,complex_vanilla,complex_order' --seeds=1 \\
    --axes=task.fold=0,1,2,3,4,5,6,7,8,9 --config.task.folds=10 --config.task.data=file:PATH
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import default


def get_config() -> ConfigDict:
  """The default, with another task and another model."""
  c = default.get_config()
  c.scheme = 'complex_order'
  c.steps = 300
  c.batch_size = 64
  c.task = ConfigDict()
  c.task.name = 'classification'
  c.task.data = 'synthetic:order'  # or 'file:PATH', 'tfds:NAME'
  c.task.folds = 0  # cross-validation: parts of all texts; 0: what the data holds out, or a tenth
  c.task.fold = 0  # the part that is held out
  c.task.widths = (16, 32, 64)  # of rows, in words; the last is the longest text
  c.task.cut = False  # cut longer texts (the run says how many) instead of refusing them
  c.task.min_count = 2  # words that occur less often in training texts are unknown
  c.task.vectors = placeholder(str)  # a file of word vectors, of model.width numbers each
  c.model = ConfigDict()
  c.model.encoder = 'transformer'  # or 'fasttext', 'rnn', 'lstm', 'gru', 'cnn'
  c.model.width = 64
  c.model.hidden_width = 64  # dense layer, recurrent state, filters a size, or feed-forward
  c.model.num_layers = 1  # of a Transformer, or of recurrent cells
  c.model.num_heads = 4
  c.model.kernel_sizes = (3, 4, 5)  # of a CNN, in words
  c.model.bidirectional = False  # recurrent cells in both directions
  c.model.forget_bias = 1.0  # of LSTM cells, at first: they remember
  c.model.pooling = 'mean'  # or 'max', 'last': what is read of a Transformer or recurrent cells
  c.model.pre_norm = True
  c.model.activation = 'relu'  # a name in jax.nn
  c.model.dtype = 'float32'  # or 'bfloat16', of a Transformer's products
  c.model.dropout_rate = 0.1
  c.optimizer.learning_rate = 3e-3
  c.optimizer.warmup_steps = 30
  c.optimizer.weight_decay = 0.01
  c.compare.learned = 0.9  # of all training texts
  c.compare.margin = 0.5  # points
  c.log_every = 50
  c.eval_every = 150
  c.checkpoint_every = 300
  return c
