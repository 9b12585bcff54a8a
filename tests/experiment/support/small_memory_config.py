"""A config for tests of models that remember: dropout, random ids, several epochs, checkpoints."""

from configs import default


def get_config():
  """The default on streams, small: a text of a few steps, which begins anew."""
  config = default.get_config()
  config.scheme = 'randomized(max_length=512)+transformer_xl'
  config.steps = 30
  config.batch_size = 4
  config.log_every = 1
  config.eval_every = 100
  config.checkpoint_every = 5
  config.task.length = 16
  config.task.memory = 24
  config.task.eval_tokens = 64
  config.task.eval_factors = (1,)
  config.task.prompt = 'a'
  config.task.sample_length = 4
  config.model.num_layers = 1
  config.model.width = 16
  config.model.num_heads = 2
  config.model.dropout_rate = 0.1
  config.optimizer.warmup_steps = 2
  return config
