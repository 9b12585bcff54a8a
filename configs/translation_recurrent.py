"""Translation by recurrent cells and attention, as before the Transformer.

  python train.py --config=configs/translation_recurrent.py

`model.similarity` compares a state of the decoder with those of the encoder: 'unscaled' (dot
product), 'none' (divided by the root of the width), 'general', 'additive' or 'cosine'.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import translation


def get_config() -> ConfigDict:
  """`translation`, with another model."""
  c = translation.get_config()
  c.scheme = 'none'  # cells know the order by themselves
  c.task.architecture = 'recurrent'
  c.model = ConfigDict()
  c.model.cell = 'gru'  # or 'rnn', 'lstm'
  c.model.forget_bias = 1.0  # of LSTM cells, at first: they remember
  c.model.width = 64
  c.model.hidden_width = 128
  c.model.num_layers = 1
  c.model.bidirectional = True  # the encoder reads in both directions
  c.model.order = 'luong'  # the new state asks; or 'bahdanau', where the one before does
  c.model.input_feeding = False  # the cells read the last output, too (Luong et al., section 3.3)
  c.model.similarity = 'additive'
  c.model.similarity_width = placeholder(int)  # both sides are projected to it for the comparison
  c.model.dropout_rate = 0.0
  return c
