"""An algorithm at a size for tests of comparisons: a run is over in seconds."""

from configs import algorithmic


def get_config():
  """Copying one or two letters, which is learned; and four, which is not."""
  config = algorithmic.get_config()
  small = {
    'steps': 30,
    'batch_size': 16,
    'log_every': 5,
    'eval_every': 100,
    'checkpoint_every': 10,
    'task.longest': 2,
    'task.eval_factors': (1, 2),
    'task.eval_examples': 16,
    'model.num_layers': 1,
    'model.width': 32,
    'model.num_heads': 2,
    'optimizer.warmup_steps': 2,
  }
  config.update_from_flattened_dict(small)
  return config
