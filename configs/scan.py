"""SCAN by length: commands to actions, from a file of `command<TAB>actions` lines.

  python train.py --config=configs/scan.py --config.task.data=file:PATH

PATH is a file, or a folder with .tsv files, of the length split of Lake & Baroni 2018,
https://arxiv.org/abs/1711.00350: up to 22 actions to learn from, 24 to 48 to be tested on. All
lengths that the file has beyond 22 are tested.
"""

from ml_collections import ConfigDict

from configs import algorithmic


def get_config() -> ConfigDict:
  """The algorithmic config on a file."""
  c = algorithmic.get_config()
  c.task.data = 'file:scan'
  c.task.longest = 22
  c.task.eval_factors = ()  # nor lengths: all that the file has
  return c
