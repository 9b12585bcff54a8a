"""A config whose run is over in no time, for tests of what happens to a run: a toy task."""

from ml_collections import ConfigDict

from configs import default


def get_config():
  """The file of points is named by `task.data`."""
  config = default.get_config()
  config.scheme = 'none'
  config.task = ConfigDict({'name': 'tests.experiment.toys.line', 'data': 'points.txt'})
  small = {
    'steps': 6,
    'batch_size': 4,
    'log_every': 1,
    'eval_every': 3,
    'checkpoint_every': 2,
    'optimizer.warmup_steps': 0,
  }
  config.update_from_flattened_dict(small)
  return config
