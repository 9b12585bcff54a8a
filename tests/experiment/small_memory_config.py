"""A config for tests of models that remember: dropout, random ids, several epochs, checkpoints."""

from tests.experiment import small_config


def get_config():
  """The small config on streams: a text of a few steps, which begins anew."""
  config = small_config.get_config()
  config.scheme = 'randomized(max_length=512)+transformer_xl'
  config.task.length = 16
  config.task.memory = 24
  config.task.eval_tokens = 128
  return config
