"""A config for tests that need a process of its own: everything that is random, at once."""

from configs import default


def get_config():
  """Dropout, random ids, packing, checkpoints between evaluations."""
  config = default.get_config()
  config.scheme = 'randomized(max_length=512)+rope'
  config.steps = 40
  config.batch_size = 4
  config.log_every = 1
  config.eval_every = 9
  config.checkpoint_every = 5
  config.task.length = 32
  config.task.eval_tokens = 512
  config.task.eval_factors = (1, 2)
  config.task.sample_length = 4
  config.model.num_layers = 2
  config.model.width = 32
  config.model.num_heads = 2
  config.model.dropout_rate = 0.1
  config.optimizer.warmup_steps = 2
  return config
