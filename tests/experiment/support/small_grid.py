"""An algorithm at a size for tests of comparisons: a run is over in seconds."""

from configs import algorithmic


def get_config():
  """Copying one letter, which some runs learn; and two, of which a few are right by chance."""
  config = algorithmic.get_config()
  small = {
    'steps': 160,
    'batch_size': 16,
    'log_every': 5,
    'eval_every': 100,
    'checkpoint_every': 20,
    'task.longest': 1,
    'task.eval_factors': (1, 2),
    'task.eval_examples': 64,
    'model.num_layers': 1,
    'model.width': 32,
    'model.num_heads': 2,
    'optimizer.warmup_steps': 2,
    'optimizer.learning_rate': 1e-2,
    'compare.learned': 0.5,
  }
  config.update_from_flattened_dict(small)
  return config
