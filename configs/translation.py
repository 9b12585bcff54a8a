"""Translation: which encodings know the order of words on both sides?

  python train.py --config=configs/translation.py

Without data: 4,096 generated sentences, to be said backwards, where order is everything; a minute
on two CPU cores. Multi30k (captions of pictures in two languages) is configs/multi30k.py.
The recurrent models before the Transformer: configs/translation_recurrent.py.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import default


def get_config() -> ConfigDict:
  """The default, with another task and another model."""
  c = default.get_config()
  c.scheme = 'sinusoidal'
  c.steps = 600
  c.batch_size = 64
  c.task = ConfigDict()
  c.task.name = 'translation'
  c.task.architecture = 'transformer'  # or 'recurrent'
  c.task.data = 'synthetic:reversed'  # or 'file:PATH', 'tfds:NAME'
  c.task.source = placeholder(str)  # the language to translate from, such as 'de'
  c.task.target = placeholder(str)  # the language to translate to, such as 'en'
  c.task.held_out = placeholder(str)  # files or split to be scored on; validation unless set
  c.task.tokens = 'words'  # or 'sentencepiece', 'characters', 'bytes'
  c.task.vocab_size = placeholder(int)  # of words and characters: all there are, if not set
  c.task.joint = False  # one vocabulary for both sides
  c.task.widths = (8,)  # of rows, in tokens; longer training pairs are left out, and counted
  c.task.label_smoothing = 0.1
  c.task.beams = 4
  c.task.alpha = 0.6  # exponent of the length penalty; 0 has none
  c.task.extra_length = 10  # a translation may have so many tokens more than its source
  c.model = ConfigDict()
  c.model.num_layers = 2  # on each side
  c.model.width = 64
  c.model.num_heads = 4
  c.model.ff_width = 128
  c.model.activation = 'relu'  # a name in jax.nn
  c.model.dtype = 'float32'  # or 'bfloat16', of a Transformer's products
  c.model.dropout_rate = 0.0
  c.model.unroll = 2
  c.optimizer.learning_rate = 3e-3
  c.optimizer.warmup_steps = 60
  c.optimizer.b2 = 0.98
  c.optimizer.weight_decay = 0.0
  c.compare.learned_by = 'loss'  # of the right next token: there are several translations
  c.compare.margin = 0.3  # BLEU
  c.log_every = 20
  c.eval_every = 200
  c.checkpoint_every = 200
  return c
