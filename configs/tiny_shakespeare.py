"""A small decoder on plays: bytes of a folder with train.txt and valid.txt.

  python train.py --config=configs/tiny_shakespeare.py --config.task.data=file:PATH

PATH holds the usual split of tiny Shakespeare (1.0 MB of training text; docs/data.md). Seven
minutes on two CPU cores that had other work as well, to 2.63 bits per byte (RESULTS.md).
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
  """The default on plays, with dropout: the text is small."""
  c = default.get_config()
  c.scheme = 'rope'
  c.steps = 300
  c.task.data = 'file:tiny_shakespeare'
  c.task.prompt = 'ROMEO:\n'
  c.model.dropout_rate = 0.1
  return c
