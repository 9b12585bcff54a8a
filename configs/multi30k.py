"""Multi30k: captions of pictures, German to English, by a small Transformer.

  python train.py --config=configs/multi30k.py --config.task.data=file:PATH --workdir=runs/multi30k

PATH is a folder with train.de, train.en, val.de and val.en (docs/data.md). English to German:
--config.task.source=en --config.task.target=de. The test set, once all is fixed:

  python -m posjax.experiment.ask --workdir=runs/multi30k < PATH/test_2016_flickr.de > said.en
  sacrebleu PATH/test_2016_flickr.en < said.en
"""

from ml_collections import ConfigDict

from configs import translation


def get_config() -> ConfigDict:
  """`translation`, with real sentences and a model of that size."""
  c = translation.get_config()
  c.task.data = 'file:multi30k'
  c.task.source = 'de'
  c.task.target = 'en'
  c.task.tokens = 'sentencepiece'
  c.task.vocab_size = 4000
  c.task.joint = True
  c.task.widths = (12, 16, 20, 24, 32, 48)
  c.task.extra_length = 50
  c.batch_size = 32
  c.steps = 9_000
  c.model.num_layers = 3
  c.model.width = 192
  c.model.num_heads = 6
  c.model.ff_width = 384
  c.model.dropout_rate = 0.3
  c.model.shared = True  # one table for both languages and the readout
  c.model.unroll = 3
  c.optimizer.learning_rate = 2e-3
  c.optimizer.warmup_steps = 800
  c.optimizer.final_fraction = 0.02
  c.optimizer.weight_decay = 0.01
  c.checkpoint.keep = 5
  c.checkpoint.use = 'mean'
  c.checkpoint.mean_of = 5
  c.log_every = 100
  c.eval_every = 1000
  c.checkpoint_every = 250
  return c
