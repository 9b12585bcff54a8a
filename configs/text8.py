"""Characters of Wikipedia: text8, or the beginning of it.

  python train.py --config=configs/text8.py --config.task.data=file:PATH

PATH is a folder with train.txt and valid.txt of 27 symbols (docs/data.md); `text8:PATH` is the
whole file, split as in papers (configs/text8_paper.py). 16 million characters are learned from, in
an hour and a half of one CPU core, and all held-out text that fills whole windows is scored.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
  """The default on characters, in more steps of shorter rows."""
  c = default.get_config()
  c.scheme = 'transformer_xl'
  c.steps = 8000
  c.task.data = 'file:text8'
  c.task.tokens = 'characters'
  c.task.length = 128
  c.task.eval_factors = (1, 2, 4)
  c.task.eval_tokens = 250_000
  c.task.prompt = 'the history of '
  c.model.num_heads = 4
  c.optimizer.warmup_steps = 200
  c.log_every = 50
  c.eval_every = c.checkpoint_every = 2000
  return c
