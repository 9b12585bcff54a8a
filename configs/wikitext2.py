"""Words of Wikipedia: WikiText-2, https://arxiv.org/abs/1609.07843.

  python train.py --config=configs/wikitext2.py --config.task.data=file:PATH

PATH is a folder with wiki.train.tokens and wiki.valid.tokens: 2,088,628 and 217,646 words, the end
of each line among them, of 33,278 types. Reported as perplexity of a word, and as bits per
character of the text that the words spell.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
  """The default on words: a small model with much dropout, since the text is small."""
  c = default.get_config()
  c.scheme = 'rope'
  c.steps = 3000
  c.batch_size = 16
  c.task.data = 'file:wikitext2'
  c.task.tokens = 'words'
  c.task.length = 64
  c.task.eval_factors = (1, 2, 4)
  c.task.eval_tokens = 217_600
  c.task.prompt = '= History ='
  c.task.sample_length = 60
  c.model.num_layers = 2
  c.model.width = 128
  c.model.num_heads = 4
  c.model.dropout_rate = 0.2
  c.optimizer.learning_rate = 2e-3
  c.optimizer.warmup_steps = 100
  c.log_every = 20
  c.eval_every = c.checkpoint_every = 500
  return c
