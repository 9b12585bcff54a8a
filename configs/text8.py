"""Characters of Wikipedia: text8, or the beginning of it.

  python train.py --config=configs/text8.py --config.task.data=file:PATH

PATH is a folder with train.txt and valid.txt of 27 symbols; `text8:PATH` is the whole file, split
as in papers (configs/text8_paper.py). 20 million characters are learned from, and all held-out text
that fills whole windows is scored. Not run to its end here: of a trial of 150 steps, about 2,000
characters per second of one CPU core, which makes an hour and a half on two free ones.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
  """The default on characters, wider, in more and smaller steps."""
  c = default.get_config()
  c.scheme = 'rope'
  c.steps = 10_000
  c.batch_size = 8
  c.task.data = 'file:text8'
  c.task.tokens = 'characters'
  c.task.eval_factors = (1, 2, 4)
  c.task.eval_tokens = 250_000
  c.task.prompt = 'the history of '
  c.model.width = 256
  c.model.num_heads = 4
  c.optimizer.learning_rate = 2e-3
  c.optimizer.warmup_steps = 200
  c.log_every = 50
  c.eval_every = c.checkpoint_every = 1000
  return c
